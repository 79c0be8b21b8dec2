"""The order of units: longest first, as far as memory allows, by pure functions; and their expected costs.

Longest first is Graham's LPT rule: its makespan is at most 4/3 of the best one (R. L. Graham, *Bounds on
multiprocessing timing anomalies*, 1969), while the order of a build file can leave a long unit for last.
"""

from __future__ import annotations

import heapq
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from statistics import median
from typing import Literal

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import NotEnoughMemoryError
from sparkwright.base.machine import MachineSnapshot, Pressure
from sparkwright.native.model import Cost, Target, Unit
from sparkwright.store.paths import Store

_OVERDUE = 0.1
"""The expected remaining time of a unit that is overdue, as a share of its time so far."""

# Memory pressure at which nothing is started while anything runs, and at which the youngest of several units
# is stopped. systemd-oomd and lmkd act at about the second; both are made for interactive machines.
HIGH = Pressure(some=20, full=5)
CRITICAL = Pressure(some=60, full=25)

Hold = Literal["", "jobs", "memory", "pressure", "alone"]


@dataclass(frozen=True)
class Waiting:
    """A unit that is to be compiled."""

    name: str
    expected: Cost
    alone: bool = False


@dataclass(frozen=True)
class Active:
    """A unit that is being compiled."""

    name: str
    expected: Cost
    elapsed: float = 0.0
    resident_mib: int = 0
    alone: bool = False

    @property
    def claim_mib(self) -> int:
        """Memory that it is expected to use beyond its present use."""
        return max(0, self.expected.mib - self.resident_mib)


@dataclass(frozen=True)
class JobLimits:
    """The resources that a build may use."""

    jobs: int
    reserve_mib: int


@dataclass(frozen=True)
class Decision:
    """The next step of the schedule.

    Attributes:
        hold: what prevents the start of the next unit, if anything.
    """

    start: str = ""
    stop: str = ""
    hold: Hold = ""
    reason: str = ""


def gib(mib: float) -> str:
    """Return *mib* as GiB for people: ``2.1``."""
    return f"{mib / 1024:.1f}"


def in_order(waiting: Iterable[Waiting]) -> list[Waiting]:
    """Return *waiting* in the order of starting: longest first, those that have to run alone last."""
    return sorted(waiting, key=lambda unit: (unit.alone, -unit.expected.seconds, unit.name))


def decide(
    waiting: Sequence[Waiting],
    running: Sequence[Active],
    machine: MachineSnapshot,
    limits: JobLimits,
    *,
    may_stop: bool = True,
) -> Decision:
    """Return the next step; call again until no unit is to be started.

    With nothing running and `hold` being ``memory``, no unit fits, and the caller can only wait.

    Args:
        waiting: the units to compile, in any order.
        running: the units that are being compiled.
        machine: snapshot of the machine.
        limits: the resources that the build may use.
        may_stop: whether a unit may be stopped; not right after another was, since pressure is an average.
    """
    pressure = machine.pressure or Pressure()
    if len(running) > 1 and may_stop and pressure.reaches(CRITICAL):
        youngest = min(running, key=lambda unit: (unit.elapsed, unit.name))
        return Decision(stop=youngest.name, hold="pressure", reason=f"memory pressure: {pressure}")
    if not waiting:
        return Decision()
    if any(unit.alone for unit in running):
        return Decision(hold="alone", reason="a unit runs that needs all memory for itself")
    if len(running) >= limits.jobs:
        return Decision(hold="jobs", reason=f"{len(running)} of {limits.jobs} jobs run")
    if running and pressure.reaches(HIGH):
        return Decision(hold="pressure", reason=f"memory pressure: {pressure}")
    return _first_that_fits(in_order(waiting), running, machine, limits)


def _first_that_fits(
    waiting: list[Waiting], running: Sequence[Active], machine: MachineSnapshot, limits: JobLimits
) -> Decision:
    free_mib = machine.available_mib - limits.reserve_mib - sum(unit.claim_mib for unit in running)
    for unit in waiting:
        if unit.expected.mib <= free_mib and not (unit.alone and running):
            return Decision(start=unit.name)
    first = waiting[0]
    if first.alone and running:
        return Decision(hold="alone", reason=f"{first.name} waits until nothing runs beside it")
    free = f"{gib(max(0, free_mib))} GiB free"
    return Decision(
        hold="memory", reason=f"memory: {free}, the unit is expected to take {gib(first.expected.mib)}"
    )


# Before the start ----------------------------------------------------------------------------


