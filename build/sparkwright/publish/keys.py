"""The keys of the channels of this machine: made on first use, rotated, revoked; and the roots of others.

Each channel has a folder in ``sparkwright/publisher`` in the user's data folder. ``key.pem`` is the private
key, ``N.root.json`` the versions of the root; all of it is written under a lock, the root first and the key
last.
"""

from __future__ import annotations

import contextlib
import copy
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import PublishError, SignatureError, UnknownNameError, UntrustedKeyError
from sparkwright.base.events import emit
from sparkwright.publish.channel import stamp
from sparkwright.publish.roots import (
    ONLINE,
    OURS,
    PinnedRoot,
    first_root,
    name_of,
    next_root,
    read_root,
    root_name,
    root_of_file,
)
from sparkwright.store import atomic_file, hold, storing, write_atomically

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, Signer
    from tuf.api.metadata import Root

_KEY, _NEXT, _RETIRED = "key.pem", "next.pem", "retired-{}.pem"
_READABLE_BY_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_INSTEAD = "set XDG_DATA_HOME to a writable folder"
_ROOT_LASTS = timedelta(days=3650)
_ROLES = ("root", *ONLINE)
_LEAST_DIGITS = 8


@dataclass(frozen=True)
class ChannelKeys:
    """What signs a channel.

    Attributes:
        signer: signs generations.
        root: the newest version of the root.
        files: all versions of it, the first one first, to be published beside the channel.
    """

    signer: Signer
    root: PinnedRoot
    files: tuple[Path, ...]

    @property
    def signer_name(self) -> str:
        """The name of the signer, for people."""
        return name_of(self.signer.public_key)


def publisher_home() -> Path:
    """Return the folder of this machine's keys, one folder for each channel."""
    from platformdirs import user_data_path

    return user_data_path("sparkwright") / "publisher"


def own_root_file(home: Path) -> Path | None:
    """Return the file of the newest root in *home*, the folder of a channel, `None` if it has none."""
    found = [path.name.partition(".")[0] for path in home.glob("*.root.json")]
    versions = [int(number) for number in found if number.isdecimal()]
    return home / root_name(max(versions)) if versions else None


def published_root(home: Path) -> PinnedRoot | None:
    """Return the newest root in *home*, `None` if it has no key; nothing is made or finished."""
    return None if own_root_file(home) is None else _newest(home)


def versions_of(folder: Path, version: int) -> tuple[Path, ...]:
    """Return the files of a root up to that *version* in *folder*, the first one first."""
    return tuple(folder / root_name(number) for number in range(1, version + 1))


def load_publisher(home: Path) -> ChannelKeys:
    """Return what signs a channel, with a key that may; see `open_publisher`.

    Raises:
        UntrustedKeyError: its key is revoked.
    """
    keys = open_publisher(home)
    own = keys.signer.public_key.keyid
    if own not in keys.root.keys("timestamp"):
        raise UntrustedKeyError(
            "this machine's key cannot be used",
            because=f"key {own[:16]} {keys.root.former.get(own, 'is trusted no more')}",
            next_step=f"replace it: sparkwright channel key rotate {home.name} --roots-key FILE",
        )
    return keys


def open_publisher(home: Path) -> ChannelKeys:
    """Return what signs the channel whose folder is *home*; key and root are made on first use.

    Raises:
        SignatureError: others can read the key, or key and root do not belong together.
        StorageError: the disk is full or cannot be written.
    """
    with _locked(home):
        if not (home / _KEY).exists() and own_root_file(home) is None:
            _first_key(home)
        _finish_rotation(home)
        root, key = _newest(home), _read_key(home / _KEY)
    own = key.public_key.keyid
    if root.channel != home.name:
        raise SignatureError(
            f"this machine's key cannot be used for channel {home.name}",
            because=f"{home} has the root of channel {root.channel}, and each channel has its own",
            next_step=f"move {home} away to make a key for {home.name}",
        )
    if own not in root.root.keys and own not in root.former:
        raise SignatureError(
            "this machine's key cannot be used",
            because=f"the root in {home} does not list it",
            next_step=f"put back the files of {home}, or move the folder away to make another key",
        )
    return ChannelKeys(key, root, versions_of(home, root.version))


