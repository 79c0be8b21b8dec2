"""Judges of candidates, by the words of ``--judge``: a merge, a probe, a check, a command or a metric.

Each makes no more of a candidate than it needs: a merge nothing else, a probe the merged tree, a check what
is served, a command what its words mention. What cannot be made is untestable, by `UntestableError`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import to_json
from sparkwright.base.errors import ConfigError, ProcessError
from sparkwright.base.process.session import LimitsExceeded, ProcessLimits, run_limited
from sparkwright.carries.model import ProbeSpec, load_carry
from sparkwright.engine.outcomes import Verifier
from sparkwright.merge.report import OutcomeKind
from sparkwright.probe.environment import prepare_environment
from sparkwright.probe.proof import named_modules
from sparkwright.probe.runner import run_probe
from sparkwright.search.candidates import Realiser
from sparkwright.search.metric import FigureSampler, MetricJudge, Rehearsing, Serving, parse_figure
from sparkwright.search.model import CandidateJudge, Evaluation, StepVerdict
from sparkwright.store.disk import write_atomically

KINDS = "probe FILE, merge [CARRY …], verify CHECK, metric FIGURE@N --worse-by SHARE, run COMMAND …"
_PACKAGE = "vllm"
_OUTPUT = "output.log"
_NO_LIMIT_MIB = 1 << 40
_UNTESTABLE = 125
_NOT_STARTED = 126  # from here on the shell or a signal is what ended the command
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)%")
_SIGNATURE = re.compile(r"^signature:\s*(\S.*)$", re.MULTILINE)
# Undecided is no verdict: more observations are asked for.
_VERDICTS = {
    "passed": StepVerdict.GOOD,
    "failed": StepVerdict.BAD,
    "undecided": StepVerdict.UNSTABLE,
    "skipped": StepVerdict.UNTESTABLE,
}


def make_judge(
    text: str,
    realiser: Realiser,
    verifier: Verifier,
    *,
    timeout_s: float,
    inverted: bool,
    serving: Serving | None = None,
) -> CandidateJudge:
    """Return the judge that *text* names, such as ``probe carries/uma-clamp/probe.py``; see `KINDS`.

    Where it is *inverted*, the start is the bad end, and a metric's baseline is the end; *serving* serves
    wheels instead of a rehearsal.

    Raises:
        ConfigError: it names none.
    """
    try:
        kind, *words = shlex.split(text) or [""]
    except ValueError as error:
        raise _no_judge(text, str(error)) from error
    if serving is not None and kind not in {"verify", "metric"}:
        raise _no_judge(text, "a recipe is for 'verify CHECK' and 'metric FIGURE@N --worse-by SHARE' only")
    if kind == "probe" and len(words) == 1:
        return _probe(text, Path(words[0]).absolute(), realiser)
    if kind == "merge":
        return MergeJudge(realiser, tuple(words), text)
    if kind == "verify" and len(words) == 1:
        host = serving or Rehearsing(realiser, verifier)
        if words[0] not in host.checks:
            raise _no_judge(text, f"the checks are {', '.join(host.checks)}")
        return CheckJudge(host, words[0], f"{text} {host}")
    if kind == "run" and words:
        return CommandJudge(tuple(words), realiser, timeout_s, text)
    if kind == "metric" and words:
        return _metric(text, words, realiser, serving, inverted=inverted)
    raise _no_judge(text, "it is none of the kinds of judge, or lacks its argument")


def _probe(text: str, file: Path, realiser: Realiser) -> ProbeJudge:
    if not file.is_file():
        raise _no_judge(text, f"there is no file {file}")
    judge = ProbeJudge(realiser, file, text)
    if judge.spec.needs:
        raise _no_judge(text, f"the probe needs {', '.join(judge.spec.needs)}, not only the merged tree")
    return judge


def _metric(
    text: str, words: Sequence[str], realiser: Realiser, serving: Serving | None, *, inverted: bool
) -> MetricJudge:
    share = _SHARE.fullmatch(words[2]) if len(words) == 3 and words[1] == "--worse-by" else None  # noqa: PLR2004
    if share is None or not 0 < float(share[1]) < 100:  # noqa: PLR2004 - percent
        raise _no_judge(text, "a metric takes --worse-by SHARE, such as 5%")
    figure = parse_figure(words[0])
    if serving is None:
        raise _no_judge(text, "a figure is of a server on a card: add --recipe")
    everything = frozenset(change.id for change in realiser.difference.changes)
    baseline = everything if inverted else frozenset[str]()
    sampler = FigureSampler(serving, figure)
    return MetricJudge(sampler, float(share[1]) / 100, figure.higher_is_better, baseline)


def _no_judge(text: str, because: str) -> ConfigError:
    return ConfigError(f"{text!r} is no judge", because=because, next_step=f"one of: {KINDS}")


@dataclass(frozen=True)
class ProbeJudge:
    """Good if a probe passes on the candidate's merged tree, untestable where it cannot run.

    The message of one that fails is the signature.
    """

    realiser: Realiser
    file: Path
    name: str

    @cached_property
    def spec(self) -> ProbeSpec:
        """The settings of the carry that the probe belongs to; the usual ones for a probe of none."""
        folder = self.file.parent
        if (folder / "carry.toml").is_file():
            carry = load_carry(folder)
            later = carry.spec.probe.later if carry.spec.probe is not None else ()
            for one in (carry, *(carry.at(probe.release) for probe in later)):
                if one.probe_path == self.file and one.spec.probe is not None:
                    return one.spec.probe
        return ProbeSpec(file=self.file.name)

    def suspects(self, paths: Collection[str]) -> set[str]:
        """Return those of *paths* that the probe names in its imports."""
        files = [self.file, *(self.file.with_name(name) for name in self.spec.helpers)]
        return {*paths} & {path for file in files for path in named_modules(file.read_bytes(), _PACKAGE)}

    def evaluate(self, applied: frozenset[str], *, attempt: int, folder: Path) -> Evaluation:
        """Run the probe on the candidate's merged tree."""
        del attempt
        access, candidate = self.realiser.access, self.realiser.candidate(applied)
        tree, version = self.realiser.tree(candidate), candidate.point.version
        python = prepare_environment(access.store, offline=access.settings.offline)
        run = run_probe(access.store, python, self.file, self.spec, tree, version=version).run
        log = folder / "probe.json"
        write_atomically(log, to_json({"candidate": candidate.describe(), **to_builtins(run)}))
        if run.verdict == "passes":
            return Evaluation(verdict=StepVerdict.GOOD, detail=run.message, evidence=str(log))
        last = run.message.splitlines()[-1] if run.message else ""
        if run.verdict == "error":
            detail = f"the probe could not run: {last}"
            return Evaluation(verdict=StepVerdict.UNTESTABLE, detail=detail, evidence=str(log))
        return Evaluation(
            verdict=StepVerdict.BAD, signature=f"fails: {last}", detail=run.message, evidence=str(log)
        )


