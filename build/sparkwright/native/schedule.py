"""Which unit to compile when: longest first, as far as memory goes. Pure: nothing here looks or waits.

Longest first is Graham's LPT rule: its makespan is at most 4/3 of the best one (R. L. Graham, *Bounds on
multiprocessing timing anomalies*, 1969), where the order of a build file can leave a long unit for last.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sparkwright.base.errors import NotEnoughMemoryError
from sparkwright.native.machine import Pressure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sparkwright.native.machine import MachineSnapshot
    from sparkwright.native.model import Cost

_OVERDUE = 0.1
"""A unit that has taken longer than expected is taken to need this share of its time so far yet."""

# What systemd-oomd and lmkd act upon lies around the second; both are meant for machines whose user waits.
HIGH = Pressure(some=20, full=5)
CRITICAL = Pressure(some=60, full=25)

Hold = Literal["", "jobs", "memory", "pressure", "alone"]


@dataclass(frozen=True)
class Waiting:
    """A unit that is to be compiled.

    Attributes:
        name: its name, of which there is one.
        expected: what it is expected to take.
        alone: whether nothing may run beside it.
    """

    name: str
    expected: Cost
    alone: bool = False


@dataclass(frozen=True)
class Active:
    """A unit that is being compiled.

    Attributes:
        name: its name.
        expected: what it is expected to take in all.
        elapsed: seconds since it was started.
        resident_mib: what it uses now.
        alone: whether nothing may be started beside it.
    """

    name: str
    expected: Cost
    elapsed: float = 0.0
    resident_mib: int = 0
    alone: bool = False

    @property
    def claim_mib(self) -> int:
        """Memory that it will yet take, beyond what it uses now."""
        return max(0, self.expected.mib - self.resident_mib)


@dataclass(frozen=True)
class JobLimits:
    """What a build may use.

    Attributes:
        jobs: most units at once.
        reserve_mib: memory that is left to everything else.
        high: memory pressure at which nothing is started while anything runs.
        critical: memory pressure at which the youngest of several units is stopped.
    """

    jobs: int
    reserve_mib: int
    high: Pressure = HIGH
    critical: Pressure = CRITICAL


@dataclass(frozen=True)
class Decision:
    """What to do now.

    Attributes:
        start: the unit to start, if any.
        stop: the unit to stop and do again later, if any.
        hold: what keeps the next unit from being started, if anything does.
        reason: the same in words.
    """

    start: str = ""
    stop: str = ""
    hold: Hold = ""
    reason: str = ""


def gib(mib: float) -> str:
    """*mib* as people read it: ``2.1``."""
    return f"{mib / 1024:.1f}"


def in_order(waiting: Iterable[Waiting]) -> list[Waiting]:
    """The order to start in: longest first, and last those that nothing may run beside."""
    return sorted(waiting, key=lambda unit: (unit.alone, -unit.expected.seconds, unit.name))


def decide(
    waiting: Sequence[Waiting],
    running: Sequence[Active],
    machine: MachineSnapshot,
    limits: JobLimits,
    *,
    may_stop: bool = True,
) -> Decision:
    """What to do now; call again until nothing is to be started.

    With nothing running and `hold` being ``memory``, no unit fits at all, and only time can tell more.

    Args:
        waiting: what is to be compiled, in any order.
        running: what is being compiled.
        machine: what it can do now.
        limits: what the build may use of it.
        may_stop: whether a unit may be stopped; not right after another was, for pressure is an average.
    """
    pressure = machine.pressure or Pressure()
    if len(running) > 1 and may_stop and pressure.reaches(limits.critical):
        youngest = min(running, key=lambda unit: (unit.elapsed, unit.name))
        return Decision(stop=youngest.name, hold="pressure", reason=f"memory pressure: {pressure}")
    if not waiting:
        return Decision()
    if any(unit.alone for unit in running):
        return Decision(hold="alone", reason="a unit runs that needs all memory for itself")
    if len(running) >= limits.jobs:
        return Decision(hold="jobs", reason=f"{len(running)} of {limits.jobs} jobs run")
    if running and pressure.reaches(limits.high):
        return Decision(hold="pressure", reason=f"memory pressure: {pressure}")
    return _first_that_fits(in_order(waiting), running, machine, limits)


def _first_that_fits(
    waiting: list[Waiting], running: Sequence[Active], machine: MachineSnapshot, limits: JobLimits
) -> Decision:
    room = machine.available_mib - limits.reserve_mib - sum(unit.claim_mib for unit in running)
    for unit in waiting:
        if unit.expected.mib <= room and not (unit.alone and running):
            return Decision(start=unit.name)
    first = waiting[0]
    if first.alone and running:
        return Decision(hold="alone", reason=f"{first.name} waits until nothing runs beside it")
    free = f"{gib(max(0, room))} GiB free"
    return Decision(
        hold="memory", reason=f"memory: {free}, the unit is expected to take {gib(first.expected.mib)}"
    )


# Before the start ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How a build will go.

    Attributes:
        limits: what it may use.
        jobs: how many units will probably run at once.
        reason: why it is not more.
        seconds: how long it will probably take.
    """

    limits: JobLimits
    jobs: int
    reason: str
    seconds: float


