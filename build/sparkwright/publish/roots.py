"""The root of a channel: whose keys a reader trusts, and how they change.

A channel is a repository of The Update Framework (TUF), with a root and keys of its own. A root has a
version; the next one is signed by the keys that this one trusts for roots, so a reader who pinned any version
by its digest follows rotations from there. What a root trusts is all that counts: what a former key signed is
refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sparkwright.base.errors import SignatureError, UntrustedKeyError

if TYPE_CHECKING:
    from securesystemslib.signer import Key
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
    """One version of the root of a channel; trust in it comes from its digest, or from the version before.

    Attributes:
        data: the bytes of the file.
    """

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


def read_root(data: bytes, what: str, before: ChannelRoot | None = None) -> ChannelRoot:
    """Return the root in *data*, signed by keys of its own; trust comes from *before*, or from its digest.

    Args:
        data: the bytes of the file.
        what: the file, for errors.
        before: the version that it has to follow.

    Raises:
        SignatureError: it is damaged, no root, or not the next version.
        UntrustedKeyError: it is not signed by keys of its own, or by those of *before*.
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
