"""Remove from a target what no kept generation of any channel names.

`Pruner.prune` works in an order in which no state between is wrong for a reader or another publisher:

1. each channel with a limited policy gets a generation that lists no more than what is kept, and says which
   generation is the oldest kept one; pages and pointer first, as for every change;
2. what no kept generation of any channel names is condemned; see `sparkwright.publish.condemned`;
3. what has been condemned for the period of grace is marked, the pointers are read again, and its files are
   removed: pages of generations before wheels.

A pruner that is killed leaves the rest to the next one. One that is stopped for minutes removes nothing more.
"""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from sparkwright.base.errors import LostRaceError
from sparkwright.base.events import emit, task
from sparkwright.publish.channel import CHANNELS, POINTER, ChannelState, moment, stamp
from sparkwright.publish.condemned import (
    CONDEMNED,
    LEAST_GRACE_S,
    CondemnedUnit,
    read_condemned,
    unit_of,
    write_condemned,
)
from sparkwright.publish.policy import ChannelPolicy
from sparkwright.publish.promote import ChannelPublisher
from sparkwright.publish.retention import retained

LEASE_S = 600.0
"""Seconds after which another pruner takes over an unfinished removal; the first stops after half of it."""
_BATCH = 20
_TRIES = 10


@dataclass(frozen=True)
class PruneUnit:
    """A folder of a wheel or a generation that no kept generation names.

    Attributes:
        files: bytes of its files by path.
        since: when it was condemned, in UTC.
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
        others: units that another pruner is removing.
        kept: number of units that kept generations name.
    """

    dropped: dict[str, list[str]] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    condemned: list[PruneUnit] = field(default_factory=list)
    removed: list[PruneUnit] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    kept: int = 0