def rotate_key(
    home: Path, *, revoke: str | None = None, split: Path | None = None, roots_key: Path | None = None
) -> ChannelKeys:
    """Replace the present key by a new one; the next version of the root trusts that in its place.

    Args:
        home: the channel's folder.
        revoke: the reason, if the present key may have been stolen; readers see it.
        split: move the present key to this file, from where it goes on signing roots and nothing else; the
            new one may sign generations and nothing else.
        roots_key: private key that signs the root in place of the present one, after a split.

    Raises:
        UntrustedKeyError: the key that is to sign the root may not.
        PublishError: another file is at *split*, perhaps the key of an earlier split.
        StorageError: the disk is full or cannot be written.
    """
    before = open_publisher(home)
    present = _read_key(home / _KEY)
    if split is not None and split.exists() and split.read_bytes() != present.private_bytes:
        raise PublishError(
            "the key was not split",
            because=f"{split} exists, and may be the only copy of another key",
            next_step="name another file",
        )
    signing = present if roots_key is None else _read_key(roots_key)
    old, now = present.public_key.keyid, stamp(datetime.now(UTC))
    with _locked(home):
        key = _new_key()
        _write_private(home / _NEXT, key)
        if split is not None:
            _write_private(split, present)
        root = copy.deepcopy(before.root.root)
        for role in ONLINE if split is not None else _ROLES:
            if role == "root" and old not in root.roles[role].keyids:
                continue
            root.add_key(key.public_key, role)
            if old in root.roles[role].keyids:
                root.revoke_key(old, role)
        told = f"was revoked on {now}: {revoke}" if revoke is not None else f"was replaced on {now}"
        former = {} if split is not None else {old: told}
        _write_root(home, before.root, root, [signing, key], former)
        _finish_rotation(home)
    if split is not None:
        (home / _RETIRED.format(old[:16])).unlink(missing_ok=True)
    emit("key.rotated", old=old, new=key.public_key.keyid, revoked=revoke is not None)
    return open_publisher(home)


def revoke_key(home: Path, key_id: str, reason: str, *, roots_key: Path | None = None) -> ChannelKeys:
    """Trust the key or identity whose id begins with *key_id* no more.

    Args:
        home: the channel's folder.
        key_id: the first digits of its id, eight at least.
        reason: shown to readers.
        roots_key: private key that signs the root, where the present one may not.

    Raises:
        UnknownNameError: no trusted key, or several, have such an id.
        PublishError: it is the present key, which has to be replaced first.
        UntrustedKeyError: the key that is to sign may not sign roots.
    """
    before = open_publisher(home)
    trusted = before.root.root.keys
    found = [key for key in trusted if len(key_id) >= _LEAST_DIGITS and key.startswith(key_id)]
    if len(found) != 1:
        raise UnknownNameError(
            f"there is no key {key_id!r}",
            next_step=f"sparkwright channel key show {home.name} lists them; give eight digits",
        )
    if found[0] == before.signer.public_key.keyid and roots_key is None:
        raise PublishError(
            "the present key cannot revoke itself",
            because="nothing could be signed afterwards",
            next_step=f"sparkwright channel key rotate {home.name} --revoke REASON replaces it in one step",
        )
    root = copy.deepcopy(before.root.root)
    for role in _ROLES:
        if found[0] in root.roles[role].keyids:
            root.revoke_key(found[0], role)
    signing = _read_key(home / _KEY if roots_key is None else roots_key)
    told = f"was revoked on {stamp(datetime.now(UTC))}: {reason}"
    with _locked(home):
        _write_root(home, before.root, root, [signing], {found[0]: told})
    emit("key.revoked", key=found[0], reason=reason)
    return open_publisher(home)


