"""Remove from a target what no kept generation of any channel names.

A channel whose policy has ``keep-days`` keeps the generations that were present within that time, and all
that they list. `Pruner.prune` works in an order in which no state between is wrong for anybody:

1. each such channel gets a generation without the wheels that came into it before that time, but for the
   newest of each series and platform;
2. with the lease of the target, so that no pointer moves, what no kept generation of any channel names and
   was written more than a day ago is removed: states before wheels.

A pruner that is killed leaves the rest to the next one; one that was stopped until another writer took its
lease removes nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sparkwright.base.events import emit, task
from sparkwright.companion.wheel import is_companion
from sparkwright.lock.model import series_of
from sparkwright.publish.channel import (
    CHANNELS,
    ChannelState,
    ListedWheel,
    channel_names,
    metadata_path,
    newest_first,
    stamp,
    state_path,
)
from sparkwright.publish.evidence import ChannelPolicy
from sparkwright.publish.promote import ChannelPublisher
from sparkwright.publish.target import Entry, Lease

GRACE = timedelta(days=1)
"""For which unnamed files are left alone: a publisher may be about to name them."""
_UNIT = re.compile(
    r"(wheels/[0-9a-f]{2}/[0-9a-f]{64})/."
    r"|(channels/[a-z0-9-]+/(?:states/[0-9a-f]{64}|[1-9][0-9]*\.(?:targets|snapshot))\.json)$"
)


@dataclass
class PruneReport:
    """The result of a prune.

    Attributes:
        dropped: names of the wheels that each channel lists no longer.
        removed: bytes that were removed, by folder of a wheel or file of a channel.
        kept: number of those that kept generations name, or that are too young.
    """

    dropped: dict[str, list[str]] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    kept: int = 0


@dataclass(frozen=True)
class Pruner:
    """The means to prune one target.

    Attributes:
        policies: by channel; a channel without one is kept for ever.
    """

    publisher: ChannelPublisher
    policies: Mapping[str, ChannelPolicy]
    now: datetime

    def prune(self) -> PruneReport:
        """Prune the target."""
        report, target = PruneReport(), self.publisher.target
        channels = channel_names(target)
        if not channels and not target.files("wheels"):
            return report  # and nothing is written into what may be a folder of another kind
        for channel in channels:
            policy, state = self.policies.get(channel), self.publisher.require(channel).state
            dropped = [] if policy is None else self._dropped(state, policy)
            if policy and dropped:
                self.publisher.drop(channel, dropped, policy, self.now)
                report.dropped[channel] = [file.filename for file in dropped]
        with Lease(target, self.publisher.patience_s) as lease:
            named = self._named()
            units: dict[str, dict[str, Entry]] = {}
            for top in (CHANNELS, "wheels"):
                for path, entry in target.files(top).items():
                    if unit := unit_of(path):
                        units.setdefault(unit, {})[path] = entry
            latest = (self.now - GRACE).timestamp()
            due = [
                unit
                for unit, files in units.items()
                if unit not in named and all(entry.modified < latest for entry in files.values())
            ]
            report.kept = len(units) - len(due)
            with task("prune", total=len(due), unit="units") as progress:
                for unit in due:
                    lease.require()
                    for path in units[unit]:
                        target.remove(path)
                    report.removed[unit] = sum(entry.size for entry in units[unit].values())
                    emit("publish.removed", path=unit, size=report.removed[unit])
                    progress.advance(1)
        return report

    def _dropped(self, state: ChannelState, policy: ChannelPolicy) -> list[ListedWheel]:
        """Return the wheels that *policy* keeps in the list of a channel no longer."""
        if policy.keep_days is None:
            return []
        since, newest = stamp(self.now - timedelta(days=policy.keep_days)), _newest_of_each(state.files)
        return [file for file in state.files if file.uploaded < since and file.sha256 not in newest]

    def _named(self) -> set[str]:
        """Return the units that kept generations name."""
        named: set[str] = set()
        for channel in channel_names(self.publisher.target):
            present = self.publisher.require(channel)
            for role in ("targets", "snapshot"):
                named.add(metadata_path(channel, f"{present.version}.{role}.json"))
            policy = self.policies.get(channel)
            days = policy.keep_days if policy else None
            since = "" if days is None else stamp(self.now - timedelta(days=days))
            ended = "9"  # the present generation has not ended
            for state in self.publisher.history(present.state):
                if ended < since:  # it was followed by another one before that time
                    break
                named |= {state_path(channel, state.digest), *(file.folder for file in state.files)}
                ended = state.written
        return named


def unit_of(path: str) -> str:
    """Return the unit that the file at *path* is removed with; empty for files that are never removed.

    A unit is the folder of a wheel, a state, or a file of signed metadata.
    """
    found = _UNIT.match(path)
    return found[1] or found[2] if found else ""


def _newest_of_each(files: Sequence[ListedWheel]) -> set[str]:
    """Return the digests of the newest wheel of each project, series and platform, if possible not yanked.

    Of companions, that of each FlashInfer, CUDA, card and platform: versions of these end with a digest, so
    that the newest one is the one that came last.
    """
    found: dict[tuple[str, str, str], str] = {}
    companions = {file.sha256 for file in files if is_companion(file.filename)}
    ordered = sorted(
        newest_first(files), key=lambda file: file.uploaded * (file.sha256 in companions), reverse=True
    )
    for file in sorted(ordered, key=lambda file: file.yanked is not None):
        tags = "-".join(file.filename.removesuffix(".whl").split("-")[-3:])
        line = file.version.rpartition(".k")[0] if file.sha256 in companions else series_of(file.version)
        found.setdefault((file.project, line, tags), file.sha256)
    return set(found.values())
