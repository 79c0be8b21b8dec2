"""The roots of channels, and the keys of this machine's own: made on first use, rotated and revoked.

A channel is a repository of The Update Framework (TUF), with a root and keys of its own. A root has a
version; the next one is signed by the keys that this one trusts for roots, so a reader who pinned any version
by its digest follows rotations from there. What a root trusts is all that counts: what a former key signed is
refused.

Each channel of this machine has a folder in ``sparkwright/publisher`` in the user's data folder:
``N.root.json`` are the versions of the root, and ``ID.pem`` the private key of that id. The present key is
the one that the newest root lists, so that a change which is interrupted has happened if its root was
written, and not otherwise.
"""

from __future__ import annotations

import contextlib
import copy
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkwright.base.errors import PublishError, SignatureError, UntrustedKeyError
from sparkwright.base.events import warn
from sparkwright.publish.channel import stamp
from sparkwright.store.disk import atomic_file, hold, storing, write_atomically

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, Key
    from tuf.api.metadata import Metadata, Root


ONLINE = ("timestamp", "snapshot", "targets")
"""The roles that sign each generation; ``root`` signs roots alone."""
OURS = "sparkwright"
"""The field of signed metadata with what TUF has no place for."""


def root_name(version: int) -> str:
    """Return the name of the file of that version."""
    return f"{version}.root.json"


@dataclass(frozen=True)
class ChannelRoot:
    """One version of the root of a channel; trust in it comes from its digest, or from the version before."""

    data: bytes

    @cached_property
    def metadata(self) -> Metadata[Root]:
        """Its content with signatures."""
        from tuf.api.metadata import Metadata

        return Metadata.from_bytes(self.data)

    @property
    def root(self) -> Root:
        """Its content."""
        return self.metadata.signed

    @property
    def _ours(self) -> dict[str, Any]:
        found = self.root.unrecognized_fields.get(OURS)
        return found if isinstance(found, dict) else {}

    @property
    def channel(self) -> str:
        """The channel that it is of."""
        return str(self._ours.get("channel", ""))

    @property
    def written(self) -> str:
        """When it was made, in UTC."""
        return str(self._ours.get("written", ""))

    @property
    def former(self) -> dict[str, str]:
        """When and why each former key was replaced or revoked, in words, by its id."""
        found = self._ours.get("former")
        return {str(key): str(told) for key, told in found.items()} if isinstance(found, dict) else {}

    @property
    def version(self) -> int:
        """1 for the first."""
        return int(self.root.version)

    def keys(self, role: str) -> dict[str, Key]:
        """Return the keys of *role* by their ids."""
        return {key: self.root.keys[key] for key in self.root.roles[role].keyids if key in self.root.keys}


def read_root(data: bytes, what: str, before: ChannelRoot | None = None) -> ChannelRoot:
    """Return the root in *data*, signed by keys of its own; trust comes from *before*, or from its digest.

    It has to follow *before*, if given; *what* names the file in errors.
    """
    from tuf.api.exceptions import UnsignedMetadataError
    from tuf.api.metadata import Root
    from tuf.api.serialization import DeserializationError

    found = ChannelRoot(data)
    try:
        is_root = isinstance(found.root, Root)
    except (DeserializationError, RecursionError) as error:
        raise SignatureError(
            f"{what} is damaged",
            because=f"it is no root of a channel, {len(data)} bytes: it was cut off, or never was one",
        ) from error
    if not (is_root and found.channel):
        raise SignatureError(f"{what} is another kind of statement", because="it is no root of a channel")
    for by in (before or found, found):
        try:
            by.root.verify_delegate("root", found.metadata.signed_bytes, found.metadata.signatures)
        except UnsignedMetadataError as error:
            raise UntrustedKeyError(
                f"{what} is signed by a key that may not sign roots",
                because=f"version {by.version} trusts {', '.join(key[:16] for key in by.keys('root'))} for "
                "them",
                next_step="its publisher signs by that key: sparkwright channel key rotate NAME "
                "--roots-key FILE",
            ) from error
    if before and (found.version, found.channel) != (before.version + 1, before.channel):
        raise SignatureError(
            f"{what} does not follow the root before it",
            because=f"it is version {found.version} of channel {found.channel}, after version "
            f"{before.version} of {before.channel}",
        )
    return found


