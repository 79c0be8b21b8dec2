"""Judges of candidates: a probe, a merge, a rehearsal's check. `command` and `metric` have the others.

Each realises no more of a candidate than it needs: a merge nothing else, a probe the merged tree, a check the
served tree, a command what its words mention.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from msgspec import structs

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import to_json
from sparkwright.carries import ProbeSpec, load_carry
from sparkwright.engine.verifier import Verifier
from sparkwright.merge import MergeReport, Outcome, OutcomeKind
from sparkwright.probe import prepare_environment
from sparkwright.probe.proof import ProbeRun, named_modules
from sparkwright.probe.runner import run_probe
from sparkwright.search.candidates import Realiser
from sparkwright.search.changes import Candidate
from sparkwright.search.metric import UntestableError, timed
from sparkwright.search.model import CandidateJudge, Evaluation, StepVerdict
from sparkwright.search.remote import Machines
from sparkwright.store import write_atomically

_PACKAGE = "vllm"
_PROBE_SECONDS, _PROBE_MIB = 120, 4096
# Undecided is no verdict: more observations are asked for.
VERDICTS = {
    "passed": StepVerdict.GOOD,
    "failed": StepVerdict.BAD,
    "undecided": StepVerdict.UNSTABLE,
    "skipped": StepVerdict.UNTESTABLE,
}


@dataclass(frozen=True)
class ProbeJudge:
    """Good if a probe passes on the candidate's merged tree; its message is the signature.

    Attributes:
        realiser: makes the merged trees.
        file: the probe.
        name: the judge as the user gave it.
        stop: ends a running probe.
        machines: other machines, which run it.
    """

    realiser: Realiser
    file: Path
    name: str
    stop: threading.Event
    machines: Machines | None = None

    @cached_property
    def spec(self) -> ProbeSpec:
        """The settings of the carry that the probe belongs to; modest ones for a probe of none."""
        folder = self.file.parent
        if (folder / "carry.toml").is_file():
            carry = load_carry(folder)
            later = carry.spec.probe.later if carry.spec.probe is not None else ()
            for one in (carry, *(carry.at(probe.release) for probe in later)):
                if one.probe_path == self.file and one.spec.probe is not None:
                    return one.spec.probe
        return ProbeSpec(file=self.file.name, seconds=_PROBE_SECONDS, memory_mib=_PROBE_MIB)

    @cached_property
    def _python(self) -> Path:
        access = self.realiser.access
        return prepare_environment(access.store, offline=access.settings.offline)

    def suspects(self, paths: set[str]) -> set[str]:
        """Return those of *paths* that the probe names in its imports."""
        files = [self.file, *(self.file.with_name(name) for name in self.spec.helpers)]
        return {path for file in files for path in named_modules(file.read_bytes(), _PACKAGE, paths)}

    def evaluate(self, applied: frozenset[str], *, attempt: int, folder: Path) -> Evaluation:
        """Run the probe on the candidate's merged tree."""
        del attempt
        return timed(lambda: self._judge(self.realiser.candidate(applied), folder))

    def _judge(self, candidate: Candidate, folder: Path) -> Evaluation:
        run = self._run(candidate)
        log = folder / "probe.json"
        write_atomically(log, to_json({"candidate": candidate.describe(), **to_builtins(run)}))
        message = run.message
        if run.verdict == "passes":
            return Evaluation(verdict=StepVerdict.GOOD, detail=message, evidence=str(log))
        last = message.splitlines()[-1] if message else ""
        return Evaluation(
            verdict=StepVerdict.BAD,
            signature=f"{run.verdict}: {last}",
            detail=message,
            evidence=str(log),
        )

    def _run(self, candidate: Candidate) -> ProbeRun:
        """Run the probe on the candidate's merged tree, here or on another machine."""
        access, version = self.realiser.access, candidate.point.version
        if self.machines is not None:
            return self.machines.probe(access, self.realiser.merged(candidate), self.file, self.spec, version)
        tree = self.realiser.tree(candidate)
        python, stop = self._python, self.stop
        report = run_probe(access.store, python, self.file, self.spec, tree, version=version, stop=stop)
        if stop.is_set():
            raise KeyboardInterrupt
        return report.run


