"""The newest wheel that a channel offers for a machine: verified by its signature, fetched once."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from sparkwright.base.digests import sha256_file
from sparkwright.base.errors import TamperedError, UnknownNameError
from sparkwright.lock import Artifact
from sparkwright.publish.channel import newest_first
from sparkwright.publish.mirror import FolderMirror, HttpMirror, open_mirror
from sparkwright.publish.series import series_of
from sparkwright.publish.verification import VerifyChannelOptions, verify_channel
from sparkwright.upstream import read_settings
from sparkwright.upstream.download import fetch_artifact
from sparkwright.wheel.names import parse_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

    from sparkwright.publish.channel import ChannelState, ListedWheel
    from sparkwright.publish.seen import SeenChannels
    from sparkwright.publish.verification import PinnedRoot
    from sparkwright.store import Store

_UNVERIFIED_BYTES = VerifyChannelOptions(wheels="none")  # the digest is checked when the wheel is fetched


def channel_wheel(
    store: Store,
    place: str,
    machine: str,
    *series: str,
    roots: Sequence[PinnedRoot],
    memory: SeenChannels,
    now: datetime,
    offline: bool = False,
) -> Path:
    """Return the newest wheel of the channel at *place* for *machine*, with the bytes that were signed.

    Args:
        store: where a fetched wheel goes.
        place: address or folder of a channel, such as ``…/channels/stable``.
        machine: such as ``aarch64``.
        series: take a wheel of one of these series; of any, if none is given.
        roots: the pinned roots of publishers.
        memory: the generations that were seen before.
        now: the present time.
        offline: ask no address.

    Raises:
        UnknownNameError: *place* names no channel, or the channel has no such wheel.
        TamperedError: the wheel is not the one that was signed.
        SignatureError: a statement is damaged, or not signed by a trusted key.
        NotInStoreError: *place* is an address, and the network is off.
    """
    settings = read_settings(offline=offline)
    mirror, channel = open_mirror(place, settings)
    if not channel:
        raise UnknownNameError(f"{place} names no channel", next_step="give one, such as …/channels/stable")
    verified = verify_channel(mirror, channel, roots, memory=memory, now=now, options=_UNVERIFIED_BYTES)
    chosen = newest_fitting(verified.state, machine, *series)
    if isinstance(mirror, FolderMirror):
        wheel = mirror.folder / chosen.path
        if not wheel.is_file() or sha256_file(wheel) != chosen.sha256:
            raise TamperedError(
                f"{wheel} is not the wheel of channel {channel}",
                because="its bytes are not those that were signed" if wheel.is_file() else "it is not there",
                next_step="copy the channel again from where it was published",
            )
        return wheel
    assert isinstance(mirror, HttpMirror)  # noqa: S101 - there are two kinds
    address = chosen.elsewhere or f"{mirror.url}/{quote(chosen.path, safe='/')}"
    artifact = Artifact(filename=chosen.filename, sha256=chosen.sha256, size=chosen.size)
    fetch_artifact(store, artifact, settings, address=address)
    return store.named_file(chosen.sha256, chosen.filename)


def newest_fitting(state: ChannelState, machine: str, *series: str) -> ListedWheel:
    """Return the newest wheel of a channel for *machine*, of one of *series* if any is given.

    Raises:
        UnknownNameError: there is none.
    """
    offered = newest_first([file for file in state.files if file.yanked is None])
    for file in offered:
        of_them = not series or series_of(file.version) in series
        if of_them and parse_name(file.filename).machine == machine:
            return file
    of_series = f" of series {' or '.join(series)}" if series else ""
    raise UnknownNameError(
        f"channel {state.channel} has no wheel{of_series} for {machine}",
        because=f"it offers {', '.join(file.filename for file in offered) or 'none at all'}",
        next_step="name another channel or series",
    )
