"""Verifying a channel as a reader: signature, key, time, generation, and every byte that it names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import SignatureError, TamperedError
from sparkwright.base.events import task
from sparkwright.publish.channel import (
    CHANNELS,
    CLOCK_SKEW,
    ChannelState,
    ListedWheel,
    metadata_path,
    require_channel_name,
    stamp,
)
from sparkwright.publish.folder_target import FolderTarget
from sparkwright.publish.roots import ChannelRoot
from sparkwright.publish.target import Mirror, require_signed
from sparkwright.publish.trust import Trust, place_of

WheelChoice = Literal["all", "newest", "none"]
_ELSEWHERE = "do not install from there; take another mirror"
_METADATA = re.compile(r"timestamp\.json|[1-9][0-9]*\.(root|targets|snapshot)\.json")
_STATE = re.compile(r"states/([0-9a-f]{64})\.json")


@dataclass(frozen=True)
class VerifiedChannel:
    """A channel that was verified.

    Attributes:
        state: its present generation.
        signer: the id of the key that signed it.
        wheels: the wheels whose bytes were read.
        root: the root by which it was verified.
    """

    state: ChannelState
    signer: str
    wheels: tuple[ListedWheel, ...]
    root: ChannelRoot


def verify_channel(
    mirror: Mirror, channel: str, trust: Trust, *, wheels: WheelChoice = "all"
) -> VerifiedChannel:
    """Verify *channel* at *mirror*, and remember its generation.

    *wheels* are those that are read, with what is beside them; yanked ones only with ``all``.

    Raises:
        SparkwrightError: see `sparkwright.publish.repository.read_channel`.
        TamperedError: a wheel or a file beside it is not what was signed, or a file is of no channel.
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
    """Return the entry of a wheel that the user has, in a verified channel.

    Raises:
        TamperedError: the channel lists other bytes under its name, does not list it, or took it back.
    """
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
