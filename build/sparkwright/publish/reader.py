"""Read a channel: verify signature, key, time, generation and bytes, and fetch what it offers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import SignatureError, TamperedError, UnknownNameError
from sparkwright.base.events import task
from sparkwright.companion.wheel import FoundCompanion, companion_for, is_companion_for, needed_by
from sparkwright.lock.model import Artifact, series_of
from sparkwright.native.model import Target
from sparkwright.publish.channel import (
    CHANNELS,
    CLOCK_SKEW,
    ChannelState,
    ListedWheel,
    metadata_path,
    require_channel_name,
    stamp,
)
from sparkwright.publish.keys import ChannelRoot
from sparkwright.publish.places import HttpMirror, open_mirror
from sparkwright.publish.target import FolderTarget, Mirror, require_signed
from sparkwright.publish.trust import Trust, place_of
from sparkwright.store.paths import Store
from sparkwright.upstream.download import adopt_copy, fetch_artifact
from sparkwright.upstream.network import IndexSettings, read_settings
from sparkwright.wheel.names import parse_name

WheelChoice = Literal["all", "newest", "none"]
_ELSEWHERE = "do not install from there; take another mirror"
_METADATA = re.compile(r"timestamp\.json|[1-9][0-9]*\.(root|targets|snapshot)\.json")
_STATE = re.compile(r"states/([0-9a-f]{64})\.json")


@dataclass(frozen=True)
class VerifiedChannel:
    """A channel that was verified."""

    state: ChannelState
    signer: str
    wheels: tuple[ListedWheel, ...]
    root: ChannelRoot


def verify_channel(
    mirror: Mirror, channel: str, trust: Trust, *, wheels: WheelChoice = "all"
) -> VerifiedChannel:
    """Verify *channel* at *mirror*, and remember its generation.

    *wheels* are those that are read, with what is beside them; yanked ones only with ``all``.
    """
    from sparkwright.publish.repository import read_channel  # with tuf, which takes a while to import

    place = place_of(mirror, require_channel_name(channel))
    read = read_channel(mirror.read, channel, trust, place)
    state, root = read.state, read.root
    assert root is not None  # noqa: S101 - it was verified
    if state.written > stamp(datetime.now(UTC) + CLOCK_SKEW):
        raise SignatureError(
            f"channel {channel} is from the future",
            because=f"it was written on {state.written}",
            next_step="check this machine's clock",
        )
    if isinstance(mirror, FolderTarget):
        _require_nothing_else(mirror, channel)
    chosen: Sequence[ListedWheel] = {"all": state.files, "newest": state.offered[:1], "none": ()}[wheels]
    with task("verify wheels", total=sum(file.size for file in chosen), unit="bytes") as progress:
        for file in chosen:
            for path, (sha256, what) in file.beside.items():
                require_signed(mirror.read(path), sha256, what, mirror.url(path), _ELSEWHERE)
            _verify_wheel(mirror, file, state)
            progress.advance(file.size)
    return VerifiedChannel(state, read.signer, tuple(chosen), root)


def _require_nothing_else(mirror: FolderTarget, channel: str) -> None:
    """Refuse a file in a channel's folder that no publisher writes, such as a page that pip would take."""
    top = metadata_path(channel, "")
    for path in mirror.files(f"{CHANNELS}/{channel}"):
        name = path.removeprefix(top)
        stored = None if (mirror.folder / path).is_symlink() else mirror.read(path)
        state = _STATE.fullmatch(name)
        known = sha256_bytes(stored.data) == state[1] if state and stored else _METADATA.fullmatch(name)
        if not known:
            raise TamperedError(
                f"{path} is of no generation of channel {channel}",
                because="the publisher wrote no file of that name, and a client may take it",
                next_step=_ELSEWHERE,
            )


def _verify_wheel(mirror: Mirror, file: ListedWheel, state: ChannelState) -> None:
    """Verify the bytes of a wheel."""
    found = mirror.digest(file.path, max(one.size for one in state.files))
    if found is None:
        raise TamperedError(f"{file.filename} is missing", because=f"{mirror.url(file.path)} does not exist")
    if found == (file.sha256, file.size):
        return
    other = state.find(found[0])
    raise TamperedError(
        f"{file.filename} was {'swapped' if other else 'changed'}",
        because=f"{other.filename} is in its place" if other
        else f"its SHA-256 is not the signed {file.sha256}; it has {found[1]} bytes of {file.size}",
        next_step=_ELSEWHERE,
    )  # fmt: skip


def require_listed(state: ChannelState, filename: str, sha256: str) -> ListedWheel:
    """Return the entry of a wheel that the user has, in a verified channel."""
    file = state.find(sha256)
    if file is None:
        named = next((one for one in state.files if one.filename == filename), None)
        raise TamperedError(
            f"{filename} is not the wheel of channel {state.channel}" if named
            else f"{filename} is not listed",
            because=f"its SHA-256 is {sha256}, the channel's {named.sha256}" if named
            else f"channel {state.channel} has no wheel of SHA-256 {sha256}",
            next_step="do not install it; fetch it from the channel",
        )  # fmt: skip
    if file.yanked is not None:
        raise TamperedError(
            f"{filename} was taken back",
            because=f"channel {state.channel} yanked it: {file.yanked}",
            next_step="install the newest wheel of the channel instead",
        )
    return file