def default_reserve_mib(machine: MachineSnapshot) -> int:
    """Return the memory that a build leaves to everything else: a sixteenth, and 1 GiB at least."""
    return max(1024, machine.total_mib // 16)


def limits_for(units: Sequence[Waiting], machine: MachineSnapshot, jobs: int | None = None) -> JobLimits:
    """Return the limits for compiling *units*: *jobs* at once, or as many as there are cores.

    A unit that does not fit even alone is refused before any is started.
    """
    wanted = max(1, machine.cores if jobs is None else jobs)
    limits = JobLimits(jobs=wanted, reserve_mib=default_reserve_mib(machine))
    largest = max(units, key=lambda unit: (unit.expected.mib, unit.name), default=None)
    if largest is not None and largest.expected.mib > machine.available_mib - limits.reserve_mib:
        raise too_large(largest, machine, limits)
    return limits


def too_large(unit: Waiting, machine: MachineSnapshot, limits: JobLimits) -> NotEnoughMemoryError:
    """Return the error for a *unit* that does not fit, even alone."""
    return NotEnoughMemoryError(
        f"{unit.name} cannot be compiled on this machine now",
        because=(
            f"it is expected to take {gib(unit.expected.mib)} GiB, and of {gib(machine.total_mib)} GiB "
            f"{gib(machine.available_mib)} are available, {gib(limits.reserve_mib)} of which stay free "
            "for everything else"
        ),
        next_step="stop processes that hold memory, such as a server with a model loaded, then run again",
    )


# Remaining time --------------------------------------------------------------------------------


def makespan(seconds: Iterable[float], jobs: int, busy: Iterable[float] = ()) -> float:
    """Return the time that *jobs* workers need for tasks that they start in that order.

    *busy* are the remaining seconds of the workers that are busy already.
    """
    ends = list(busy)
    ends += [0.0] * (max(1, jobs) - len(ends))
    heapq.heapify(ends)
    for one in seconds:
        heapq.heapreplace(ends, ends[0] + one)
    return max(ends)


def pace(seen: Iterable[tuple[float, float]]) -> float:
    """Return the seconds that pass for each expected second.

    *seen* are seconds that units took, and that they were expected to take. After a minute of expected
    seconds the measured ones weigh as much as the expectations.
    """
    pairs = [(60.0, 60.0), *seen]
    return sum(pair[0] for pair in pairs) / sum(pair[1] for pair in pairs)


def time_left(waiting: Iterable[Waiting], running: Iterable[Active], jobs: int, rate: float = 1.0) -> float:
    """Return the seconds until all units are compiled, by simulating the schedule.

    *rate* is as from `pace`.
    """
    busy = [max(unit.expected.seconds * rate - unit.elapsed, unit.elapsed * _OVERDUE) for unit in running]
    return makespan((unit.expected.seconds * rate for unit in in_order(waiting)), jobs, busy)


# Expected costs of units --------------------------------------------------------------------------

# Each unit's cost is recorded as soon as it compiled, so a build that is killed counts too. Costs are kept
# in the machine's own store: seconds on another machine mean something else.

_KIND = "unit-cost"


# For a unit without measurements of it or of similar ones: by size of its source, from the times of nvcc
# and g++ for the units of vLLM 0.24.0. Only the order and a first guess depend on it.
_GUESS = {".cu": (20.0, 1200), ".cpp": (5.0, 600)}
_GUESS_OTHER = (5.0, 600)
_GUESS_SECONDS_A_KIB = 0.5
_GUESS_LARGEST_KIB = 200.0


class _Learned(Model, frozen=True):
    """The cost of a unit, as the store keeps it."""

    unit: str
    cost: Cost


@dataclass
class UnitCosts:
    """Expected costs of units, learned from builds.

    Attributes:
        seeds: seconds and MiB by unit name, from the lock.
        host: machine that compiles, such as ``x86_64``.
    """

    store: Store
    target: Target
    seeds: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    host: str = field(default_factory=platform.machine)

    def learned(self, name: str) -> Cost | None:
        """Return the cost of the unit *name* in its last build here; `None` if it was never compiled."""
        record = self.store.find_record_as(_Learned, _KIND, self._key(name))
        return record.cost if record and record.cost.seconds >= 0 and record.cost.mib >= 0 else None

    def learn(self, name: str, cost: Cost) -> None:
        """Record that the unit called *name* just took *cost*, which its next build is expected to take."""
        self.store.put_record(_KIND, self._key(name), to_builtins(_Learned(unit=name, cost=cost)))

    def expected(self, units: Iterable[Unit], sizes: Mapping[str, int]) -> dict[str, Cost]:
        """Return the expected cost of each of *units*, by unit name.

        In this order: the learned cost; the lock's seed, at this machine's pace; the median of known units
        in the same folder, then of those in the same language; a guess by the size of the source.

        *units* are all of a build, as the costs of some help to estimate the others; *sizes* are bytes by
        `Unit.source`.
        """
        units = list(units)
        learned = {unit.name: cost for unit in units if (cost := self.learned(unit.name))}
        pace = self._pace(learned)
        known = learned | {
            unit.name: Cost(seconds=seed[0] * pace, mib=seed[1])
            for unit in units
            if unit.name not in learned and (seed := self.seeds.get(unit.name))
        }
        like: dict[tuple[str, str], list[Cost]] = {}
        for unit in units:
            if unit.name in known:
                for group in _groups(unit):
                    like.setdefault(group, []).append(known[unit.name])
        return {
            unit.name: known.get(unit.name)
            or _by_others(unit, like)
            or _guess(unit, sizes.get(unit.source, 0))
            for unit in units
        }

    def _pace(self, learned: Mapping[str, Cost]) -> float:
        """Return the ratio of times here to those in the lock."""
        ratios = (
            cost.seconds / self.seeds[n][0] for n, cost in learned.items() if self.seeds.get(n, (0, 0))[0] > 0
        )
        return median([*ratios] or [1.0]) or 1.0

    def _key(self, name: str) -> str:
        return digest_of([self.host, self.target.machine, self.target.arch, name])


def _groups(unit: Unit) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the groups of similar units: those of its folder and language, then those of its language."""
    path = PurePosixPath(unit.source)
    return (str(path.parent), path.suffix), ("", path.suffix)


def _by_others(unit: Unit, like: Mapping[tuple[str, str], list[Cost]]) -> Cost | None:
    for group in _groups(unit):
        if found := like.get(group):
            return Cost(
                seconds=median(cost.seconds for cost in found), mib=round(median(cost.mib for cost in found))
            )
    return None


def _guess(unit: Unit, size: int) -> Cost:
    seconds, mib = _GUESS.get(PurePosixPath(unit.source).suffix, _GUESS_OTHER)
    return Cost(seconds=seconds + _GUESS_SECONDS_A_KIB * min(size / 1024, _GUESS_LARGEST_KIB), mib=mib)