def default_reserve_mib(machine: MachineSnapshot) -> int:
    """Memory that a build leaves to everything else: a sixteenth, and 1 GiB at least."""
    return max(1024, machine.total_mib // 16)


def plan_jobs(
    units: Sequence[Waiting],
    machine: MachineSnapshot,
    *,
    jobs: int | None = None,
    reserve_mib: int | None = None,
) -> Plan:
    """How many units to compile at once.

    Args:
        units: all of them.
        machine: what it can do now.
        jobs: most units at once; by default as many as there are cores.
        reserve_mib: memory to leave alone; by default what `default_reserve_mib` says.

    Raises:
        NotEnoughMemoryError: not even the largest unit alone fits.
    """
    wanted = max(1, machine.cores if jobs is None else jobs)
    reserve = default_reserve_mib(machine) if reserve_mib is None else reserve_mib
    limits = JobLimits(jobs=wanted, reserve_mib=reserve)
    if not units:
        return Plan(limits, 0, "there is nothing to compile", 0.0)
    room = machine.available_mib - reserve
    largest = max(units, key=lambda unit: (unit.expected.mib, unit.name))
    if largest.expected.mib > room:
        raise too_large(largest, machine, limits)
    fit = max(1, int(room / _typical_mib(units)))
    chosen = min(wanted, fit, len(units))
    return Plan(limits, chosen, _why(chosen, wanted, fit, room, units), time_left(units, (), chosen))


def _why(chosen: int, wanted: int, fit: int, room: int, units: Sequence[Waiting]) -> str:
    if chosen == wanted:
        return ""
    if chosen == fit:
        typical = gib(_typical_mib(units))
        return f"memory: {gib(room)} GiB free, a unit is expected to take {typical} (cores: {wanted} jobs)"
    return f"there are {len(units)} units"


def _typical_mib(units: Sequence[Waiting]) -> float:
    """What a unit that is found running at any moment takes: the mean, weighted by time."""
    seconds = sum(unit.expected.seconds for unit in units)
    if seconds <= 0:
        return max(1, *(unit.expected.mib for unit in units))
    return max(1, sum(unit.expected.mib * unit.expected.seconds for unit in units) / seconds)


def too_large(unit: Waiting, machine: MachineSnapshot, limits: JobLimits) -> NotEnoughMemoryError:
    """The error that says that *unit* does not fit, even alone."""
    return NotEnoughMemoryError(
        f"{unit.name} cannot be compiled on this machine now",
        because=(
            f"it is expected to take {gib(unit.expected.mib)} GiB, and of {gib(machine.total_mib)} GiB "
            f"{gib(machine.available_mib)} are available, {gib(limits.reserve_mib)} of which stay free "
            "for everything else"
        ),
        next_step="end what holds memory, such as a server with a model loaded, then run again",
    )


# How long yet --------------------------------------------------------------------------------


def makespan(seconds: Iterable[float], jobs: int, busy: Iterable[float] = ()) -> float:
    """How long *jobs* workers take for tasks that they take up in that order.

    Args:
        seconds: how long each task takes.
        jobs: number of workers.
        busy: for workers that are at work already, how long they still will be.
    """
    ends = list(busy)
    ends += [0.0] * (max(1, jobs) - len(ends))
    heapq.heapify(ends)
    for one in seconds:
        heapq.heapreplace(ends, ends[0] + one)
    return max(ends)


def pace(seen: Iterable[tuple[float, float]], *, trust_s: float = 60.0) -> float:
    """How many seconds of the clock pass for an expected second.

    Args:
        seen: seconds that units took, and that they were expected to take.
        trust_s: how far expectations are trusted: after so many expected seconds what was seen weighs as
            much.
    """
    pairs = list(seen)
    return (sum(pair[0] for pair in pairs) + trust_s) / (sum(pair[1] for pair in pairs) + trust_s)


def time_left(waiting: Iterable[Waiting], running: Iterable[Active], jobs: int, rate: float = 1.0) -> float:
    """Seconds until all is done, by playing the schedule through.

    Args:
        waiting: what is to be compiled.
        running: what is being compiled.
        jobs: how many at once.
        rate: see `pace`.
    """
    busy = [max(unit.expected.seconds * rate - unit.elapsed, unit.elapsed * _OVERDUE) for unit in running]
    return makespan((unit.expected.seconds * rate for unit in in_order(waiting)), jobs, busy)
