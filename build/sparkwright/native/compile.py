"""Compile units: as many at once as cores and memory allow, longest first; keep each finished object.

One loop in one thread starts compilers, polls them and passes each object on as soon as it is whole.
Compilers are killed with this process, so a build that is killed loses only the units that were running.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sparkwright.base.errors import ToolError
from sparkwright.base.events import Task, emit, task, warn
from sparkwright.base.machine import MachineSnapshot, Pressure, look
from sparkwright.base.process.session import Ended, Running, resident_mib, start
from sparkwright.native.failures import CompileFailure, Diagnosis, diagnose, error_of
from sparkwright.native.model import Cost
from sparkwright.native.schedule import (
    Active,
    Decision,
    JobLimits,
    Waiting,
    decide,
    in_order,
    pace,
    time_left,
    too_large,
)
from sparkwright.store.disk import storing

_TICK_S = 0.05
_LOOK_S = 0.5
_SETTLE_S = 15.0
"""Pressure is a mean over ten seconds: the effect of stopping a unit shows after that."""
_PATIENCE_S = 120.0
_NICE = 10
_OOM_SCORE_ADJ = 1000
"""When memory runs out, the kernel takes a compiler before anything else of the user's."""


@dataclass(frozen=True)
class CompileJob:
    """A compiler call.

    Attributes:
        name: the unit's name, unique in a build.
        output: the object file; an incomplete one is removed.
    """

    name: str
    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    output: Path
    log: Path
    expected: Cost


@dataclass(frozen=True)
class Finished:
    """A unit that compiled."""

    job: CompileJob
    cost: Cost
    seconds: float
    attempts: int = 1


def run_jobs(
    jobs: Sequence[CompileJob],
    *,
    on_done: Callable[[Finished], None],
    limits: JobLimits,
    machine: Callable[[], MachineSnapshot] = look,
    nice: int = _NICE,
    patience_s: float = _PATIENCE_S,
    settle_s: float = _SETTLE_S,
) -> None:
    """Compile *jobs*.

    The first unit that fails keeps further ones from being started; those under way end and are kept.

    Args:
        jobs: the units to compile, in any order.
        on_done: called in this thread with each unit as soon as its object is whole, to store it.
        limits: resources that may be used.
        machine: returns a snapshot of the machine.
        nice: niceness of compilers, relative to this process.
        patience_s: longest wait for memory while nothing runs.
        settle_s: least time between two units being stopped under memory pressure.

    Raises:
        CompileError: a compiler refused a unit, or made no object.
        NotEnoughMemoryError: a unit runs out of memory even with nothing beside it, or cannot be started.
        StorageError: a disk is full.
        ToolError: a compiler does not exist.
    """
    if doubled := [name for name, count in Counter(job.name for job in jobs).items() if count > 1]:
        raise ValueError(f"units of the same name: {doubled}")
    if machine().pressure is None and jobs:
        warn("this kernel does not measure memory pressure: available memory alone decides when units start")
    _Build(on_done, limits, machine, nice, patience_s, settle_s).run(jobs)


@dataclass
class _Compiler:
    """A running unit."""

    job: CompileJob
    unit: Waiting
    process: Running
    resident_mib: int = 0
    peak_mib: int = 0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.process.started

    @property
    def active(self) -> Active:
        unit = self.unit
        return Active(unit.name, unit.expected, self.elapsed, self.resident_mib, unit.alone)