# What a channel offers -------------------------------------------------------------------------------


_PROJECT = "vllm"


@dataclass(frozen=True)
class ChannelOffer:
    """The newest wheel of a verified channel, and what it is served with."""

    state: ChannelState
    chosen: ListedWheel
    store: Store
    mirror: Mirror
    settings: IndexSettings

    @cached_property
    def wheel(self) -> Path:
        """The wheel, with the bytes that were signed."""
        return self._fetched(self.chosen)

    @cached_property
    def runtime(self) -> Path | None:
        """Its locked runtime, likewise; `None` if it was promoted without one."""
        if not self.chosen.runtime:
            return None
        name = self.chosen.runtime_path.rpartition("/")[2]
        if self.store.find_intact(self.chosen.runtime) is None:
            data = signed_runtime(self.mirror, self.chosen)
            with self.store.scratch() as scratch:
                (scratch / name).write_bytes(data)
                self.store.adopt_file(scratch / name, self.chosen.runtime)
        return self.store.named_file(self.chosen.runtime, name)

    def companion(self, recipe: str, flashinfer: str, target: Target) -> FoundCompanion | None:
        """Return the companion of the channel with most kernels of a recipe; `None` if none has any."""
        offered = [
            self._fetched(file)
            for file in self.state.offered
            if is_companion_for(file.filename, flashinfer, target)
        ]
        return companion_for(offered, flashinfer, target, lambda record: needed_by(record, recipe))

    def _fetched(self, file: ListedWheel) -> Path:
        """Return a wheel with the bytes that were signed, as a copy: others may write to a folder."""
        artifact = Artifact(filename=file.filename, sha256=file.sha256, size=file.size)
        if isinstance(self.mirror, FolderTarget):
            adopt_copy(self.store, self.mirror.folder / file.path, artifact)
        else:
            assert isinstance(self.mirror, HttpMirror)  # noqa: S101 - there are two kinds
            fetch_artifact(self.store, artifact, self.settings, address=self.mirror.address(file.path))
        return self.store.named_file(file.sha256, file.filename)


def open_channel(
    store: Store, place: str, machine: str, *series: str, trust: Trust, offline: bool = False
) -> ChannelOffer:
    """Return the newest wheel of the channel at *place* for *machine*, with its locked runtime.

    It is of one of *series* if any is given. *place* is the address or folder of a channel, such as
    ``…/channels/stable``.
    """
    settings = read_settings(offline=offline)
    mirror, channel = open_mirror(place, settings)
    # The digest of the wheel is checked when it is fetched.
    state = verify_channel(mirror, channel, trust, wheels="none").state
    return ChannelOffer(state, newest_fitting(state, machine, *series), store, mirror, settings)


def signed_runtime(mirror: Mirror, file: ListedWheel) -> bytes:
    """Return the locked runtime of the wheel *file* of a verified channel, with the wheel's digest in it."""
    if not file.runtime:
        raise UnknownNameError(
            f"{file.filename} has no locked runtime",
            because="it was promoted without one, so that no requirements with digests can be written",
            next_step="ask its publisher to promote it again with one: sparkwright lock runtime",
        )
    return require_signed(
        mirror.read(file.runtime_path),
        file.runtime,
        f"the runtime of {file.filename}",
        mirror.url(file.runtime_path),
        "copy the channel again from where it was published",
    )


def requirements(mirror: Mirror, file: ListedWheel) -> bytes:
    """Return what pip and uv install *file* of a verified channel by: its address, and digests of everything.

    Whatever a mirror serves then, other bytes are refused, and no index is asked for the wheel.
    """
    own, new = f"{file.project}=={file.version} ", f"{file.project} @ {mirror.url(file.path)} "
    return signed_runtime(mirror, file).replace(own.encode(), new.encode(), 1)


def newest_fitting(state: ChannelState, machine: str, *series: str) -> ListedWheel:
    """Return the newest wheel of vLLM in a channel for *machine*, of one of *series* if any is given."""
    wanted = {one for one in series if one}
    offered = [file for file in state.offered if file.project == _PROJECT]
    for file in offered:
        if (not wanted or series_of(file.version) in wanted) and parse_name(file.filename).machine == machine:
            return file
    of_series = f" of series {' or '.join(sorted(wanted))}" if wanted else ""
    raise UnknownNameError(
        f"channel {state.channel} has no wheel{of_series} for {machine}",
        because=f"it offers {', '.join(file.filename for file in offered) or 'none at all'}",
        next_step="name another channel or series",
    )
