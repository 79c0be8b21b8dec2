"""One night: discover, and if anything is new merge, find culprits, judge, build, rehearse and record."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec.structs import replace as with_fields

from sparkwright import __version__
from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of, sha256_bytes
from sparkwright.base.errors import EnvironmentSetupError, NotInStoreError, ToolError
from sparkwright.base.events import emit, task
from sparkwright.carries.model import Carry
from sparkwright.carries.patchset import BuildSpec
from sparkwright.engine.outcomes import Verifier
from sparkwright.merge.report import MergeReport, OutcomeKind
from sparkwright.native.host import require_isolation
from sparkwright.nightly.building import build, rehearse, survey_kernels
from sparkwright.nightly.discover import UpstreamNews
from sparkwright.nightly.judging import Judge, Judged, Merging
from sparkwright.nightly.model import (
    NOT_ASKED,
    CarryNight,
    Mark,
    Night,
    NightBuild,
    NightCheck,
    NightState,
    NightVerdict,
    Standing,
    TargetNight,
    UpstreamTarget,
    holds,
    red_since,
)
from sparkwright.pipeline.job import Job
from sparkwright.probe.pool import ProbePool

_MOST_MARKS = 60


@dataclass(frozen=True)
class NightOptions:
    """The user's choices for one night.

    Attributes:
        history: repository with upstream's history: an address or a folder; empty for none.
        onto: names of targets; the newest release and commit by default.
        verifier: runs the checks of a rehearsal of what was built.
        kernels: whether to compile the merged tree's Triton kernels for a GB10.
    """

    folder: Path
    verifier: Verifier
    history: str = ""
    onto: tuple[str, ...] = ()
    build: bool = True
    kernels: bool = False
    tests: bool = False
    again: bool = False


def follow(job: Job, options: NightOptions, state: NightState) -> Night:
    """Return the night of *job* that *options* ask for, recorded in *state* if anything was new.

    Raises:
        UnknownNameError: a target that was named does not exist.
    """
    return _Run(job, options, state, datetime.now(UTC).date().isoformat()).night()


@dataclass
class _Run:
    """One run; see `follow`."""

    job: Job
    options: NightOptions
    state: NightState
    date: str

    def night(self) -> Night:
        """Return the night."""
        started = time.monotonic()
        self.upstream = UpstreamNews(self.job, self.options.history)
        with task("look for news upstream"):
            targets = [self.upstream.named(name) for name in self.options.onto] or self.upstream.newest()
        inputs = self._inputs(targets)
        known = self.state.last_inputs() == inputs or not targets
        if known and not self.options.again:
            return self._night((), NightVerdict.NOTHING_NEW, started)
        with ProbePool(self.job.store) as pool:
            self.job = replace(self.job, pool=pool)
            found = tuple(self._target(target) for target in targets)
        green = all(one.green for one in found)
        night = self._night(found, NightVerdict.GREEN if green else NightVerdict.NEEDS_PERSON, started)
        failed = any(one.failed for one in found)
        # What failed is tried again by the next run, though nothing is new then.
        self.state.record(night, inputs="" if failed else inputs)
        emit("night.recorded", id=night.id, verdict=str(night.verdict), seconds=night.seconds)
        return night

    def _night(self, found: tuple[TargetNight, ...], verdict: NightVerdict, started: float) -> Night:
        return Night(
            id=self.state.next_id(),
            date=self.date,
            patchset=self.job.spec.line,
            pin=self.upstream.pin.label,
            verdict=verdict,
            reasons=tuple(reason for one in found for reason in _reasons(one)),
            targets=found,
            notes=tuple(dict.fromkeys(self.upstream.notes)),
            seconds=round(time.monotonic() - started, 3),
        )

    def _inputs(self, targets: list[UpstreamTarget]) -> str:
        """Return a digest of all that decides the night's findings."""
        carries = {}
        for carry in self.job.spec.carries:
            files = [
                path for path in carry.folder.rglob("*") if path.is_file() and path.parent.name != "proofs"
            ]
            carries[carry.name] = {
                str(path.relative_to(carry.folder)): sha256_bytes(path.read_bytes())
                for path in sorted(files)
                if "__pycache__" not in path.parts
            }
        return digest_of(
            {
                "sparkwright": __version__,
                "pin": self.job.spec.lock.release.commit,
                "kernels": self.job.spec.arch or "",
                "platform": self.job.options.platform,
                "carries": carries,
                "order": [carry.name for carry in self.job.spec.carries],
                "targets": [to_builtins(target) for target in targets],
                "wanted": [self.options.build, self.options.kernels, self.options.tests],
            }
        )

    def _target(self, target: UpstreamTarget) -> TargetNight:
        old = self._previous(target)
        merging = Merging(self.job, target)
        with task(f"merge onto {target.label}"):
            report = merging.report
        judge = Judge(self.job, report, self.upstream.pin.tree)
        former = Former(self.job, old, self.state.last_target(target.kind))
        carries, all_carries = [], self.job.spec.carries
        for carry in all_carries:
            judge.begin(carry, merging.touched(carry))
        with task(f"judge the carries on {target.label}", total=len(all_carries), unit="carries") as progress:
            for carry in all_carries:
                judged = judge.judge(carry, merging.touched(carry))
                carries.append(self._carry(carry, judged, merging, former))
                progress.advance()
        night = TargetNight(
            target=target,
            previous=old,
            merged=report.tree,
            carries=tuple(carries),
            tests=self._tests(report),
        )
        if self.options.kernels:
            night = with_fields(night, kernels=survey_kernels(self.job, target, report.tree))
        return self._with_wheel(night)

    def _tests(self, report: MergeReport) -> NightCheck:
        """Run upstream's tests that touch what the patchset changes there."""
        if not self.options.tests or self.job.pool is None:
            return NOT_ASKED
        try:
            require_isolation()
            found = self.job.upstream_gate(report, self.job.pool).run()
        except (EnvironmentSetupError, NotInStoreError, ToolError) as error:
            return NightCheck(status="skipped", reason=str(error))
        if not found.files:
            return NightCheck(status="skipped", reason="none touches what the patchset changes")
        status: Literal["failed", "passed"] = "failed" if found.regressions else "passed"
        reason = ", ".join(found.regressions)
        return NightCheck(status=status, reason=reason, passed=found.passed, flaky=found.flaky)

    def _previous(self, target: UpstreamTarget) -> UpstreamTarget:
        """Return what *target* is compared with: last night's of its kind, or the pin."""
        last = self.state.last_target(target.kind)
        if last is not None and self.job.repository.has(last.target.tree):
            return last.target
        return self.upstream.pin

    def _carry(self, carry: Carry, judged: Judged, merging: Merging, former: Former) -> CarryNight:
        outcome, target = merging.report.outcome(carry.name), merging.target
        alone = merging.alone(carry) if outcome.kind.blocks_build else None
        last, previous = former.carry(carry.name), former.outcome(carry.name)
        culprit = None if last is None or last.outcome is not outcome.kind else last.culprit
        if culprit is None and previous is not outcome.kind:
            releases = partial(self.upstream.between, former.target, target)
            culprit = merging.culprit(carry, former.target, alone=alone, releases=releases)
        mark = Mark(date=self.date, target=target.label, judgement=judged.judgement)
        history = (*former.marks(carry.name), mark)
        good = holds(history, self.upstream.pin.label)
        red = judged.judgement.standing is Standing.RED
        return CarryNight(
            name=carry.name,
            outcome=outcome.kind,
            judgement=judged.judgement,
            alone=alone,
            detail=outcome.detail,
            finding=judged.finding,
            hazards=outcome.hazards,
            conflicts=outcome.conflicts,
            previous=previous,
            culprit=culprit,
            red_since=red_since(history),
            holds=good,
            bisect_command=_bisect(carry.at(target.version), self.job.spec, good, target) if red else "",
            history=history,
        )

    def _with_wheel(self, night: TargetNight) -> TargetNight:
        if not self.options.build:
            return night
        folder, label = self.options.folder, night.target.label
        built = build(self.job, night.target, night.carries, folder, history=self.options.history)
        rehearsal = rehearse(built, label, folder, self.options.verifier)
        return with_fields(night, build=built.night, rehearsal=rehearsal)


