"""A channel: a named, signed, movable pointer into wheels that never change.

Every change makes a new *generation*, a `ChannelState` that lists its wheels and names its predecessor by
digest. At a target,

* ``wheels/AA/SHA256/`` holds a wheel, its METADATA, its statements and its evidence,
* ``channels/NAME/GENERATION-DIGEST/`` holds the pages of one generation and its state, ``channel.json``,
* ``channels/NAME/`` is a repository of The Update Framework (TUF), whose one target is the present state:
  ``timestamp.json`` is the pointer, ``N.root.json`` and the like are its signed metadata,
* ``channels/NAME/simple/`` holds the present pages again, at an address that never changes.

The two folders of pages are equally deep, so that a page has the same bytes, and one digest, in both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from sparkwright.base.config import Model, convert, to_builtins
from sparkwright.base.digests import sha256_bytes, to_json
from sparkwright.base.errors import ConfigError, NewerFormatError, SignatureError
from sparkwright.lock.runtime import SUFFIX as RUNTIME_SUFFIX
from sparkwright.publish.pages import ProjectStatus, PublishedFile
from sparkwright.publish.series import index_pages, series_pages

CHANNELS = "channels"
POINTER = "timestamp.json"
STATE = "channel.json"
STABLE = "simple"
CLOCK_SKEW = timedelta(minutes=10)
"""By which the clocks of a publisher and a reader may differ."""
_FORMAT = 1
_UP = "../../../../"
_UNIT = re.compile(
    r"(wheels/[0-9a-f]{2}/[0-9a-f]{64}|channels/[a-z0-9-]+/[1-9][0-9]*-[0-9a-f]{12})/."
    r"|(channels/[a-z0-9-]+/[1-9][0-9]*\.(?:targets|snapshot)\.json)$"
)
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_MOST_WHEELS = 100_000


StatusMarker = Literal["active", "archived", "quarantined", "deprecated"]
"""A status of PEP 792."""


class ListedWheel(Model, frozen=True):
    """One wheel of a channel.

    Attributes:
        project: its project's name, normalized after PEP 503.
        version: its PEP 440 version.
        sha256: digest of its bytes.
        size: in bytes.
        requires_python: PEP 440 specifier, or empty.
        uploaded: when it came into the channel, in UTC.
        promotion: SHA-256 of the statement by which it did.
        yanked: reason of its yank; `None` if it is not yanked.
        provenance: SHA-256 of its provenance; empty if it has none.
        url: its absolute address where it is on another host than the pages; empty elsewhere.
        runtime: SHA-256 of its locked runtime, the packages that it is installed with; empty if it has none.
    """

    filename: str
    project: str
    version: str
    sha256: str
    size: int
    requires_python: str
    metadata_sha256: str
    uploaded: str
    promotion: str
    yanked: str | None = None
    provenance: str = ""
    url: str = ""
    runtime: str = ""

    @property
    def folder(self) -> str:
        """The folder of the wheel at a target."""
        return wheel_folder(self.sha256)

    @property
    def path(self) -> str:
        """The path of the wheel at a target."""
        return f"{self.folder}/{self.filename}"

    @property
    def promotion_path(self) -> str:
        """The path of the statement by which it came into the channel."""
        return f"{self.folder}/promotions/{self.promotion}.json"

    @property
    def provenance_path(self) -> str:
        """The path of its provenance."""
        return f"{self.folder}/provenance/{self.provenance}.json"

    @property
    def runtime_path(self) -> str:
        """The path of its locked runtime; empty if it has none."""
        return f"{self.folder}/runtime/{self.runtime}{RUNTIME_SUFFIX}" if self.runtime else ""

    def on_page(self) -> PublishedFile:
        """Return the entry of a page of the channel."""
        return PublishedFile(
            self.project, self.version, self.filename, self.sha256, self.size, self.requires_python,
            self.metadata_sha256,
            url=self.url or f"{_UP}{self.folder}/{quote(self.filename, safe='')}",
            upload_time=self.uploaded, yanked=self.yanked,
        )  # fmt: skip


class ChannelAction(Model, frozen=True):
    """The change that made a generation.

    Attributes:
        kind: ``renew`` writes the same content with a new expiry, ``prune`` drops what is kept no longer.
        detail: the wheel, the reason or the status.
        to: of a rollback, the generation whose content was taken.
    """

    kind: Literal["promote", "rollback", "renew", "status", "prune"]
    detail: str = ""
    to: int = 0


class ChannelState(Model, frozen=True):
    """One generation of a channel.

    Attributes:
        origin: random name that the first generation got; two channels of one name differ in it.
        generation: 1 for the first.
        previous: SHA-256 of the payload of the generation before; empty for the first.
        written: when it was made, in UTC.
        expires: when it is to be trusted no longer, in UTC.
        action: the change that made it.
        status: of its projects, after PEP 792.
        pages: SHA-256 of every page by its path below ``simple/``.
        oldest: number of the oldest generation that is kept.
    """

    channel: str
    origin: str
    generation: int
    previous: str
    written: str
    expires: str
    action: ChannelAction
    files: tuple[ListedWheel, ...]
    status: StatusMarker = "active"
    reason: str = ""
    pages: dict[str, str] = msgspec.field(default_factory=dict)
    format: int = _FORMAT
    oldest: int = 1

    @property
    def payload(self) -> bytes:
        """The canonical bytes, whose digest is signed."""
        return to_json(to_builtins(self))

    @property
    def digest(self) -> str:
        """The SHA-256 of the payload."""
        return sha256_bytes(self.payload)

    @property
    def folder(self) -> str:
        """The folder of this generation at a target."""
        return generation_folder(self.channel, self.generation, self.digest)

    @property
    def path(self) -> str:
        """The path of the state itself."""
        return f"{self.folder}/{STATE}"

    def find(self, sha256: str) -> ListedWheel | None:
        """Return the wheel with that digest, `None` if it is not listed."""
        return next((file for file in self.files if file.sha256 == sha256), None)


@dataclass(frozen=True)
class PointedChannel:
    """A channel as its pointer at a target describes it.

    Attributes:
        state: its present generation.
        tag: of the pointer, for replacing it.
        version: of the pointer.
    """

    state: ChannelState
    tag: str
    version: int


def wheel_folder(sha256: str) -> str:
    """Return the folder at a target of the wheel with that digest."""
    return f"wheels/{sha256[:2]}/{sha256}"


def unit_of(path: str) -> str:
    """Return the unit that the file at *path* is removed with; empty for files that are never removed.

    A unit is the folder of a wheel or a generation, or a file of signed metadata.
    """
    found = _UNIT.match(path)
    return found[1] or found[2] if found else ""


def generation_folder(channel: str, generation: int, digest: str) -> str:
    """Return the folder at a target of a generation whose payload has that digest.

    Two publishers may make a generation of one number; the digest keeps their pages apart.
    """
    return f"{CHANNELS}/{channel}/{generation}-{digest[:12]}"


def metadata_path(channel: str, name: str = POINTER) -> str:
    """Return the path of the pointer of *channel* at a target, or of other metadata of it."""
    return f"{CHANNELS}/{channel}/{name}"


def require_channel_name(name: str) -> str:
    """Return *name* if it can be a channel's.

    Raises:
        ConfigError: it cannot.
    """
    if not _NAME.fullmatch(name) or name == STABLE:
        raise ConfigError(
            f"{name!r} is no name of a channel",
            because="it takes lower-case letters, digits and hyphens, 63 at most",
            next_step="name one such as nightly, candidate or stable",
        )
    return name


def pages_of(state: ChannelState) -> dict[str, bytes]:
    """Return every page of *state* by its path below ``simple/``: each series' own, then those over all."""
    entries = [file.on_page() for file in state.files]
    status = ProjectStatus(state.status, state.reason)
    return {**series_pages(entries, status), **index_pages(entries, status)}


def with_pages(state: ChannelState) -> tuple[ChannelState, dict[str, bytes]]:
    """Return *state* with the digests of its pages, and the pages."""
    pages = pages_of(state)
    digests = {path: sha256_bytes(data) for path, data in pages.items()}
    return msgspec.structs.replace(state, pages=digests), pages


def decode_state(payload: bytes, channel: str, what: str) -> ChannelState:
    """Return the state that *payload*, whose digest was signed, describes.

    Args:
        payload: the bytes.
        channel: the name of the channel that was asked for.
        what: where it is from, for errors.

    Raises:
        NewerFormatError: it was written by a newer sparkwright.
        SignatureError: it is no state, or one of another channel.
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
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
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


def moment(text: str, what: str) -> datetime:
    """Return the time that *text* states.

    Raises:
        SignatureError: it states none, or one without a zone.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise SignatureError(f"{what} cannot be read", because=f"{text!r} is no time")
    return found


def stamp(at: datetime) -> str:
    """Return *at* as text, in UTC and whole seconds."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def newest_first(files: Sequence[ListedWheel]) -> list[ListedWheel]:
    """Return *files* by version, the newest first."""
    return sorted(files, key=lambda file: file.on_page().order, reverse=True)