@dataclass
class _Build:
    """The state of one run."""

    on_done: Callable[[Finished], None]
    limits: JobLimits
    machine: Callable[[], MachineSnapshot]
    nice: int
    patience_s: float
    settle_s: float
    jobs: dict[str, CompileJob] = field(default_factory=dict)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    attempts: Counter[str] = field(default_factory=Counter)
    running: dict[str, _Compiler] = field(default_factory=dict)
    finished: list[Finished] = field(default_factory=list)
    failures: list[CompileFailure] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    retried: list[str] = field(default_factory=list)
    ending: bool = False
    cap: int = 0
    peak_mib: int = 0
    most_jobs: int = 0
    stopped_at: float = float("-inf")
    starved_at: float | None = None
    decision: Decision = field(default_factory=Decision)

    def run(self, jobs: Sequence[CompileJob]) -> None:
        started = time.monotonic()
        self.jobs = {job.name: job for job in jobs}
        self.waiting = {job.name: Waiting(job.name, job.expected) for job in jobs}
        self.cap = self.limits.jobs
        with task("compile", total=len(jobs), unit="units") as shown:
            try:
                self._loop(shown)
            finally:
                for compiler in list(self.running.values()):
                    self._kill(compiler)
            if self.failures:
                raise error_of(self.failures)
        emit(
            "native.compiled",
            units=len(self.finished),
            seconds=round(time.monotonic() - started, 1),
            cpu_seconds=round(sum(one.cost.seconds for one in self.finished), 1),
            peak_mib=self.peak_mib,
            jobs=self.most_jobs,
            stopped=self.stopped,
            retried=self.retried,
        )

    def _loop(self, shown: Task) -> None:
        looked = float("-inf")
        while self.running or (self.waiting and not self.ending):
            ended = self._collect(shown)
            if ended or time.monotonic() - looked >= _LOOK_S:
                looked = time.monotonic()
                self._measure()
                self._admit()
                shown.advance(0, **self._progress())
            time.sleep(_TICK_S)

    # Polling ---------------------------------------------------------------

    def _collect(self, shown: Task) -> bool:
        """Handle every compiler that has ended; return whether any had."""
        ended = [(one, how) for one in self.running.values() if (how := one.process.poll()) is not None]
        for compiler, how in ended:
            job = compiler.job
            del self.running[job.name]
            if (found := diagnose(how.status, job.log, job.output)) is not None:
                self._failed(compiler, found)
            else:
                self._done(compiler, how)
                shown.advance(1, **self._progress())
        return bool(ended)

    def _done(self, compiler: _Compiler, how: Ended) -> None:
        job, attempts = compiler.job, self.attempts[compiler.job.name]
        # Samples miss peaks between them, and the kernel's own count is of one process.
        cost = Cost(seconds=how.cpu_seconds, mib=max(compiler.peak_mib, how.peak_mib))
        finished = Finished(job, cost, how.seconds, attempts)
        with storing(f"keeping the object of {job.name}"):
            self.on_done(finished)
        self.finished.append(finished)
        self.cap = min(self.limits.jobs, self.cap + 1)
        emit(
            "compile.finished",
            unit=job.name,
            seconds=round(how.seconds, 3),
            cpu_seconds=round(cost.seconds, 3),
            mib=cost.mib,
            expected_seconds=round(job.expected.seconds, 3),
            expected_mib=job.expected.mib,
            attempts=attempts,
        )

    def _failed(self, compiler: _Compiler, found: Diagnosis) -> None:
        job = compiler.job
        job.output.unlink(missing_ok=True)
        if found.cause == "memory" and not compiler.unit.alone:
            warn(f"{job.name} ran out of memory: {found.detail}; it will be tried once more alone")
            self.retried.append(job.name)
            self.waiting[job.name] = replace(compiler.unit, alone=True)
            return
        self._give_up(CompileFailure(job.name, job.log, found, compiler.peak_mib))

    def _give_up(self, failure: CompileFailure) -> None:
        self.failures.append(failure)
        self.ending = True
        emit("compile.failed", unit=failure.unit, log=str(failure.log), because=failure.detail)

    def _kill(self, compiler: _Compiler) -> None:
        self.running.pop(compiler.job.name, None)
        compiler.process.kill()
        compiler.job.output.unlink(missing_ok=True)

    def _measure(self) -> None:
        used = resident_mib([one.process.pid for one in self.running.values()])
        for compiler in self.running.values():
            compiler.resident_mib = used[compiler.process.pid]
            compiler.peak_mib = max(compiler.peak_mib, compiler.resident_mib)
        self.peak_mib = max(self.peak_mib, sum(used.values()))

    # Starting and stopping -----------------------------------------------------------------

    def _admit(self) -> None:
        """Start and stop units by the schedule, until it starts no more."""
        now = self.machine()
        while not self.ending:
            self.decision = decide(
                list(self.waiting.values()),
                [compiler.active for compiler in self.running.values()],
                now,
                replace(self.limits, jobs=self.cap),
                may_stop=time.monotonic() - self.stopped_at >= self.settle_s,
            )
            if not self.decision.start:
                break
            self._start(self.waiting.pop(self.decision.start))
        if self.decision.stop:
            self._stop(self.running[self.decision.stop], now)
        self._wait_for_memory(now)

    def _start(self, unit: Waiting) -> None:
        job = self.jobs[unit.name]
        with storing(f"starting the compiler for {job.name}"):
            for path in (job.output, job.log):
                path.parent.mkdir(parents=True, exist_ok=True)
            job.output.unlink(missing_ok=True)  # an older one is no proof of success
            self.attempts[job.name] += 1
            try:
                process = start(
                    job.argv,
                    cwd=job.cwd,
                    env=job.env,
                    log=job.log,
                    nice=self.nice,
                    oom_score_adj=_OOM_SCORE_ADJ,
                )
            except ToolError as error:
                self._give_up(CompileFailure(job.name, job.log, error=error))
                return
        self.running[job.name] = _Compiler(job, unit, process)
        self.most_jobs = max(self.most_jobs, len(self.running))
        emit(
            "compile.started",
            unit=job.name,
            log=str(job.log),
            pid=process.pid,
            attempt=self.attempts[job.name],
        )

    def _stop(self, compiler: _Compiler, now: MachineSnapshot) -> None:
        """Stop a unit whose memory others need; it is restarted later, with fewer beside it."""
        unit = compiler.unit
        self._kill(compiler)
        expected = Cost(seconds=unit.expected.seconds, mib=max(unit.expected.mib, compiler.peak_mib))
        self.waiting[unit.name] = replace(unit, expected=expected)
        self.stopped.append(unit.name)
        self.stopped_at = time.monotonic()
        self.cap = max(1, len(self.running))
        pressure = now.pressure or Pressure()
        warn(f"{unit.name} was stopped and will be done again: memory pressure is high ({pressure})")

    def _wait_for_memory(self, now: MachineSnapshot) -> None:
        """Wait for other processes to free memory while no unit fits."""
        if self.running or self.ending or self.decision.hold != "memory":
            self.starved_at = None
            return
        first = in_order(self.waiting.values())[0]
        if self.starved_at is None:
            self.starved_at = time.monotonic()
            warn(f"nothing can be compiled for now: {self.decision.reason}")
        if time.monotonic() - self.starved_at >= self.patience_s:
            raise too_large(first, now, self.limits)

    # Progress -------------------------------------------------------------------------------

    def _progress(self) -> dict[str, object]:
        """Return the fields of a progress display."""
        active = [compiler.active for compiler in self.running.values()]
        waiting = [] if self.ending else list(self.waiting.values())
        held = self.decision.hold in {"memory", "pressure"}
        jobs = max(1, len(active)) if held else self.cap
        overdue = [one for one in active if one.elapsed > one.expected.seconds]
        rate = pace(
            [(one.seconds, one.job.expected.seconds) for one in self.finished]
            + [(one.elapsed, one.expected.seconds) for one in overdue]
        )
        return {
            "left": time_left(waiting, active, jobs, rate),
            "running": [
                {
                    "name": one.name,
                    "elapsed": round(one.elapsed, 1),
                    "expected": round(one.expected.seconds * rate, 1),
                    "mib": one.resident_mib,
                }
                for one in active
            ],
            "jobs": jobs,
            "peak_mib": self.peak_mib,
            "held": self.decision.reason if held and not self.ending else "",
            "failed": len(self.failures),
        }
