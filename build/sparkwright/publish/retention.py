"""Decide which wheels and generations of a channel are kept; pure functions.

A policy without a limit keeps every generation for ever, and all that any of them lists. With a limit, a
channel lists the wheels that its kept generations promoted, and the newest wheel of each series and platform.
What a kept generation lists stays, so that a rollback finds it: a wheel goes once it is not listed any more,
and the last generation that listed it was dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sparkwright.companion.package import PROJECT as COMPANION
from sparkwright.publish.channel import ChannelState, ListedWheel, moment, newest_first
from sparkwright.publish.policy import ChannelPolicy
from sparkwright.publish.series import series_of


@dataclass(frozen=True)
class Retained:
    """The part of a channel that its policy keeps.

    Attributes:
        oldest: number of the oldest kept generation.
        files: the wheels that stay listed, in their order.
        dropped: the wheels that do not.
    """

    oldest: int
    files: tuple[ListedWheel, ...]
    dropped: tuple[ListedWheel, ...]


def retained(generations: Sequence[ChannelState], policy: ChannelPolicy, now: datetime) -> Retained | None:
    """Return what *policy* keeps of a channel, `None` if it keeps everything.

    Args:
        generations: those that are still kept, the newest first; at least one.
        policy: the channel's.
        now: the present time.
    """
    if policy.keeps_everything:
        return None
    present = generations[0]
    kept = _kept(generations, policy, now)
    promoted = {state.action.detail for state in kept if state.action.kind == "promote"}
    newest = _newest_of_each(present.files)
    stays = newest | {file.sha256 for file in present.files if file.filename in promoted}
    return Retained(
        kept[-1].generation,
        tuple(file for file in present.files if file.sha256 in stays),
        tuple(file for file in present.files if file.sha256 not in stays),
    )


def _kept(
    generations: Sequence[ChannelState], policy: ChannelPolicy, now: datetime
) -> Sequence[ChannelState]:
    """Return the newest of *generations* that the policy keeps; it counts promotions and rollbacks."""
    number, days = policy.keep_generations or 0, policy.keep_days or 0
    count, end = 0, 1
    for place, state in enumerate(generations, 1):
        count += state.action.kind in {"promote", "rollback"}
        recent = moment(state.written, f"generation {state.generation}") >= now - timedelta(days=days)
        if not (count <= number or recent):
            break
        end = place
    return generations[:end]


def _newest_of_each(files: Sequence[ListedWheel]) -> set[str]:
    """Return the digests of the newest wheel of each project, series and platform, if possible not yanked.

    Of companions, that of each FlashInfer, CUDA, card and platform: versions of these end with a digest, so
    that the newest one is the one that came last.
    """
    found: dict[tuple[str, str, str], str] = {}
    ordered = sorted(newest_first(files), key=lambda file: file.uploaded * _is_companion(file), reverse=True)
    for file in sorted(ordered, key=lambda file: file.yanked is not None):
        tags = "-".join(file.filename.removesuffix(".whl").split("-")[-3:])
        line = file.version.rpartition(".k")[0] if _is_companion(file) else series_of(file.version)
        found.setdefault((file.project, line, tags), file.sha256)
    return set(found.values())


def _is_companion(file: ListedWheel) -> bool:
    return file.project == COMPANION
