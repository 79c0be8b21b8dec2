"""The publisher's key on this machine: made on first use, rotated, revoked.

The folder is ``sparkwright/publisher`` in the user's data folder. ``key.pem`` is the private key, ``N.json``
the versions of the root; all of it is written under a lock, the root first and the key last.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import PublishError, SignatureError, UnknownNameError, UntrustedKeyError
from sparkwright.base.events import emit
from sparkwright.publish.channel import moment, stamp
from sparkwright.publish.root import Role, TrustedIdentity, TrustedKey, TrustRoot
from sparkwright.publish.signing import TRUST_TYPE, LocalSigner, sign_by
from sparkwright.publish.trust import PinnedRoot, first_root, next_root, read_root, replaced, root_of_file
from sparkwright.store import atomic_file, hold, storing, write_atomically

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner


_KEY, _NEXT, _RETIRED = "key.pem", "next.pem", "retired-{}.pem"
_READABLE_BY_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_INSTEAD = "set XDG_DATA_HOME to a writable folder"


@dataclass(frozen=True)
class PublisherKeys:
    """The publisher of this machine.

    Attributes:
        signer: signs by the present key.
        root: the newest version of the root.
    """

    home: Path
    signer: LocalSigner
    root: TrustRoot

    def root_files(self) -> tuple[Path, ...]:
        """Return the files of all versions of the root, the first one first."""
        return tuple(_root_file(self.home, number) for number in range(1, self.root.version + 1))


def publisher_home() -> Path:
    """Return the folder of the publisher's key and root."""
    from platformdirs import user_data_path

    return user_data_path("sparkwright") / "publisher"


def own_root_file(home: Path | None = None) -> Path | None:
    """Return the file of this machine's newest root, `None` if it has no key."""
    home = home or publisher_home()
    versions = [int(path.stem) for path in home.glob("*.json") if path.stem.isdecimal()]
    return _root_file(home, max(versions)) if versions else None


def published_root(home: Path | None = None) -> tuple[TrustRoot, tuple[Path, ...]] | None:
    """Return the newest root of this machine and the files of all its versions, `None` if it has no key.

    Nothing is made, and no interrupted rotation is finished.
    """
    home = home or publisher_home()
    if own_root_file(home) is None:
        return None
    root = _newest(home)
    return root, tuple(_root_file(home, number) for number in range(1, root.version + 1))


def load_publisher(home: Path | None = None) -> PublisherKeys:
    """Return the publisher of this machine with a key that may sign channels; see `open_publisher`.

    Raises:
        UntrustedKeyError: its key is revoked.
    """
    publisher = open_publisher(home)
    now = datetime.now(UTC)
    if refusal := publisher.root.refusal(publisher.signer.name, stamp(now), "channels"):
        key = cast("TrustedKey", publisher.root.find(publisher.signer.name))
        raise UntrustedKeyError(
            "this machine's key cannot be used",
            because=refusal,
            next_step="set this machine's clock; if it is right, replace it: sparkwright channel key rotate"
            if moment(key.start, "the root") > now
            else "replace it: sparkwright channel key rotate --roots-key FILE",
        )
    return publisher


def open_publisher(home: Path | None = None) -> PublisherKeys:
    """Return the publisher of this machine; key and root are made on first use.

    Raises:
        SignatureError: others can read the key, or key and root do not belong together.
        StorageError: the disk is full or cannot be written.
    """
    home = home or publisher_home()
    with _locked(home):
        if not (home / _KEY).exists() and own_root_file(home) is None:
            _first_key(home)
        _finish_rotation(home)
        root, key = _newest(home), _read_key(home / _KEY)
    found = root.find(key.public_key.keyid)
    if found is None:
        raise SignatureError(
            "this machine's key cannot be used",
            because=f"the root in {home} does not list it",
            next_step=f"put back the files of {home}, or move the folder away to make another key",
        )
    return PublisherKeys(home, LocalSigner(key), root)