@dataclass(frozen=True)
class MergeJudge:
    """Good if every carry, or each of those that are named, merges.

    The ends are merged by the engine. Where what fails there are conflicts, the commits between them are
    merged by the carries' files alone; see `sparkwright.merge.trial`.

    Attributes:
        realiser: merges.
        carries: names of carries; all if empty.
        name: the judge as the user gave it.
    """

    realiser: Realiser
    carries: tuple[str, ...]
    name: str

    def evaluate(self, applied: frozenset[str], *, attempt: int, folder: Path) -> Evaluation:
        """Merge the candidate; a conflict is what is searched for, and not an obstacle."""
        del attempt
        return timed(lambda: self._judge(applied, folder))

    def _judge(self, applied: frozenset[str], folder: Path) -> Evaluation:
        candidate = self.realiser.candidate(applied)
        report = None if applied in self._ends or not self._quick else self.realiser.conflicts(candidate)
        report = report or self.realiser.outcomes(candidate)
        log = folder / "merge.json"
        write_atomically(log, to_json(to_builtins(report)))
        failed = self._failed(report)
        if not failed:
            return Evaluation(verdict=StepVerdict.GOOD, evidence=str(log))
        signature = "; ".join(f"{one.carry}: {one.kind} in {', '.join(one.conflicts)}" for one in failed)
        detail = "; ".join(f"{one.carry}: {one.detail}" for one in failed)
        return Evaluation(verdict=StepVerdict.BAD, signature=signature, detail=detail, evidence=str(log))

    def _failed(self, report: MergeReport) -> list[Outcome]:
        present = [one for one in report.outcomes if not self.carries or one.carry in self.carries]
        return [one for one in present if one.kind in {OutcomeKind.CONFLICT, OutcomeKind.REFUSED}]

    @cached_property
    def _ends(self) -> tuple[frozenset[str], frozenset[str]]:
        return frozenset(), frozenset(change.id for change in self.realiser.difference.changes)

    @cached_property
    def _quick(self) -> bool:
        """Tell if conflicts alone are searched for: what is wrong in a clean merge only the engine sees."""
        try:
            reports = [self.realiser.outcomes(self.realiser.candidate(applied)) for applied in self._ends]
        except UntestableError:
            return False
        failed = [one for report in reports for one in self._failed(report)]
        return all(one.kind is OutcomeKind.CONFLICT for one in failed)


@dataclass(frozen=True)
class CheckJudge:
    """Good if a rehearsal of the candidate on a CPU passes a check of `verify`.

    Attributes:
        realiser: merges and pins.
        check: the check's name.
        name: the judge as the user gave it.
        verifier: runs the check.
        machines: other machines, which rehearse.
    """

    realiser: Realiser
    check: str
    name: str
    verifier: Verifier
    machines: Machines | None = None

    def evaluate(self, applied: frozenset[str], *, attempt: int, folder: Path) -> Evaluation:
        """Rehearse the candidate."""
        del attempt
        return timed(lambda: self._judge(self.realiser.candidate(applied), folder))

    def _judge(self, candidate: Candidate, folder: Path) -> Evaluation:
        from sparkwright.rehearsal import RehearsalOptions, rehearse
        from sparkwright.rehearsal.model import PARITY

        if candidate.point.commit:
            raise UntestableError("upstream has wheels for the CPU of releases only")
        report = self.realiser.merged(candidate)
        options = RehearsalOptions(
            checks=(self.check,),
            offline=self.realiser.access.settings.offline,
            out=folder / "rehearsal",
            against_pristine=self.check == PARITY,
        )
        job = self.realiser.exact_job(candidate)
        if self.machines is not None:
            result = self.machines.rehearse(job, report, options)
        else:
            result = rehearse(job, report, self.verifier, options)
        if not result.exact:
            raise UntestableError(f"there is no wheel for the CPU of {report.version}")
        found = next(check for check in result.checks if check.name == self.check)
        return Evaluation(
            verdict=VERDICTS[found.verdict],
            signature=found.signature,
            detail=found.detail,
            evidence=str(result.report),
        )


@dataclass(frozen=True)
class AnyFailure:
    """Another judge, all of whose failures count as one."""

    judge: CandidateJudge

    @property
    def name(self) -> str:
        """The other judge's name."""
        return self.judge.name

    def evaluate(self, applied: frozenset[str], *, attempt: int, folder: Path) -> Evaluation:
        """Return what the other judge says, without the signature."""
        found = self.judge.evaluate(applied, attempt=attempt, folder=folder)
        return structs.replace(found, signature="")
