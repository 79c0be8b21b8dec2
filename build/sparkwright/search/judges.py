"""Judges of candidates: a probe, a merge, a rehearsal's check, a metric, a command.

Each realises no more of a candidate than it needs: a merge nothing else, a probe the merged tree, a check the
served tree, a command what its words mention.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import to_json
from sparkwright.base.errors import ProcessError
from sparkwright.base.process import LimitsExceeded, ProcessLimits, run_limited
from sparkwright.carries import ProbeSpec, load_carry
from sparkwright.merge import OutcomeKind
from sparkwright.probe import prepare_environment
from sparkwright.probe.proof import named_modules
from sparkwright.probe.runner import run_probe
from sparkwright.search.metric import UntestableError
from sparkwright.search.model import Evaluation, StepVerdict
from sparkwright.store import storing, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkwright.merge import MergeReport, Outcome
    from sparkwright.search.axes import Candidate
    from sparkwright.search.model import CandidateJudge
    from sparkwright.search.realise import Realiser
    from sparkwright.search.served import Serving

_PACKAGE = "vllm"
_PROBE_SECONDS, _PROBE_MIB = 120, 4096
_NO_LIMIT_MIB = 1 << 40
_UNTESTABLE = 125
_NOT_STARTED = 126  # from here on the shell or a signal is what ended the command
# Undecided is no verdict: more observations are asked for.
VERDICTS = {
    "passed": StepVerdict.GOOD,
    "failed": StepVerdict.BAD,
    "undecided": StepVerdict.UNSTABLE,
    "skipped": StepVerdict.UNTESTABLE,
}
_SIGNATURE = re.compile(r"^signature:\s*(\S.*)$", re.MULTILINE)


@dataclass(frozen=True)
class JudgeOptions:
    """Options of judges.

    Attributes:
        timeout_s: the most seconds of one run of a command.
        build_wheel: build the wheel of each candidate for a command that does not mention ``{wheel}``.
        inverted: the start is the bad end, so that a metric's baseline is the end.
        stop: set when the search ends, by an answer or an interrupt.
        serving: the target that serves wheels, instead of a rehearsal here.
    """

    timeout_s: float = 3600.0
    build_wheel: bool = False
    inverted: bool = False
    stop: threading.Event = field(default_factory=threading.Event)
    serving: Serving | None = None


@dataclass(frozen=True)
class ProbeJudge:
    """Good if a probe passes on the candidate's merged tree; its message is the signature.

    Attributes:
        realiser: makes the merged trees.
        file: the probe.
        name: the judge as the user gave it.
        stop: ends a running probe.
    """

    realiser: Realiser
    file: Path
    name: str
    stop: threading.Event

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
        tree = self.realiser.tree(candidate)
        report = run_probe(
            self.realiser.access.store,
            self._python,
            self.file,
            self.spec,
            tree,
            version=candidate.point.version,
            stop=self.stop,
        )
        if self.stop.is_set():
            raise KeyboardInterrupt
        log = folder / "probe.json"
        write_atomically(log, to_json({"candidate": candidate.describe(), **to_builtins(report.run)}))
        message = report.run.message
        if report.run.verdict == "passes":
            return Evaluation(verdict=StepVerdict.GOOD, detail=message, evidence=str(log))
        last = message.splitlines()[-1] if message else ""
        return Evaluation(
            verdict=StepVerdict.BAD,
            signature=f"{report.run.verdict}: {last}",
            detail=message,
            evidence=str(log),
        )


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
class Command:
    """A command that is run on candidates, in a process group of its own and without a shell.

    ``{wheel}`` and ``{tree}`` in its words stand for the candidate's wheel and for a folder with its merged
    package; each is made only if it is mentioned. ``SPARKWRIGHT_WHEEL``, ``SPARKWRIGHT_TREE`` and
    ``SPARKWRIGHT_SPEC``, a JSON file, say the same in its environment; the tree is always there.
    """

    words: tuple[str, ...]
    realiser: Realiser
    options: JudgeOptions

    def run(self, candidate: Candidate, folder: Path) -> tuple[int, str, Path]:
        """Return the exit status, the end of the output, and the log.

        Raises:
            UntestableError: the candidate cannot be made.
            LimitsExceeded: it took too long.
        """
        wheel = ""
        if self.options.build_wheel or any("{wheel}" in word for word in self.words):
            wheel = str(self.realiser.wheel(candidate))
        tree = str(self.realiser.tree(candidate))
        with storing(f"writing to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        spec = folder / "spec.json"
        write_atomically(spec, to_json(_described(candidate)))
        log = folder / "output.log"
        environment = {**os.environ, "SPARKWRIGHT_TREE": tree, "SPARKWRIGHT_SPEC": str(spec)}
        environment |= {"SPARKWRIGHT_WHEEL": wheel} if wheel else {}
        done = run_limited(
            [word.replace("{wheel}", wheel).replace("{tree}", tree) for word in self.words],
            limits=ProcessLimits(self.options.timeout_s, _NO_LIMIT_MIB),
            cwd=Path.cwd(),
            env=environment,
            log=log,
            stop=self.options.stop,
        )
        return done.status, done.stderr, log


@dataclass(frozen=True)
class CommandJudge:
    """Good if a command exits with 0, untestable with 125, bad with another status below 126.

    Its signature is what it prints behind ``signature:`` at the start of a line, or its exit status.
    """

    command: Command
    name: str

    def evaluate(self, applied: frozenset[str], *, attempt: int, folder: Path) -> Evaluation:
        """Run the command on the candidate.

        Raises:
            ProcessError: it could not be started, or was killed; that says nothing of the candidate.
        """
        del attempt
        return timed(lambda: self._judge(self.command.realiser.candidate(applied), folder))

    def _judge(self, candidate: Candidate, folder: Path) -> Evaluation:
        try:
            status, output, log = self.command.run(candidate, folder)
        except LimitsExceeded as error:
            if self.command.options.stop.is_set():
                raise KeyboardInterrupt from error
            return Evaluation(verdict=StepVerdict.BAD, signature="timeout", detail=str(error))
        last = next((line for line in reversed(output.splitlines()) if line.strip()), "")
        if status == 0:
            return Evaluation(verdict=StepVerdict.GOOD, detail=last, evidence=str(log))
        if status == _UNTESTABLE:
            return Evaluation(verdict=StepVerdict.UNTESTABLE, detail=last, evidence=str(log))
        if not 0 < status < _NOT_STARTED:
            raise ProcessError(
                f"the judge {self.name!r} gave no verdict",
                because=f"it ended with status {status}; its output is in {log}",
                next_step="let it exit with 0 for good, 1 for bad and 125 for untestable",
            )
        stated = _SIGNATURE.findall(output)
        signature = stated[-1].strip() if stated else f"exit{status}"
        return Evaluation(verdict=StepVerdict.BAD, signature=signature, detail=last, evidence=str(log))


@dataclass(frozen=True)
class CommandSampler:
    """A metric that a command prints: the number behind its name, or else the last line that is a number."""

    command: Command
    metric: str

    @property
    def name(self) -> str:
        """The metric, and the command that prints it."""
        return f"{self.metric} of {shlex.join(self.command.words)!r}"

    def sample(self, applied: frozenset[str], *, number: int, folder: Path) -> float:
        """Run the command on the candidate once.

        Raises:
            UntestableError: the candidate cannot be made, or the command exits with 125.
            ProcessError: the command failed, or printed no number.
        """
        del number
        try:
            status, output, log = self.command.run(self.command.realiser.candidate(applied), folder)
        except LimitsExceeded as error:
            if self.command.options.stop.is_set():
                raise KeyboardInterrupt from error
            raise UntestableError(str(error)) from error
        if status == _UNTESTABLE:
            raise UntestableError(output.strip().rpartition("\n")[2] or "the command exited with 125")
        value = _number(output, self.metric)
        if status or value is None:
            raise ProcessError(
                f"the metric {self.metric} could not be measured",
                because=f"the command ended with status {status}"
                + ("" if value is not None else f" and printed no number; its output is in {log}"),
            )
        return value


@dataclass(frozen=True)
class CheckJudge:
    """Good if a rehearsal of the candidate on this machine's CPU passes a check of `verify`.

    Attributes:
        realiser: merges and pins.
        check: the check's name.
        name: the judge as the user gave it.
    """

    realiser: Realiser
    check: str
    name: str

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
        result = rehearse(self.realiser.exact_job(candidate), report, options)
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


def timed(judge: Callable[[], Evaluation]) -> Evaluation:
    """Return what *judge* says with the seconds that it took; one that cannot be made is untestable."""
    started = time.monotonic()
    try:
        found = judge()
    except UntestableError as error:
        found = Evaluation(verdict=StepVerdict.UNTESTABLE, detail=str(error))
    return structs.replace(found, seconds=round(time.monotonic() - started, 3))


def _number(output: str, name: str) -> float | None:
    """Return the number behind *name* at the start of a line, else the last line that is a number."""
    number = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
    named = re.findall(rf"(?m)^{re.escape(name)}\s*[:=\s]\s*({number})\b", output)
    alone = re.findall(rf"(?m)^\s*({number})\s*$", output)
    found = named or alone
    return float(found[-1]) if found else None


def _described(candidate: Candidate) -> dict[str, object]:
    """Return *candidate* as a command reads it."""
    version = candidate.point.version
    return {
        "digest": candidate.digest,
        "version": version,
        "commit": candidate.point.commit,
        "patchset": candidate.patchset,
        "carries": [
            {"name": carry.name, "content": carry.content_id(version)} for carry in candidate.carries
        ],
        "arch": candidate.arch,
        "requirements": list(candidate.requirements) if candidate.requirements is not None else None,
    }