def rotate_key(
    home: Path, *, revoke: str | None = None, split: Path | None = None, roots_key: Path | None = None
) -> PublisherKeys:
    """Replace the present key by a new one; the next version of the root is signed by both.

    Args:
        home: the publisher's folder.
        revoke: revoke the present key for this reason instead of retiring it.
        split: move the present key to this file, from where it goes on signing roots and nothing else; the
            new one may sign channels and nothing else.
        roots_key: private key that signs the root in place of the present one, after a split.

    Raises:
        UntrustedKeyError: the key that is to sign the root may not.
        StorageError: the disk is full or cannot be written.
    """
    publisher = open_publisher(home)
    signing = publisher.signer.key if roots_key is None else _read_key(roots_key)
    present = cast("TrustedKey", publisher.root.find(publisher.signer.name))
    now = stamp(datetime.now(UTC))
    roles: tuple[Role, ...] = present.roles if split is None else ("channels",)
    with _locked(home):
        key = _new_key()
        _write_private(home / _NEXT, key)
        if split is not None:
            _write_private(split, publisher.signer.key)
            former = msgspec.structs.replace(present, end=now)
        elif revoke is not None:
            former = msgspec.structs.replace(present, end=now, revoked=now, reason=revoke)
        else:
            former = msgspec.structs.replace(present, end=now, roles=("channels",))
        root = replaced(replaced(publisher.root, former), _described(key, roles, now))
        _write_root(home, publisher.root, root, [signing, key], now)
        _finish_rotation(home)
    if split is not None:
        (home / _RETIRED.format(present.id[:16])).unlink(missing_ok=True)
    emit("key.rotated", old=present.id, new=key.public_key.keyid, revoked=revoke is not None)
    return open_publisher(home)