@dataclass(frozen=True)
class Pruner:
    """The means to prune one target.

    Attributes:
        publisher: changes the channels; its target is pruned.
        policies: by channel; a channel without one is kept for ever.
        now: the time at which it begins.
        grace: time between condemning and removing, at least an hour.
        lease_s: seconds after which an unfinished removal is taken over.
        started: the same time by this machine's clock, in seconds.
        token: names this pruner in the list.
    """

    publisher: ChannelPublisher
    policies: Mapping[str, ChannelPolicy]
    now: datetime
    grace: timedelta
    lease_s: float = LEASE_S
    started: float = field(default_factory=time.time)
    token: str = field(default_factory=lambda: f"{platform.node()}:{os.getpid()}:{uuid.uuid4().hex[:8]}")

    def prune(self) -> PruneReport:
        """Prune the target.

        Raises:
            LostRaceError: publishers kept changing a channel or the list.
            SignatureError, UntrustedKeyError, TamperedError, ReplayedChannelError: a channel cannot be read
                to its oldest kept generation; nothing is removed then.
            UploadError: the target cannot be read or written, or writes nothing conditionally.
            ValueError: the period of grace is less than an hour.
        """
        if self.grace.total_seconds() < LEAST_GRACE_S:
            raise ValueError(f"the period of grace is {self.grace}, less than an hour")
        report = PruneReport()
        for channel in self._channels():
            self._drop(channel, report)
            self.publisher.write_stable_pages(channel)
        with task("prune", unit="units") as progress:
            while batch := self._claim(report):
                self._remove(batch, report)
                progress.advance(len(batch))
        return report

    @property
    def _present(self) -> datetime:
        """The present time: marks of a long prune are as new as they are."""
        return self.now + timedelta(seconds=time.time() - self.started)

    # What is kept --------------------------------------------------------------------------------

    def _channels(self) -> list[str]:
        """Return the names of all channels at the target."""
        parts = [path.split("/") for path in self.publisher.target.list(CHANNELS)]
        return sorted(part[1] for part in parts if len(part) == 3 and part[2] == POINTER)  # noqa: PLR2004

    def _kept_generations(self, channel: str) -> list[ChannelState]:
        """Return the generations of *channel* from the present to the oldest kept one."""
        return list(self.publisher.history(self.publisher.require(channel).state))

    def _drop(self, channel: str, report: PruneReport) -> None:
        """Make a generation of *channel* without what its policy does not keep, if it lists any of that."""
        policy = self.policies.get(channel)
        if policy is None or policy.keeps_everything:
            return
        current = self.publisher.require(channel)
        kept = retained(list(self.publisher.history(current.state)), policy, self.now)
        if kept is None or (not kept.dropped and kept.oldest == current.state.first_kept):
            return
        state = self.publisher.drop(current, kept, policy, self.now)
        report.generations[channel] = state.generation
        report.dropped[channel] = [file.filename for file in kept.dropped]

    def _named(self) -> set[str]:
        """Return the units that kept generations of all channels name."""
        found = set()
        for channel in self._channels():
            for state in self._kept_generations(channel):
                found |= {state.folder, *(file.folder for file in state.files)}
        return found

    def _units(self) -> dict[str, dict[str, int]]:
        """Return the files of all units at the target, with their bytes."""
        found: dict[str, dict[str, int]] = {}
        for top in ("wheels", CHANNELS):
            for path, size in self.publisher.target.sizes(top).items():
                if unit := unit_of(path):
                    found.setdefault(unit, {})[path] = size
        return found

    # What goes -----------------------------------------------------------------------------------

    def _claim(self, report: PruneReport) -> list[PruneUnit]:
        """Bring the list up to date, and mark a batch of units in it; return the batch.

        Raises:
            LostRaceError: others kept changing the list.
        """
        target = self.publisher.target
        for _ in range(_TRIES):
            before, tag = read_condemned(target)
            units, named = self._units(), self._named()
            after = {unit: self._line(unit, before.get(unit)) for unit in units if unit not in named}
            # An active removal of another pruner may have no files left; its own end clears the line.
            after |= {unit: line for unit, line in before.items() if line.removing and not self._stale(line)}
            due = sorted(unit for unit, line in after.items() if self._due(line))[:_BATCH]
            marked = {unit: self._marked(after[unit]) for unit in due}
            if before != {**after, **marked}:
                try:
                    write_condemned(target, {**after, **marked}, tag)
                except LostRaceError:
                    continue
            report.kept = len(named)
            report.others = sorted(unit for unit, line in after.items() if line.removing and unit not in due)
            waiting = (unit for unit, line in after.items() if not line.removing and unit not in due)
            report.condemned = [_unit(unit, units, after) for unit in sorted(waiting)]
            return [_unit(unit, units, marked) for unit in due]
        raise LostRaceError(
            "the target was not pruned",
            because=f"others kept changing {CONDEMNED}",
            next_step="run the same command again",
        )

    def _line(self, unit: str, known: CondemnedUnit | None) -> CondemnedUnit:
        """Return the line of an unnamed *unit*, the *known* one if there is one."""
        return known or CondemnedUnit(since=stamp(self.now), why=self._why(unit))

    def _why(self, unit: str) -> str:
        if not unit.startswith(CHANNELS):
            return "no kept generation of any channel lists it"
        _, channel, folder = unit.split("/")
        pointed = self.publisher.read(channel)
        if pointed is None:
            return f"channel {channel} has no pointer"
        oldest = pointed.state.first_kept
        if int(folder.partition("-")[0]) < oldest:
            return f"it is before generation {oldest}, the oldest of {channel} that is kept"
        return f"no generation of {channel} follows on it: its publisher did not finish, or lost a race"

    def _due(self, line: CondemnedUnit) -> bool:
        """Tell if a unit may be removed by this pruner now."""
        if line.removing:
            return self._stale(line)
        return self.now - moment(line.since, CONDEMNED) >= self.grace

    def _stale(self, line: CondemnedUnit) -> bool:
        """Tell if a removal that began is so old that its pruner has stopped."""
        age = self._present - moment(line.removing, CONDEMNED) if line.removing else timedelta()
        return age >= timedelta(seconds=self.lease_s)

    def _marked(self, line: CondemnedUnit) -> CondemnedUnit:
        return msgspec.structs.replace(line, removing=stamp(self._present), by=self.token)

    def _remove(self, batch: list[PruneUnit], report: PruneReport) -> None:
        """Remove the files of *batch*, whose units are marked, and take them out of the list.

        Raises:
            LostRaceError: it took so long that another pruner may have taken them over.
        """
        began, named = time.time(), self._named()
        # A publisher that knows no list, or was stopped for longer than the grace, may have been here.
        going = [unit for unit in batch if unit.path not in named]
        for unit in going:  # "channels/" sorts before "wheels/": pages before what they link to
            for path in sorted(unit.files):
                if abs(time.time() - began) > self.lease_s / 2:
                    raise LostRaceError(
                        f"{unit.path} was not wholly removed",
                        because=f"this prune was held up for more than {self.lease_s / 2:.0f} s",
                        next_step="run the same command again: it goes on with what is left",
                    )
                self.publisher.target.remove(path)
            emit("publish.removed", path=unit.path, size=unit.size, why=unit.why)
        self._clear({unit.path for unit in batch})
        report.removed += going

    def _clear(self, done: Iterable[str]) -> None:
        """Take the lines of *done* out of the list."""
        for _ in range(_TRIES):
            before, tag = read_condemned(self.publisher.target)
            mine = {unit for unit in done if unit in before and before[unit].by == self.token}
            try:
                write_condemned(
                    self.publisher.target, {k: v for k, v in before.items() if k not in mine}, tag
                )
            except LostRaceError:
                continue
            return
        raise LostRaceError(
            "the list of removals was not cleared",
            because=f"others kept changing {CONDEMNED}",
            next_step=f"run the same command again in {self.lease_s / 60:.0f} minutes",
        )


def _unit(path: str, units: Mapping[str, Mapping[str, int]], lines: Mapping[str, CondemnedUnit]) -> PruneUnit:
    return PruneUnit(path, units.get(path, {}), lines[path].why, lines[path].since)
