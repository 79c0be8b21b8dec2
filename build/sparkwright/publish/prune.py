"""Remove from a target what no kept generation of any channel names.

`Pruner.prune` works in an order in which no state between is wrong for a reader or another publisher:

1. each channel with a limited policy gets a generation that lists no more than what is kept, and says which
   generation is the oldest kept one; pages and pointer first, as for every change;
2. with the lease of the target, so that no pointer moves: what no kept generation of any channel names is
   put on a list with the time;
3. what has been on that list for the period of grace is removed: pages of generations before wheels.

A pruner that is killed leaves the rest to the next one; one that was stopped until its lease ended removes
nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.digests import to_json
from sparkwright.base.errors import PublishError
from sparkwright.base.events import emit, task
from sparkwright.publish.channel import CHANNELS, POINTER, STABLE, metadata_path, moment, stamp, unit_of
from sparkwright.publish.lease import Lease
from sparkwright.publish.policy import ChannelPolicy
from sparkwright.publish.promote import ChannelPublisher
from sparkwright.publish.retention import retained

UNNAMED = "prune/unnamed.json"
"""The list: since when each unit is named by nothing."""
LEAST_GRACE_S = 3600.0
"""The shortest period of grace, in seconds."""
_CHANNEL_PARTS = 3


@dataclass(frozen=True)
class PruneUnit:
    """A folder of a wheel or a generation, or a file of metadata, that no kept generation names.

    Attributes:
        files: bytes of its files by path.
        since: when that was found, in UTC.
    """

    path: str
    files: Mapping[str, int]
    why: str
    since: str

    @property
    def size(self) -> int:
        """Its bytes."""
        return sum(self.files.values())


@dataclass
class PruneReport:
    """The result of a prune.

    Attributes:
        dropped: names of the wheels that each channel lists no longer.
        generations: the new generation of each channel that was changed.
        condemned: units that wait for the end of their period of grace.
        removed: units that were removed.
        kept: number of units that kept generations name.
    """

    dropped: dict[str, list[str]] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    condemned: list[PruneUnit] = field(default_factory=list)
    removed: list[PruneUnit] = field(default_factory=list)
    kept: int = 0


class _Listed(NamedTuple):
    """The list of unnamed units.

    Attributes:
        since: when each was found.
        changed: it has to be written.
        tag: of the present one.
        former: pages at stable addresses that their channels have no longer.
    """

    since: dict[str, str]
    changed: bool
    tag: str | None
    former: list[str]


@dataclass(frozen=True)
class Pruner:
    """The means to prune one target.

    Attributes:
        publisher: changes the channels; its target is pruned.
        policies: by channel; a channel without one is kept for ever.
        now: the present time.
        grace: time between finding that nothing names a unit and its removal, at least an hour.
        dry_run: report what would be removed now, and write nothing.
    """

    publisher: ChannelPublisher
    policies: Mapping[str, ChannelPolicy]
    now: datetime
    grace: timedelta
    dry_run: bool = False

    def prune(self) -> PruneReport:
        """Prune the target.

        Raises:
            LostRaceError: other writers had the lease, or took it over.
            SignatureError, UntrustedKeyError, TamperedError, ReplayedChannelError: a channel cannot be read
                to its oldest kept generation; nothing is removed then.
            PublishError: the list is damaged.
            UploadError: the target cannot be read or written, or writes nothing conditionally.
            ValueError: the period of grace is less than an hour.
        """
        if self.grace.total_seconds() < LEAST_GRACE_S:
            raise ValueError(f"the period of grace is {self.grace}, less than an hour")
        report = PruneReport()
        oldest = {channel: self._drop(channel, report) for channel in self._channels()}
        if self.dry_run:
            self._look(oldest, report)
            return report
        for channel in oldest:
            self.publisher.write_stable_pages(channel)
        with Lease(self.publisher.target, self.publisher.patience_s) as lease:
            self._remove(lease, oldest, report)
        return report

    def _channels(self) -> list[str]:
        """Return the names of all channels at the target."""
        parts = [path.split("/") for path in self.publisher.target.sizes(CHANNELS)]
        return sorted(part[1] for part in parts if len(part) == _CHANNEL_PARTS and part[2] == POINTER)

    def _drop(self, channel: str, report: PruneReport) -> int:
        """Make a generation of *channel* without what its policy drops; return the oldest kept one."""
        policy, current = self.policies.get(channel), self.publisher.require(channel)
        kept = retained(list(self.publisher.history(current.state)), policy, self.now) if policy else None
        if policy is None or kept is None or (not kept.dropped and kept.oldest == current.state.oldest):
            return current.state.oldest
        report.dropped[channel] = [file.filename for file in kept.dropped]
        if not self.dry_run:
            report.generations[channel] = self.publisher.drop(current, kept, policy, self.now).generation
        return kept.oldest

    def _named(self, oldest: Mapping[str, int]) -> set[str]:
        """Return the units that kept generations name, and the present pages at stable addresses."""
        named: set[str] = set()
        for channel in self._channels():
            present = self.publisher.require(channel)
            for role in ("targets", "snapshot"):
                named.add(metadata_path(channel, f"{present.version}.{role}.json"))
            named |= {metadata_path(channel, f"{STABLE}/{name}") for name in present.state.pages}
            for state in self.publisher.history(present.state):
                if state.generation >= oldest.get(channel, 1):
                    named |= {state.folder, *(file.folder for file in state.files)}
        return named

    def _look(self, oldest: Mapping[str, int], report: PruneReport) -> _Listed:
        """Report what waits and what is due; return the list as it has to be."""
        before, tag = self._listed()
        named = self._named(oldest)
        units: dict[str, dict[str, int]] = {}
        former = []
        for top in ("wheels", CHANNELS):
            for path, size in self.publisher.target.sizes(top).items():
                if unit := unit_of(path):
                    units.setdefault(unit, {})[path] = size
                elif f"/{STABLE}/" in path and path not in named:
                    former.append(path)
        after = {unit: before.get(unit, stamp(self.now)) for unit in units if unit not in named}
        report.kept = len(units) - len(after)
        for unit in sorted(after):  # "channels/" sorts before "wheels/": pages before what they link to
            found = PruneUnit(unit, units[unit], _why(unit, oldest), after[unit])
            due = self.now - moment(found.since, UNNAMED) >= self.grace
            (report.removed if due else report.condemned).append(found)
        return _Listed(after, after != before, tag, former)

    def _remove(self, lease: Lease, oldest: Mapping[str, int], report: PruneReport) -> None:
        """Bring the list up to date, and remove what has been on it for long enough."""
        target, listed = self.publisher.target, self._look(oldest, report)
        tag = listed.tag
        if listed.changed:
            tag = target.replace(UNNAMED, to_json(listed.since) + b"\n", expected=tag)
        for path in listed.former:
            target.remove(path)
        with task("prune", total=len(report.removed), unit="units") as progress:
            for found in report.removed:
                lease.require()
                for path in sorted(found.files):
                    target.remove(path)
                emit("publish.removed", path=found.path, size=found.size, why=found.why)
                progress.advance(1)
        if report.removed:
            left = {found.path: found.since for found in report.condemned}
            target.replace(UNNAMED, to_json(left) + b"\n", expected=tag)

    def _listed(self) -> tuple[dict[str, str], str | None]:
        """Return the list, and its tag; `None` if there is none yet.

        Raises:
            PublishError: it is damaged.
        """
        stored = self.publisher.target.read(UNNAMED)
        if stored is None:
            return {}, None
        try:
            return decode_json(stored.data, dict[str, str]), stored.tag
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PublishError(
                f"{self.publisher.target.url(UNNAMED)} cannot be read",
                because=str(error),
                next_step="remove that file: the next prune writes it again",
            ) from error


def _why(unit: str, oldest: Mapping[str, int]) -> str:
    """Return the reason for which nothing names *unit*, for people."""
    if not unit.startswith(CHANNELS):
        return "no kept generation of any channel lists it"
    _, channel, name = unit.split("/")
    if name.endswith(".json"):
        return "a later version of these metadata is published"
    if channel not in oldest:
        return f"channel {channel} has no pointer"
    if int(name.partition("-")[0]) < oldest[channel]:
        return f"it is before generation {oldest[channel]}, the oldest of {channel} that is kept"
    return f"no generation of {channel} follows on it: its publisher did not finish, or lost a race"
