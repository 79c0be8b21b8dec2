"""What this user has seen: newest generations of channels, newest roots, and whose channel is where.

An older generation with a good signature is a replay: a mirror is stale, or somebody rolled it back.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from sparkwright.base.config import Model, decode_json, to_builtins
from sparkwright.base.digests import to_json
from sparkwright.base.errors import ConfigError
from sparkwright.base.events import warn
from sparkwright.publish.roots import PinnedRoot
from sparkwright.store import hold, storing, write_atomically

_INSTEAD = "set XDG_STATE_HOME to a writable folder"


class SeenChannel(Model, frozen=True):
    """The newest generation that was seen of one channel.

    Attributes:
        publisher: id of the one who signed it.
        root: version of the root that verified it.
        version: of its timestamp, which starts again with the keys of a later root.
        files: its signed metadata by role, in base64.
        own: this machine wrote it.
    """

    publisher: str
    root: int
    version: int
    files: dict[str, str]
    own: bool = False

    def metadata(self) -> dict[str, bytes]:
        """Return the signed metadata by role."""
        return {role: base64.b64decode(text) for role, text in self.files.items()}


class Memory(Model, frozen=True):
    """The file.

    Attributes:
        channels: by publisher and origin: anybody can name another's origin.
        roots: the newest roots by publisher, in base64.
        places: ids of publishers by the address at which a channel of theirs was verified.
    """

    format: Literal[1] = 1
    channels: dict[str, SeenChannel] = msgspec.field(default_factory=dict)
    roots: dict[str, str] = msgspec.field(default_factory=dict)
    places: dict[str, str] = msgspec.field(default_factory=dict)

    def channel(self, publisher: str, origin: str) -> SeenChannel | None:
        """Return the newest generation of the channel of *publisher* with that *origin* that was seen."""
        return self.channels.get(f"{publisher}/{origin}")

    def root(self, publisher: str) -> PinnedRoot | None:
        """Return the newest root of *publisher* that was seen."""
        found = self.roots.get(publisher)
        return PinnedRoot(base64.b64decode(found)) if found else None

    def with_root(self, root: PinnedRoot) -> Memory:
        """Return the same with *root* as the newest of its publisher."""
        roots = {**self.roots, root.publisher: base64.b64encode(root.data).decode()}
        return msgspec.structs.replace(self, roots=roots)


@dataclass(frozen=True)
class SeenChannels:
    """What was seen, in one file.

    Attributes:
        path: the file; made when something is remembered.
    """

    path: Path

    def recall(self) -> Memory:
        """Return what was seen until now, to be called before a channel is read.

        A pointer that was read before another process on this machine published or saw the next generation
        is late, and no replay.

        Raises:
            ConfigError: the file is damaged.
        """
        try:
            return decode_json(self.path.read_bytes(), Memory)
        except FileNotFoundError:
            return Memory()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{self.path} cannot be read",
                because=str(error),
                next_step="remove it; replays of what was seen before are not noticed then",
            ) from error

    def remember(
        self,
        origin: str,
        version: int,
        metadata: Mapping[str, bytes],
        root: PinnedRoot,
        *,
        address: str = "",
        keep_root: bool = True,
        own: bool = False,
    ) -> None:
        """Remember a generation and its root, unless newer ones were seen meanwhile.

        Args:
            origin: the channel's.
            version: of its timestamp.
            metadata: its signed metadata by role.
            root: the newest version of the root that verified it.
            address: the channel's place; empty if that says nothing about the publisher.
            keep_root: false if the reader named another root for this one call.
            own: this machine wrote it.

        Raises:
            StorageError: the disk is full or cannot be written.
        """
        files = {role: base64.b64encode(data).decode() for role, data in metadata.items()}
        with storing(f"writing {self.path}", instead=_INSTEAD), self._locked():
            before = memory = self.recall()
            known = memory.channel(root.publisher, origin)
            seen = SeenChannel(
                publisher=root.publisher, root=root.version, version=version, files=files, own=own
            )
            if known is None or (known.root, known.version) < (seen.root, seen.version):
                channels = {**memory.channels, f"{root.publisher}/{origin}": seen}
                memory = msgspec.structs.replace(memory, channels=channels)
            newest = memory.root(root.publisher)
            if keep_root and (newest is None or newest.version < root.version):
                memory = memory.with_root(root)
            if address:
                memory = msgspec.structs.replace(memory, places={**memory.places, address: root.publisher})
            if memory != before:
                self._write(memory)

    def begin_again(self, pinned: PinnedRoot) -> None:
        """Replace all that is remembered of a publisher by *pinned*, unless that is the root remembered.

        What was seen before may be of a thief, whose later versions would be preferred. If it was not, a
        revocation may be forgotten by that, so there is a warning.

        Raises:
            StorageError: the disk is full or cannot be written.
        """
        with storing(f"writing {self.path}", instead=_INSTEAD), self._locked():
            memory = self.recall()
            seen = memory.root(pinned.publisher)
            if seen == pinned:
                return
            if seen is not None and seen.version > pinned.version:
                warn(
                    f"version {seen.version} of this publisher's root, of {seen.written}, was seen "
                    "before and counts no more, nor what it revoked; if no thief made it, pin that one"
                )
            channels = {o: one for o, one in memory.channels.items() if one.publisher != pinned.publisher}
            self._write(msgspec.structs.replace(memory, channels=channels).with_root(pinned))

    def _locked(self) -> AbstractContextManager[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return hold(self.path.with_name(f".{self.path.name}.lock"), "the memory of channels")

    def _write(self, memory: Memory) -> None:
        write_atomically(self.path, to_json(to_builtins(memory)) + b"\n")


def default_memory() -> SeenChannels:
    """Return the user's memory, ``sparkwright/channels.json`` in the user's state folder."""
    from platformdirs import user_state_path

    return SeenChannels(user_state_path("sparkwright") / "channels.json")
