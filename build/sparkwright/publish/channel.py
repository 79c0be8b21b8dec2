"""A channel: a named, signed, movable list of wheels that never change.

Every change makes a new *generation*, a `ChannelState` that lists its wheels and names its predecessor by
digest. At a target,

* ``wheels/AA/SHA256/`` holds a wheel, its locked runtime and its evidence,
* ``channels/NAME/`` is a repository of The Update Framework (TUF), whose one target is the present state:
  ``timestamp.json`` is the pointer, ``N.root.json`` and the like are its signed metadata,
* ``channels/NAME/states/`` holds every state by its digest.

A channel has no pages for pip and uv: these verify no signature, and take whatever package a page adds. They
install from requirements by digest, see `sparkwright.publish.reader.requirements`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec
from packaging.version import InvalidVersion, Version

from sparkwright.base.config import Model, convert, to_builtins
from sparkwright.base.digests import sha256_bytes, to_json
from sparkwright.base.errors import ConfigError, NewerFormatError, SignatureError
from sparkwright.lock.runtime import SUFFIX as RUNTIME_SUFFIX
from sparkwright.publish.target import Stored, Target, require_signed

CHANNELS = "channels"
POINTER = "timestamp.json"
STATE = "channel.json"
"""The name of the state among the targets of TUF's metadata."""
CLOCK_SKEW = timedelta(minutes=10)
"""By which the clocks of a publisher and a reader may differ."""
_FORMAT = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_MOST_WHEELS = 100_000


class ListedWheel(Model, frozen=True):
    """One wheel of a channel.

    Attributes:
        project: its project's name, normalized after PEP 503.
        uploaded: when it came into the channel, in UTC.
        runtime: SHA-256 of its locked runtime, the packages that it is installed with; empty if it has none.
    """

    filename: str
    project: str
    version: str
    sha256: str
    size: int
    uploaded: str
    yanked: str | None = None
    runtime: str = ""
    evidence: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The folder of the wheel at a target."""
        return f"wheels/{self.sha256[:2]}/{self.sha256}"

    @property
    def path(self) -> str:
        """The path of the wheel at a target."""
        return f"{self.folder}/{self.filename}"

    @property
    def runtime_path(self) -> str:
        """The path of its locked runtime; empty if it has none."""
        return f"{self.folder}/runtime/{self.runtime}{RUNTIME_SUFFIX}" if self.runtime else ""

    @property
    def beside(self) -> dict[str, tuple[str, str]]:
        """The paths of the small files beside the wheel; of each its digest, and what it is for people."""
        files = {
            f"{self.folder}/evidence/{sha256}.json": (sha256, f"the {kind} of {self.filename}")
            for kind, sha256 in self.evidence.items()
        }
        if self.runtime:
            files[self.runtime_path] = self.runtime, f"the runtime of {self.filename}"
        return files


class ChannelAction(Model, frozen=True):
    """The change that made a generation.

    Attributes:
        kind: ``renew`` writes the same content with a new expiry, ``prune`` drops what is kept no longer.
        detail: the wheel, or the reason.
        to: of a rollback, the generation whose content was taken.
    """

    kind: Literal["promote", "rollback", "renew", "prune"]
    detail: str = ""
    to: int = 0


class ChannelState(Model, frozen=True):
    """One generation of a channel.

    Attributes:
        previous: SHA-256 of the payload of the generation before; empty for the first.
        written: when it was made, in UTC.
    """

    channel: str
    generation: int
    previous: str
    written: str
    expires: str
    action: ChannelAction
    files: tuple[ListedWheel, ...]
    format: int = _FORMAT

    @property
    def payload(self) -> bytes:
        """The canonical bytes, whose digest is signed."""
        return to_json(to_builtins(self))

    @property
    def digest(self) -> str:
        """The SHA-256 of the payload."""
        return sha256_bytes(self.payload)

    @property
    def offered(self) -> list[ListedWheel]:
        """The wheels that were not taken back, the newest first."""
        return newest_first([file for file in self.files if file.yanked is None])

    def find(self, sha256: str) -> ListedWheel | None:
        """Return the wheel with that digest, `None` if it is not listed."""
        return next((file for file in self.files if file.sha256 == sha256), None)


def metadata_path(channel: str, name: str = POINTER) -> str:
    """Return the path of the pointer of *channel* at a target, or of other metadata of it."""
    return f"{CHANNELS}/{channel}/{name}"


def state_path(channel: str, digest: str) -> str:
    """Return the path at a target of the state of *channel* whose payload has that digest."""
    return f"{CHANNELS}/{channel}/states/{digest}.json"


def require_channel_name(name: str) -> str:
    """Return *name* if it can be a channel's."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name of a channel",
            because="it takes lower-case letters, digits and hyphens, 63 at most",
            next_step="name one such as nightly, candidate or stable",
        )
    return name


def decode_state(payload: bytes, channel: str, what: str) -> ChannelState:
    """Return the state that *payload*, whose digest was signed, describes.

    *what* says where it is from, for errors.
    """
    try:
        value: Any = msgspec.json.decode(payload)
        number = value.get("format") if isinstance(value, dict) else None
        if isinstance(number, int) and number > _FORMAT:
            raise NewerFormatError(
                f"{what} cannot be read",
                because=f"it has format {number}, and this sparkwright reads up to {_FORMAT}",
                next_step="update sparkwright",
            )
        state = convert(value, ChannelState)
        newest_first(state.files)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, InvalidVersion) as error:
        raise SignatureError(f"{what} cannot be read", because=str(error)) from error
    if state.channel != channel:
        raise SignatureError(
            f"{what} is not of channel {channel}",
            because=f"it was signed as channel {state.channel}: somebody moved it",
            next_step="take another mirror",
        )
    listed = len(state.files)
    if listed > _MOST_WHEELS or len({file.sha256 for file in state.files}) != listed:
        raise SignatureError(f"{what} cannot be read", because="it lists a wheel twice, or too many wheels")
    return state


def channel_names(target: Target) -> list[str]:
    """Return the names of all channels at *target*."""
    parts = [path.split("/") for path in target.files(CHANNELS)]
    return sorted(name for _, name, *rest in parts if rest == [POINTER])


def history(read: Callable[[str], Stored | None], state: ChannelState) -> Iterator[ChannelState]:
    """Yield *state* and the kept generations before it, each by the digest that its successor names."""
    yield state
    while state.previous:
        path, what = (
            state_path(state.channel, state.previous),
            f"generation {state.generation - 1} of {state.channel}",
        )
        stored = read(path)
        if stored is None:  # `channel prune` removed it, and all before it
            return
        payload = require_signed(stored, state.previous, what, path, "take it from another copy")
        state = decode_state(payload, state.channel, what)
        yield state


def stamp(at: datetime) -> str:
    """Return *at* as text, in UTC and whole seconds."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def newest_first(files: Sequence[ListedWheel]) -> list[ListedWheel]:
    """Return *files* by version, the newest first."""
    return sorted(files, key=lambda file: (Version(file.version), file.filename), reverse=True)