# This machine's keys ---------------------------------------------------------------------------------


_READABLE_BY_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_INSTEAD = "set XDG_DATA_HOME to a writable folder"
_ROOT_LASTS = timedelta(days=3650)
_ROLES = ("root", *ONLINE)
_UNUSABLE = "this machine's key cannot be used"


@dataclass(frozen=True)
class ChannelKeys:
    """The key and the root of a channel of this machine.

    Attributes:
        files: all versions of it, to be published beside the channel.
    """

    signer: CryptoSigner
    root: ChannelRoot
    files: tuple[Path, ...]

    @property
    def id(self) -> str:
        """The id of the key."""
        return str(self.signer.public_key.keyid)


def published_root(home: Path) -> ChannelRoot | None:
    """Return the newest root in *home*, the folder of a channel, each version verified by the one before.

    `None` if there is none.
    """
    root = None
    while (path := home / root_name(root.version + 1 if root else 1)).exists():
        root = read_root(path.read_bytes(), str(path), root)
    return root


def load_publisher(home: Path) -> ChannelKeys:
    """Return what signs the channel whose folder is *home*; key and root are made on first use."""
    with _locked(home):
        root = published_root(home) or _first_root(home)
        keys = {path.stem: path for path in home.glob("*.pem")}
    if root.channel != home.name:
        raise SignatureError(
            f"this machine's key cannot be used for channel {home.name}",
            because=f"{home} has the root of channel {root.channel}, and each channel has its own",
            next_step=f"move {home} away to make a key for {home.name}",
        )
    present = next((path for key, path in keys.items() if key in root.keys("timestamp")), None)
    if present is None:
        told = [f"key {key[:16]} {root.former[key]}" for key in keys if key in root.former]
        raise UntrustedKeyError(
            _UNUSABLE,
            because=told[0] if told else f"{home} has no key that the root there lists",
            next_step=f"put the files of {home} back from your copy, or replace the key: "
            f"sparkwright channel key rotate {home.name} --roots-key FILE",
        )
    key = _read_key(present)
    return ChannelKeys(key, root, tuple(home / root_name(one) for one in range(1, root.version + 1)))


def load_report_key(home: Path) -> CryptoSigner:
    """Return the key in *home* that signs this user's reports and nothing else, made on first use."""
    with _locked(home):
        path = home / "key.pem"
        if not path.exists():
            _write_private(path, _new_key())
        return _read_key(path, f"remove {path}: the next report makes another one")


def rotate_key(
    home: Path, *, revoke: str = "", split: Path | None = None, roots_key: Path | None = None
) -> ChannelKeys:
    """Replace the present key by a new one; the next version of the root trusts that in its place.

    *revoke* is the reason, if the present key may have been stolen; readers see it. With *split* the present
    key moves to that file, from where it goes on signing roots and nothing else, and the new one may sign
    generations and nothing else; after that, *roots_key* signs the root in place of the present one.
    """
    before, key, now = published_root(home) or load_publisher(home).root, _new_key(), stamp(datetime.now(UTC))
    (old,) = before.keys("timestamp")
    present = None if roots_key else _read_key(home / f"{old}.pem")
    if split is not None:
        _require_free(split, home, present)
    signing = present or _read_key(roots_key or home)
    root = copy.deepcopy(before.root)
    for role in ONLINE if split is not None else _ROLES:
        if old in root.roles[role].keyids:
            root.revoke_key(old, role)
            root.add_key(key.public_key, role)
    told = f"was revoked on {now}: {revoke}" if revoke else f"was replaced on {now}"
    successor = _successor(before, root, [signing, key], {} if split is not None else {old: told})
    with _locked(home):
        _write_private(home / f"{key.public_key.keyid}.pem", key)
        if split is not None:
            _write_private(split, signing)
        write_atomically(home / root_name(before.version + 1), successor)
        (home / f"{old}.pem").unlink(missing_ok=True)
    return load_publisher(home)