@dataclass(frozen=True)
class MergeJudge:
    """Good if every carry, or each of those that are named, merges: a conflict is what is searched for."""

    realiser: Realiser
    carries: tuple[str, ...]
    name: str

    def evaluate(self, applied: frozenset[str], *, attempt: int, folder: Path) -> Evaluation:
        """Merge the candidate."""
        del attempt
        report = self.realiser.outcomes(self.realiser.candidate(applied))
        log = folder / "merge.json"
        write_atomically(log, to_json(to_builtins(report)))
        present = [one for one in report.outcomes if not self.carries or one.carry in self.carries]
        failed = [one for one in present if one.kind in {OutcomeKind.CONFLICT, OutcomeKind.REFUSED}]
        if not failed:
            return Evaluation(verdict=StepVerdict.GOOD, evidence=str(log))
        signature = "; ".join(f"{one.carry}: {one.kind} in {', '.join(one.conflicts)}" for one in failed)
        detail = "; ".join(f"{one.carry}: {one.detail}" for one in failed)
        return Evaluation(verdict=StepVerdict.BAD, signature=signature, detail=detail, evidence=str(log))


@dataclass(frozen=True)
class CheckJudge:
    """Good if the candidate passes a check of `verify` where *host* serves it."""

    host: Rehearsing | Serving
    check: str
    name: str

    def evaluate(self, applied: frozenset[str], *, attempt: int, folder: Path) -> Evaluation:
        """Have the candidate served and verified."""
        del attempt
        found, evidence = self.host.check(applied, self.check, folder)
        return Evaluation(
            verdict=_VERDICTS[found.verdict],
            signature=found.signature,
            detail=found.detail,
            evidence=evidence,
        )


@dataclass(frozen=True)
class CommandJudge:
    """Good if a command exits with 0, untestable with 125, bad with another status below 126.

    It is run in a process group of its own and without a shell. ``{wheel}`` and ``{tree}`` in its words stand
    for the candidate's wheel and for a folder with its merged package; each is made only if it is mentioned.
    The signature is what it prints behind ``signature:`` at the start of a line, or its exit status.
    """

    words: tuple[str, ...]
    realiser: Realiser
    timeout_s: float
    name: str

    def evaluate(self, applied: frozenset[str], *, attempt: int, folder: Path) -> Evaluation:
        """Run the command on the candidate.

        Raises:
            UntestableError: the candidate cannot be made.
            ProcessError: it could not be started, or was killed; that says nothing of the candidate.
        """
        del attempt
        candidate = self.realiser.candidate(applied)
        words, log = list(self.words), folder / _OUTPUT
        for mark, make in {"{tree}": self.realiser.tree, "{wheel}": self.realiser.wheel}.items():
            if any(mark in word for word in words):
                made = str(make(candidate))
                words = [word.replace(mark, made) for word in words]
        try:
            done = run_limited(
                words,
                limits=ProcessLimits(self.timeout_s, _NO_LIMIT_MIB),
                cwd=Path.cwd(),
                env=dict(os.environ),
                log=log,
                guard=True,  # it may run for an hour
            )
        except LimitsExceeded as error:
            return Evaluation(verdict=StepVerdict.BAD, signature="timeout", detail=str(error))
        status, output = done.status, done.stderr
        if not 0 <= status < _NOT_STARTED:
            raise ProcessError(
                f"the judge {self.name!r} gave no verdict",
                because=f"it ended with status {status}; its output is in {log}",
                next_step="let it exit with 0 for good, 1 for bad and 125 for untestable",
            )
        verdict = {0: StepVerdict.GOOD, _UNTESTABLE: StepVerdict.UNTESTABLE}.get(status, StepVerdict.BAD)
        stated = _SIGNATURE.findall(output) or [f"exit{status}"]
        return Evaluation(
            verdict=verdict,
            signature=stated[-1].strip() if verdict is StepVerdict.BAD else "",
            detail=next((line for line in reversed(output.splitlines()) if line.strip()), ""),
            evidence=str(log),
        )
