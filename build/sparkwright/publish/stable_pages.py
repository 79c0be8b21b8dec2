"""The pages of a channel at the address that never changes, which follow its pointer."""

from __future__ import annotations

from collections.abc import Callable

from sparkwright.base.errors import LostRaceError
from sparkwright.publish.channel import CHANNELS, STABLE, ChannelState
from sparkwright.publish.target import Target, require_signed

_TRIES = 5


def write_stable_pages(target: Target, channel: str, read: Callable[[], ChannelState]) -> None:
    """Write the pages of the pointer's generation to the stable address, also while another one moves it.

    Each page is read before the pointer and replaced only if it is still what was read: then no page goes
    back to an older generation, however many publishers do this at once.

    Args:
        target: the target.
        channel: the channel, which exists.
        read: returns what its pointer names, read now.

    Raises:
        LostRaceError: others changed the channel all the time.
        TamperedError: a page of the generation is missing, or was changed.
    """
    stable = f"{CHANNELS}/{channel}/{STABLE}"
    for _ in range(_TRIES):
        names = read().pages
        tags = {name: target.read(f"{stable}/{name}") for name in names}
        pages = _pages(target, read())
        if pages.keys() != names.keys():
            continue
        try:
            for name, data in pages.items():
                found = tags[name]
                if found is None or found.data != data:
                    target.replace(f"{stable}/{name}", data, expected=found.tag if found else None)
        except LostRaceError:
            continue
        return
    raise LostRaceError(
        f"the pages of {channel} were not all written",
        because="other publishers changed the channel all the time",
        next_step="run the same command again: the channel itself is changed, its pages follow",
    )


def _pages(target: Target, state: ChannelState) -> dict[str, bytes]:
    """Return the pages of *state* as they were written, in their order; the root pages last.

    Raises:
        TamperedError: one is missing, or was changed.
    """
    pages = {}
    for name in sorted(state.pages, key=lambda name: ("/" not in name, name)):
        path, what = f"{state.folder}/{name}", f"page {name} of generation {state.generation}"
        stored = target.read(path)
        again = f"write another generation: sparkwright channel renew {state.channel}"
        data = stored.data if stored else None
        pages[name] = require_signed(data, state.pages[name], what, path, again)
    return pages