def revoke_key(home: Path, key_id: str, reason: str, *, roots_key: Path | None = None) -> PublisherKeys:
    """Revoke the key whose id begins with *key_id*: nothing that it ever signed is trusted any more.

    Args:
        home: the publisher's folder.
        key_id: the first digits of its id, eight at least.
        reason: shown to readers.
        roots_key: private key that signs the root, where the present one may not.

    Raises:
        UnknownNameError: no key, or several, have such an id.
        PublishError: it is the present key, which has to be replaced first.
        UntrustedKeyError: the key that is to sign may not sign roots.
    """
    publisher = open_publisher(home)
    found = [key for key in publisher.root.keys if len(key_id) >= 8 and key.id.startswith(key_id)]  # noqa: PLR2004
    if len(found) != 1:
        raise UnknownNameError(
            f"there is no key {key_id!r}",
            next_step="sparkwright channel key show lists them; give eight digits",
        )
    if found[0].id == publisher.signer.name and roots_key is None:
        raise PublishError(
            "the present key cannot revoke itself",
            because="nothing could be signed afterwards",
            next_step="sparkwright channel key rotate --revoke REASON replaces and revokes it in one step",
        )
    now = stamp(datetime.now(UTC))
    key = publisher.signer.key if roots_key is None else _read_key(roots_key)
    with _locked(home):
        root = replaced(publisher.root, msgspec.structs.replace(found[0], revoked=now, reason=reason))
        _write_root(home, publisher.root, root, [key], now)
    emit("key.revoked", key=found[0].id, reason=reason)
    return open_publisher(home)


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold the lock of *home* for the length of the block."""
    with storing(f"using {home}", instead=_INSTEAD):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold(home / ".lock", "the publisher's key"):
            yield


def allow_identity(home: Path, identity: str, issuer: str) -> PublisherKeys:
    """Trust channels that sigstore signed for *identity*, such as one workflow of one repository.

    Raises:
        UntrustedKeyError: the present key may not sign roots.
    """
    publisher = open_publisher(home)
    added = TrustedIdentity(identity=identity, issuer=issuer)
    if added not in publisher.root.identities:
        root = msgspec.structs.replace(publisher.root, identities=(*publisher.root.identities, added))
        with _locked(home):
            _write_root(home, publisher.root, root, [publisher.signer.key], stamp(datetime.now(UTC)))
    return open_publisher(home)


def pinned_folder() -> Path:
    """Return the folder of the roots that this user pinned."""
    from platformdirs import user_data_path

    return user_data_path("sparkwright") / "trusted"


def pin_root(file: Path, folder: Path, *, publisher: str = "", digest: str = "") -> PinnedRoot:
    """Pin the root in *file*, by what the user got over another way: one of the two at least.

    Args:
        file: the root; versions before it are looked for beside it.
        folder: of the pinned roots.
        publisher: the publisher's id, which has to be proven by every version from the first one on.
        digest: the file's SHA-256, which makes those unnecessary.

    Raises:
        SignatureError: it is damaged.
        UntrustedKeyError: it is another one, is not shown to be the publisher's, or would replace the pinned
            root of a publisher who is not named.
        StorageError: the disk is full or cannot be written.
    """
    if digest:
        data = file.read_bytes()
        if (actual := sha256_bytes(data)) != digest.lower():
            raise UntrustedKeyError(
                f"{file} was not pinned",
                because=f"its SHA-256 is {actual}, not {digest}",
                next_step="compare both with what the publisher states elsewhere",
            )
        pinned = PinnedRoot(read_root(data, str(file)), data)
    else:
        pinned = root_of_file(file)
    found = pinned.root.publisher
    if publisher and found != publisher:
        raise UntrustedKeyError(
            f"{file} was not pinned",
            because=f"its publisher is {found}, not {publisher}",
            next_step="compare both with what the publisher states elsewhere",
        )
    path = folder / f"{found}.json"
    if not publisher and path.exists() and path.read_bytes() != pinned.data:
        raise UntrustedKeyError(
            f"{file} was not pinned",
            because=f"it would replace the pinned root of publisher {found}, and a digest alone does not say "
            "that it is theirs: anybody can write their id into a root",
            next_step=f"if it is a root of that publisher, pin it with --publisher {found}, too",
        )
    with storing(f"writing {path}", instead=_INSTEAD):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, pinned.data)
    return pinned


def pinned_in(folder: Path) -> list[PinnedRoot]:
    """Return the roots that `pin_root` put into *folder*.

    Raises:
        SignatureError: one is damaged.
    """
    files = {path: path.read_bytes() for path in sorted(folder.glob("*.json"))}
    return [PinnedRoot(read_root(data, str(path)), data) for path, data in files.items()]


def _first_key(home: Path) -> None:
    key, now = _new_key(), stamp(datetime.now(UTC))
    described = _described(key, ("roots", "channels"), now)
    root = TrustRoot(publisher=described.id, version=1, written=now, keys=(described,))
    _write_private(home / _NEXT, key)
    write_atomically(_root_file(home, 1), sign_by([key], root.payload, TRUST_TYPE))
    emit("key.made", key=described.id, path=str(home / _KEY))


def _finish_rotation(home: Path) -> None:
    """Put the next key in its place if the root lists it; remove it if a rotation ended before that."""
    if not (home / _NEXT).exists():
        return
    key = _read_key(home / _NEXT)
    if own_root_file(home) is None or _newest(home).find(key.public_key.keyid) is None:
        (home / _NEXT).unlink()
        return
    if (home / _KEY).exists():
        former = _read_key(home / _KEY).public_key.keyid
        (home / _KEY).rename(home / _RETIRED.format(former[:16]))
    (home / _NEXT).rename(home / _KEY)


def _write_root(home: Path, old: TrustRoot, new: TrustRoot, keys: list[CryptoSigner], now: str) -> None:
    """Write *new* as the next version, once it is accepted as the successor of *old*."""
    following = msgspec.structs.replace(new, version=old.version + 1, written=now)
    data = sign_by(keys, following.payload, TRUST_TYPE)
    path = _root_file(home, following.version)
    next_root(old, data, str(path))
    write_atomically(path, data)


def _newest(home: Path) -> TrustRoot:
    """Return the newest root in *home*, each version verified by the one before."""
    path = _root_file(home, 1)
    try:
        root = first_root(path.read_bytes(), str(path))
        while (path := _root_file(home, root.version + 1)).exists():
            root = next_root(root, path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise SignatureError(
            "this machine's key cannot be used",
            because=f"{path}, which describes it, is missing",
            next_step=f"put it back, or move {home} away to make another key",
        ) from error
    return root


def _root_file(home: Path, version: int) -> Path:
    return home / f"{version}.json"


def _described(key: CryptoSigner, roles: tuple[Role, ...], start: str) -> TrustedKey:
    public = key.public_key
    return TrustedKey(id=public.keyid, public=public.keyval["public"], roles=roles, start=start)


def _new_key() -> CryptoSigner:
    from securesystemslib.signer import CryptoSigner

    return CryptoSigner.generate_ed25519()


def _write_private(path: Path, key: CryptoSigner) -> None:
    """Write *key* to *path*, readable by its owner alone from the first moment."""
    with storing(f"writing {path}", instead=_INSTEAD), atomic_file(path, mode=0o600) as handle:
        os.write(handle, key.private_bytes)


def _read_key(path: Path) -> CryptoSigner:
    """Return the private key at *path*.

    Raises:
        SignatureError: others can read it, or it is no ed25519 key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.signer import CryptoSigner

    try:
        with path.open("rb") as stream:
            state = os.fstat(stream.fileno())
            data = stream.read(1 << 16)
        key = load_pem_private_key(data, None)
    except (OSError, ValueError, TypeError) as error:
        raise SignatureError(
            "this machine's key cannot be used", because=f"{path} cannot be read as a private key"
        ) from error
    if state.st_mode & _READABLE_BY_OTHERS or state.st_uid != os.geteuid():
        raise SignatureError(
            "this machine's key cannot be used",
            because=f"others can read {path}: mode {stat.S_IMODE(state.st_mode):o}, owner {state.st_uid}",
            next_step=f"chmod 600 {path}; if others may have read it, then also replace it: "
            "sparkwright channel key rotate --revoke REASON",
        )
    if not isinstance(key, Ed25519PrivateKey):
        raise SignatureError("this machine's key cannot be used", because=f"{path} is no ed25519 key")
    return CryptoSigner(key)
