"""The root of a channel: whose keys a reader trusts, and how they change.

A channel is a repository of The Update Framework (TUF), with a root and keys of its own. A root has a
version; the next one is signed by the keys that this one trusts for roots, so a reader who pinned any version
follows rotations from there. What a root trusts is all that counts: what a former key signed is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkwright.base.errors import SignatureError, UntrustedKeyError

if TYPE_CHECKING:
    from securesystemslib.signer import Key
    from tuf.api.metadata import Metadata, Root

ONLINE = ("timestamp", "snapshot", "targets")
"""The roles that sign each generation; ``root`` signs roots alone."""
OURS = "sparkwright"
"""The field of signed metadata with what TUF has no place for."""
_MOST_VERSIONS = 1000


def root_name(version: int) -> str:
    """Return the name of the file of that version."""
    return f"{version}.root.json"


@dataclass(frozen=True)
class PinnedRoot:
    """One version of the root of a channel; trust in it comes from `first_root` or from its digest.

    Attributes:
        data: the bytes of the file.
    """

    data: bytes

    @cached_property
    def metadata(self) -> Metadata[Root]:
        """Its content with signatures."""
        from tuf.api.metadata import Metadata

        from sparkwright.publish import identities  # noqa: F401 - which makes identities known as keys

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
    def publisher(self) -> str:
        """The id of the key that signed the first version."""
        return str(self._ours.get("publisher", ""))

    @property
    def written(self) -> str:
        """When it was made, in UTC."""
        return str(self._ours.get("written", ""))

    @property
    def former(self) -> dict[str, str]:
        """What became of keys that are trusted no more, by their ids."""
        found = self._ours.get("former")
        return {str(key): str(told) for key, told in found.items()} if isinstance(found, dict) else {}

    @property
    def version(self) -> int:
        """1 for the first."""
        return int(self.root.version)

    def keys(self, role: str) -> dict[str, Key]:
        """Return the keys of *role* by their ids."""
        return {key: self.root.keys[key] for key in self.root.roles[role].keyids if key in self.root.keys}


def read_root(data: bytes, what: str) -> PinnedRoot:
    """Return the root in *data*, without trusting it: anybody can list another's key in one.

    Raises:
        SignatureError: it is damaged, or no root.
        UntrustedKeyError: it is not signed by a key that it lists.
    """
    pinned = _parsed(data, what)
    _require_signed(pinned, pinned, what)
    return pinned


def _parsed(data: bytes, what: str) -> PinnedRoot:
    """Return the root in *data*; no signature is verified.

    Raises:
        SignatureError: it is damaged, or no root.
    """
    from tuf.api.metadata import Root
    from tuf.api.serialization import DeserializationError

    pinned = PinnedRoot(data)
    try:
        is_root = isinstance(pinned.root, Root)
    except (DeserializationError, RecursionError) as error:
        raise SignatureError(
            f"{what} is damaged",
            because=f"it is no root of a channel, {len(data)} bytes: it was cut off, or never was one",
        ) from error
    if not (is_root and pinned.publisher and pinned.channel):
        raise SignatureError(f"{what} is another kind of statement", because="it is no root of a channel")
    return pinned


def _require_signed(root: PinnedRoot, by: PinnedRoot, what: str) -> None:
    """Refuse *root* if the keys that *by* trusts for roots have not signed it.

    Raises:
        UntrustedKeyError: they have not.
    """
    from tuf.api.exceptions import UnsignedMetadataError

    try:
        by.root.verify_delegate("root", root.metadata.signed_bytes, root.metadata.signatures)
    except UnsignedMetadataError as error:
        raise UntrustedKeyError(
            f"{what} is signed by a key that may not sign roots",
            because=f"version {by.version} trusts {', '.join(key[:16] for key in by.keys('root'))} for them",
            next_step="its publisher signs by that key: sparkwright channel key rotate NAME --roots-key FILE",
        ) from error


def first_root(data: bytes, what: str) -> PinnedRoot:
    """Return the first version of a root, which has to be signed by the key whose id is the publisher's.

    That key has to be its only one, so that whoever compared the id knows every key that may sign for it.

    Raises:
        SignatureError: it is damaged.
        UntrustedKeyError: it is a later version, has other keys, or is signed by another one.
    """
    pinned = read_root(data, what)
    if pinned.version != 1:
        raise UntrustedKeyError(
            f"{what} cannot be trusted by its publisher's id",
            because=f"it is version {pinned.version}, and only the versions from 1 on show who made it",
            next_step=f"put all versions before it beside it ({root_name(1)} and so on, as in the channel), "
            "or compare its SHA-256: sparkwright channel key pin FILE --digest SHA256",
        )
    if list(pinned.root.keys) != [pinned.publisher] or not _is_of_its_id(pinned.root.keys[pinned.publisher]):
        raise UntrustedKeyError(
            f"{what} was not made by its publisher",
            because=f"a first version has no key but {pinned.publisher[:16]}, which names the publisher",
            next_step="do not use it; ask the publisher for the file, and for its SHA-256",
        )
    return pinned


def next_root(root: PinnedRoot, data: bytes, what: str) -> PinnedRoot:
    """Return the root in *data*, the successor of *root*.

    Raises:
        SignatureError: it is damaged, or not the next version.
        UntrustedKeyError: it is not signed by a key that *root* trusts for roots.
    """
    following = _parsed(data, what)
    _require_signed(following, root, what)
    _require_signed(following, following, what)
    require_follows(following, root, what)
    if following.version != root.version + 1:
        raise SignatureError(
            f"{what} does not follow the root before it",
            because=f"it is version {following.version}, after version {root.version}",
        )
    return following


def require_follows(later: PinnedRoot, root: PinnedRoot, what: str) -> None:
    """Refuse a *later* root that states another publisher or channel than *root*: TUF knows neither.

    Raises:
        SignatureError: it does.
    """
    if (later.publisher, later.channel) != (root.publisher, root.channel):
        raise SignatureError(
            f"{what} does not follow the root before it",
            because=f"it is of channel {later.channel} of publisher {later.publisher[:16]}, "
            f"after one of {root.channel} of {root.publisher[:16]}",
            next_step="do not install from there; its publisher states who they are in the first root alone",
        )


def root_of_file(path: Path) -> PinnedRoot:
    """Return the root in the file *path*, proven by the versions before it, which are beside it.

    Raises:
        SignatureError: a version is damaged, or is not the next one.
        UntrustedKeyError: the first is not signed by the publisher's key alone, a later one by none of the
            version before, or versions are missing.
    """
    data = path.read_bytes()
    version = read_root(data, str(path)).version
    before = [path.with_name(root_name(number)) for number in range(1, min(version, _MOST_VERSIONS))]
    chain = [*((file.read_bytes(), str(file)) for file in before if file.is_file()), (data, str(path))]
    root = first_root(*chain[0])
    for following in chain[1:]:
        root = next_root(root, *following)
    return root


def _is_of_its_id(key: Key) -> bool:
    """Tell if *key* is the ed25519 key whose id it states.

    A key of another kind may have the same public value beside what it is verified by, such as an identity.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from securesystemslib.signer import SSlibKey

    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(str(key.keyval.get("public"))))
    except ValueError:
        return False
    return SSlibKey.from_crypto(public) == key


def name_of(key: Key) -> str:
    """Return the name of *key* for people: its id, or the identity that sigstore confirms."""
    identity = key.keyval.get("identity")
    return f"sigstore {identity}" if identity else str(key.keyid)