def allow_identity(home: Path, identity: str, issuer: str, *, roots_key: Path | None = None) -> ChannelKeys:
    """Trust generations that sigstore signed for *identity*, such as one workflow of one repository.

    Args:
        home: the channel's folder.
        identity: as the certificate names it.
        issuer: of its tokens.
        roots_key: private key that signs the root, where the present one may not.

    Raises:
        UntrustedKeyError: the key that is to sign may not sign roots.
    """
    from sparkwright.publish.identities import identity_key

    before, key = open_publisher(home), identity_key(identity, issuer)
    if key.keyid not in before.root.keys("timestamp"):
        root = copy.deepcopy(before.root.root)
        for role in ONLINE:
            root.add_key(key, role)
        with _locked(home):
            _write_root(home, before.root, root, [_read_key(roots_key or home / _KEY)], {})
    return open_publisher(home)


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold the lock of *home* for the length of the block."""
    with storing(f"using {home}", instead=_INSTEAD):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold(home / ".lock", "the publisher's key"):
            yield


# The roots of others --------------------------------------------------------------------------------


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
            raise _not_pinned(file, f"its SHA-256 is {actual}, not {digest}")
        pinned = read_root(data, str(file))
    else:
        pinned = root_of_file(file)
    found = pinned.publisher
    if publisher and found != publisher:
        raise _not_pinned(file, f"its publisher is {found}, not {publisher}")
    path = folder / f"{sha256_bytes(found.encode())}.json"
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


def _not_pinned(file: Path, because: str) -> UntrustedKeyError:
    return UntrustedKeyError(
        f"{file} was not pinned", because=because,
        next_step="compare both with what the publisher states elsewhere",
    )  # fmt: skip


def pinned_in(folder: Path) -> list[PinnedRoot]:
    """Return the roots that `pin_root` put into *folder*.

    Raises:
        SignatureError: one is damaged.
    """
    return [read_root(path.read_bytes(), str(path)) for path in sorted(folder.glob("*.json"))]


# Files ----------------------------------------------------------------------------------------------


def _first_key(home: Path) -> None:
    from tuf.api.metadata import Metadata, Root

    key, now = _new_key(), datetime.now(UTC).replace(microsecond=0)
    ours = {"channel": home.name, "publisher": key.public_key.keyid, "written": stamp(now)}
    root = Root(expires=now + _ROOT_LASTS, consistent_snapshot=True, unrecognized_fields={OURS: ours})
    for role in _ROLES:
        root.add_key(key.public_key, role)
    metadata = Metadata(root)
    metadata.sign(key)
    _write_private(home / _NEXT, key)
    write_atomically(home / root_name(1), metadata.to_bytes())
    emit("key.made", key=key.public_key.keyid, path=str(home / _KEY))


def _finish_rotation(home: Path) -> None:
    """Put the next key in its place if the root lists it; remove it if a rotation ended before that."""
    if not (home / _NEXT).exists():
        return
    key = _read_key(home / _NEXT)
    if own_root_file(home) is None or key.public_key.keyid not in _newest(home).root.keys:
        (home / _NEXT).unlink()
        return
    if (home / _KEY).exists():
        former = _read_key(home / _KEY).public_key.keyid
        (home / _KEY).rename(home / _RETIRED.format(former[:16]))
    (home / _NEXT).rename(home / _KEY)


def _write_root(
    home: Path, old: PinnedRoot, new: Root, keys: Sequence[CryptoSigner], former: dict[str, str]
) -> None:
    """Write *new* as the next version, once it is accepted as the successor of *old*."""
    from tuf.api.metadata import Metadata

    now = datetime.now(UTC).replace(microsecond=0)
    new.version, new.expires = old.version + 1, now + _ROOT_LASTS
    ours = {**new.unrecognized_fields[OURS], "written": stamp(now), "former": {**old.former, **former}}
    new.unrecognized_fields[OURS] = ours
    metadata = Metadata(new)
    for key in keys:
        metadata.sign(key, append=True)
    path = home / root_name(new.version)
    data = metadata.to_bytes()
    next_root(old, data, str(path))
    write_atomically(path, data)


def _newest(home: Path) -> PinnedRoot:
    """Return the newest root in *home*, each version verified by the one before."""
    path = home / root_name(1)
    try:
        root = first_root(path.read_bytes(), str(path))
        while (path := home / root_name(root.version + 1)).exists():
            root = next_root(root, path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise SignatureError(
            "this machine's key cannot be used",
            because=f"{path}, which describes it, is missing",
            next_step=f"put it back, or move {home} away to make another key",
        ) from error
    return root


def throwaway_signer() -> Signer:
    """Return a signer of a dry run, whose key no root lists."""
    return _new_key()


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
            f"sparkwright channel key rotate {path.parent.name} --revoke REASON",
        )
    if not isinstance(key, Ed25519PrivateKey):
        raise SignatureError("this machine's key cannot be used", because=f"{path} is no ed25519 key")
    return CryptoSigner(key)
