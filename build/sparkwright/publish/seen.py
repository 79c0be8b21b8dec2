"""The newest generation of each channel, and the newest root of each publisher, that this user has seen.

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
from sparkwright.base.errors import ConfigError, ReplayedChannelError, UntrustedKeyError
from sparkwright.base.events import warn
from sparkwright.publish.channel import ChannelState, moment
from sparkwright.publish.trust import PinnedRoot, read_root
from sparkwright.store import hold, storing, write_atomically

_INSTEAD = "set XDG_STATE_HOME to a writable folder"


class SeenGeneration(Model, frozen=True):
    """The newest generation that was seen of one channel.

    Attributes:
        written: when it was made, in UTC.
        publisher: id of the one who signed it; empty where that was not noted.
    """

    channel: str
    generation: int
    digest: str
    written: str
    publisher: str = ""


class _Memory(Model, frozen=True):
    """The file.

    Attributes:
        channels: by the channel's origin.
        roots: envelopes of the newest roots by publisher, in base64.
        places: ids of publishers by the address at which a channel of theirs was verified.
    """

    format: Literal[1] = 1
    channels: dict[str, SeenGeneration] = msgspec.field(default_factory=dict)
    roots: dict[str, str] = msgspec.field(default_factory=dict)
    places: dict[str, str] = msgspec.field(default_factory=dict)


@dataclass(frozen=True)
class RecalledChannels:
    """The generations that had been seen when `SeenChannels.recall` was called.

    Attributes:
        path: the file that they were read from.
        channels: by the channel's origin.
        places: ids of publishers by the address of their target.
    """

    path: Path
    channels: Mapping[str, SeenGeneration]
    places: Mapping[str, str]

    def require_publisher(self, address: str, publisher: str) -> None:
        """Refuse a channel of *publisher* at an address where that of another one was verified.

        Raises:
            UntrustedKeyError: a channel of another publisher was verified there before.
        """
        known = self.places.get(address, publisher)
        if known != publisher:
            raise UntrustedKeyError(
                f"{address} has another publisher than before",
                because=f"publisher {known[:16]} was verified there; this channel is of {publisher[:16]}, "
                "whose root is pinned too",
                next_step="ask the publisher of before if that is right; if it is: "
                "sparkwright channel verify ADDRESS --trust FILE, with the root of the new one",
            )

    def require_fresh(self, state: ChannelState) -> None:
        """Refuse a generation that is older than one that was seen, by number or date, or a second one.

        Raises:
            ReplayedChannelError: it is.
        """
        known = self.channels.get(state.origin)
        if known is None or (state.generation, state.digest) == (known.generation, known.digest):
            return
        if state.generation < known.generation:
            raise ReplayedChannelError(
                f"channel {state.channel} went back to generation {state.generation}",
                because=f"generation {known.generation} of {known.written} was seen before: this mirror is "
                "stale, or somebody replays an old state",
                next_step=f"take another mirror; what was seen is in {self.path}",
            )
        written, before = (moment(one.written, f"channel {state.channel}") for one in (state, known))
        if state.generation > known.generation and written < before:
            raise ReplayedChannelError(
                f"generation {state.generation} of {state.channel} was written before its predecessors",
                because=f"it is dated {state.written}, generation {known.generation} was {known.written}: "
                "a former key may have been stolen, and hides that by an old date",
                next_step="ask its publisher which one is right before you install from it",
            )
        if state.generation == known.generation:
            raise ReplayedChannelError(
                f"channel {state.channel} has two generations {state.generation}",
                because=f"the one seen before has digest {known.digest[:12]}, this one {state.digest[:12]}: "
                "its key is used in two places, or was stolen",
                next_step="ask its publisher which one is right before you install from it",
            )

    def is_newest(self, state: ChannelState) -> bool:
        """Tell if *state* is the newest generation that was seen of its channel."""
        known = self.channels.get(state.origin)
        return known is not None and (state.generation, state.digest) == (known.generation, known.digest)


@dataclass(frozen=True)
class SeenChannels:
    """The generations that were seen, in one file.

    Attributes:
        path: the file; made when something is remembered.
    """

    path: Path

    def recall(self) -> RecalledChannels:
        """Return what was seen until now, to be called before a pointer is read.

        A pointer that was read before another process on this machine published or saw the next generation
        is late, and no replay.

        Raises:
            ConfigError: the file is damaged.
        """
        memory = self._read()
        return RecalledChannels(self.path, memory.channels, memory.places)

    def remember(self, state: ChannelState, *, publisher: str = "", address: str = "") -> None:
        """Remember *state*, unless a newer generation was seen meanwhile, and its publisher.

        Args:
            state: the generation.
            publisher: id of the publisher who signed it; empty if it is unsigned.
            address: the target that it was read from; empty if that says nothing about the publisher.

        Raises:
            StorageError: the disk is full or cannot be written.
        """
        seen = SeenGeneration(
            channel=state.channel, generation=state.generation, digest=state.digest, written=state.written,
            publisher=publisher,
        )  # fmt: skip
        with storing(f"writing {self.path}", instead=_INSTEAD), self._locked():
            before = memory = self._read()
            known = memory.channels.get(state.origin)
            if known is None or known.generation < state.generation:
                memory = msgspec.structs.replace(memory, channels={**memory.channels, state.origin: seen})
            if publisher and address:
                memory = msgspec.structs.replace(memory, places={**memory.places, address: publisher})
            if memory != before:
                self._write(memory)

    def root(self, publisher: str) -> PinnedRoot | None:
        """Return the newest root of *publisher* that was seen."""
        found = self._read().roots.get(publisher)
        if found is None:
            return None
        data = base64.b64decode(found)
        return PinnedRoot(read_root(data, f"a root in {self.path}"), data)

    def remember_root(self, newest: PinnedRoot) -> None:
        """Remember *newest*, which was verified.

        Raises:
            StorageError: the disk is full or cannot be written.
        """
        if self.root(newest.root.publisher) == newest:
            return
        with storing(f"writing {self.path}", instead=_INSTEAD), self._locked():
            memory = self._read()
            self._write(msgspec.structs.replace(memory, roots=_with_root(memory, newest)))

    def begin_again(self, pinned: PinnedRoot) -> None:
        """Replace all that is remembered of a publisher by *pinned*, unless that is the root remembered.

        What was seen before may be of a thief, whose later versions would be preferred. If it was not, a
        revocation may be forgotten by that, so there is a warning.

        Raises:
            StorageError: the disk is full or cannot be written.
        """
        with storing(f"writing {self.path}", instead=_INSTEAD), self._locked():
            memory, root, seen = self._read(), pinned.root, self.root(pinned.root.publisher)
            if seen == pinned:
                return
            if seen is not None and seen.root.version > root.version:
                warn(
                    f"version {seen.root.version} of this publisher's root, of {seen.root.written}, was seen "
                    "before and counts no more, nor what it revoked; if no thief made it, pin that one"
                )
            channels = {
                origin: one for origin, one in memory.channels.items() if one.publisher != root.publisher
            }
            self._write(msgspec.structs.replace(memory, channels=channels, roots=_with_root(memory, pinned)))

    def _locked(self) -> AbstractContextManager[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return hold(self.path.with_name(f".{self.path.name}.lock"), "the memory of channels")

    def _read(self) -> _Memory:
        try:
            return decode_json(self.path.read_bytes(), _Memory)
        except FileNotFoundError:
            return _Memory()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{self.path} cannot be read",
                because=str(error),
                next_step="remove it; replays of what was seen before are not noticed then",
            ) from error

    def _write(self, memory: _Memory) -> None:
        write_atomically(self.path, to_json(to_builtins(memory)) + b"\n")


def _with_root(memory: _Memory, newest: PinnedRoot) -> dict[str, str]:
    return {**memory.roots, newest.root.publisher: base64.b64encode(newest.data).decode()}


def default_memory() -> SeenChannels:
    """Return the user's memory, ``sparkwright/channels.json`` in the user's state folder."""
    from platformdirs import user_state_path

    return SeenChannels(user_state_path("sparkwright") / "channels.json")