def _require_free(split: Path, home: Path, present: CryptoSigner | None) -> None:
    """Refuse a file for the key that is split off.

    It is one that cannot be made, has another key than *present*, or goes wherever *home* is given to.
    """
    if home.resolve() in split.resolve().parents:
        because = f"{home} has the key that it is to be apart from"
    elif not os.path.lexists(split):
        because = "" if split.absolute().parent.is_dir() else f"{split.parent} is no folder"
    elif split.is_file():
        same = present is not None and split.read_bytes() == present.private_bytes
        because = "" if same else f"{split} exists, and may be the only copy of another key"
    else:
        because = f"{split} is no file"
    if because:
        raise PublishError("the key was not split", because=because, next_step="name another file")


# Files ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold the lock of *home* for the length of the block."""
    with storing(f"using {home}", instead=_INSTEAD):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold(home / ".lock", "the publisher's key"):
            yield


def _first_root(home: Path) -> ChannelRoot:
    """Make a key and the first root, which trusts that key alone.

    A key without a root is of a run that was killed, and is taken.
    """
    from tuf.api.metadata import Metadata, Root

    made = sorted(home.glob("*.pem"))
    if len(made) > 1 or (home / root_name(2)).exists():
        raise SignatureError(
            _UNUSABLE,
            because=f"{home / root_name(1)} is missing",
            next_step=f"put it back, or move {home} away to make another key",
        )
    key, now = _read_key(made[0]) if made else _new_key(), datetime.now(UTC).replace(microsecond=0)
    ours = {"channel": home.name, "written": stamp(now)}
    root = Root(expires=now + _ROOT_LASTS, consistent_snapshot=True, unrecognized_fields={OURS: ours})
    for role in _ROLES:
        root.add_key(key.public_key, role)
    metadata = Metadata(root)
    metadata.sign(key)
    _write_private(home / f"{key.public_key.keyid}.pem", key)
    write_atomically(home / root_name(1), metadata.to_bytes())
    warn(f"a key for channel {home.name} was made: {home}; keep a copy of that folder in a safe place")
    return ChannelRoot(metadata.to_bytes())


def _successor(old: ChannelRoot, new: Root, keys: Sequence[CryptoSigner], former: dict[str, str]) -> bytes:
    """Return *new* as the next version, which readers accept as the successor of *old*."""
    from tuf.api.metadata import Metadata

    now = datetime.now(UTC).replace(microsecond=0)
    new.version, new.expires = old.version + 1, now + _ROOT_LASTS
    ours = {**new.unrecognized_fields[OURS], "written": stamp(now), "former": {**old.former, **former}}
    new.unrecognized_fields[OURS] = ours
    metadata = Metadata(new)
    for key in keys:
        metadata.sign(key, append=True)
    return read_root(metadata.to_bytes(), "the new root", old).data


def _new_key() -> CryptoSigner:
    from securesystemslib.signer import CryptoSigner

    return CryptoSigner.generate_ed25519()


def _write_private(path: Path, key: CryptoSigner) -> None:
    """Write *key* to *path*, readable by its owner alone from the first moment."""
    with storing(f"writing {path}", instead=_INSTEAD), atomic_file(path, mode=0o600) as handle:
        os.write(handle, key.private_bytes)


def _read_key(path: Path, replaced: str = "") -> CryptoSigner:
    """Return the private key at *path*; *replaced* says how it is replaced, if not as a channel's."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.signer import CryptoSigner

    try:
        with path.open("rb") as stream:
            state = os.fstat(stream.fileno())
            data = stream.read(1 << 16)
        key = load_pem_private_key(data, None)
    except (OSError, ValueError, TypeError) as error:
        raise SignatureError(_UNUSABLE, because=f"{path} cannot be read as a private key") from error
    if state.st_mode & _READABLE_BY_OTHERS or state.st_uid != os.geteuid():
        raise SignatureError(
            _UNUSABLE,
            because=f"others can read {path}: mode {stat.S_IMODE(state.st_mode):o}, owner {state.st_uid}",
            next_step=f"chmod 600 {path}; if others may have read it, then also replace it: "
            + (replaced or f"sparkwright channel key rotate {path.parent.name} --revoke REASON"),
        )
    if not isinstance(key, Ed25519PrivateKey):
        raise SignatureError(_UNUSABLE, because=f"{path} is no ed25519 key")
    return CryptoSigner(key)