@dataclass
class Former:
    """The carries on the target that tonight's is compared with.

    Attributes:
        last: the last findings on a target of this kind, this one or another.
    """

    job: Job
    target: UpstreamTarget
    last: TargetNight | None

    def __post_init__(self) -> None:
        self._known = self.last is not None and self.last.target.tree == self.target.tree
        self._report = None if self._known else Merging(self.job, self.target).report

    def carry(self, name: str) -> CarryNight | None:
        """Return what an earlier night found of the carry *name* there."""
        return self._last(name) if self._known else None

    def marks(self, name: str) -> tuple[Mark, ...]:
        """Return the marks of the carry *name* on earlier targets of this kind, oldest first."""
        last = self._last(name)
        return () if last is None else last.history[1 - _MOST_MARKS :]

    def _last(self, name: str) -> CarryNight | None:
        found = () if self.last is None else self.last.carries
        return next((carry for carry in found if carry.name == name), None)

    def outcome(self, name: str) -> OutcomeKind | None:
        """Return its outcome there; `None` for a carry that was not in the patchset then."""
        if self._report is not None:
            return self._report.outcome(name).kind
        last = self.carry(name)
        return None if last is None else last.outcome


def _bisect(carry: Carry, spec: BuildSpec, good: str, target: UpstreamTarget) -> str:
    """Return the command that searches upstream's commits for what made *carry* red."""
    if carry.probe_path is None:
        return ""
    bad = f"{spec.file}@{target.version if target.kind == 'release' else target.commit}"
    start = f"{spec.file}@{good}"
    probe = f"carries/{carry.name}/{carry.probe_path.name}"
    series = "" if spec.lock.series in {"", spec.file} else f"--series {spec.lock.series} "
    return f"sparkwright bisect {series}--axis upstream {start} {bad} --judge 'probe {probe}'"


def _reasons(night: TargetNight) -> list[str]:
    """Return one line for each thing about *night* that a person has to decide."""
    label = night.target.label
    told = []
    for carry in night.carries:
        if carry.standing is Standing.DROP:
            told.append(f"{carry.name} on {label}: not needed any more; drop it, or declare it superseded")
        elif carry.standing is Standing.RED:
            told.append(f"{carry.name} on {label}: {carry.judgement} ({carry.finding or carry.detail})")
    tried: dict[str, NightBuild | NightCheck] = {
        f"the wheel of {label} was not built": night.build,
        f"upstream's tests fail on {label} with the patchset alone": night.tests,
        f"the rehearsal of {label} failed": night.rehearsal,
        f"Triton kernels of {label} fail on a GB10": night.kernels,
    }
    told += [f"{what}: {one.reason}" for what, one in tried.items() if one.status == "failed"]
    return told
