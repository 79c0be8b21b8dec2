"""Judge candidates by what they serve: checks, or a figure of a sweep such as ``decode-tok-s@1``.

A figure is judged by interleaved samples of a candidate and the good end, until their ratio is decided.
"""

from __future__ import annotations

import contextlib
import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparkwright.base.config import convert, decode_json, to_builtins
from sparkwright.base.digests import digest_of, sha256_file, to_json
from sparkwright.base.errors import (
    ConfigError,
    EnvironmentSetupError,
    IncompatibleOptionsError,
    LockMismatchError,
    ServerError,
)
from sparkwright.base.events import emit
from sparkwright.base.journal import JournalFile, read_lines
from sparkwright.distributed.cluster import Cluster
from sparkwright.distributed.tasks import Done, TaskLostError, bring_files
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.outcomes import CheckOutcome, CheckRequest, CheckResult, Verifier
from sparkwright.rehearsal.model import DEFAULT, RehearsalOptions
from sparkwright.rehearsal.run import rehearse
from sparkwright.search.candidates import Realiser
from sparkwright.search.model import Evaluation, StepVerdict, UntestableError
from sparkwright.store.disk import storing, write_atomically
from sparkwright.verify.compare import compare_pairs

_FIRST_LOOK = 4
_ERROR = 0.05  # of all looks at a candidate together

SWEEP = "sweep"
_BY_CATEGORY = "served at every level"
_FORM = re.compile(r"([a-z][a-z0-9-]*)@([1-9][0-9]{0,3})")

FIGURES = {
    "decode-tok-s": ("decode tok/s", True),
    "throughput-tok-s": ("steady tok/s", True),
    "acceptance-length": ("MAL", True),
    "ttft-ms": ("TTFT p50 ms", False),
    "ttft-p95-ms": ("TTFT p95 ms", False),
    "tpot-ms": ("TPOT p50 ms", False),
    "verify-step-ms": ("verify step ms", False),
}
"""By name: the figure as a sweep's findings have it, and true if more of it is better."""


@dataclass
class MetricJudge:
    """Judge a candidate as bad if its metric is worse than the good end's by a given share.

    Looks at 4, 8, 16, … samples an arm, taken in turn and compared in pairs. A candidate is bad if the
    interval of the ratio lies wholly on the worse side of half that share, and good if wholly on the other;
    else more samples are taken, and in the end it is unstable. Intervals are widened so that all looks
    together err in at most 5 % of candidates. A search takes each verdict as it is: let
    `SearchProblem.deterministic` be true.

    Attributes:
        higher_is_better: the metric is a rate, not a time.
        baseline: the changes of the good end: none, or all of them where the start is the bad end.
        most_samples: of one arm, before the candidate is given up as unstable.
        kept: folder that keeps finished pairs of samples, so that a killed search takes none of them again.
    """

    sampler: FigureSampler
    worse_by: float
    higher_is_better: bool
    baseline: frozenset[str] = frozenset()
    most_samples: int = 128
    kept: Path | None = None

    @property
    def name(self) -> str:
        """The metric, and the share by which it is worse."""
        return f"metric {self.sampler.name} worse by {self.worse_by:.3g}"

    def evaluate(self, applied: frozenset[str], *, attempt: int, folder: Path) -> Evaluation:
        """Judge the candidate; its value is its metric over the good end's."""
        taken: list[tuple[float, float]] = []
        with contextlib.ExitStack() as stack:
            journal = None
            if self.kept is not None:
                path = self.kept / f"{digest_of(sorted(applied))[:16]}-{attempt}.jsonl"
                journal = stack.enter_context(JournalFile(path, subject="bisection"))
                lines = read_lines(path, subject="bisection")
                taken = [decode_json(line, tuple[float, float]) for line in lines]
            verdict, ratio, detail = self._judged(applied, taken, journal, folder)
        return Evaluation(
            verdict=verdict,
            signature=self.name if verdict is StepVerdict.BAD else "",
            detail=detail,
            evidence=str(folder),
            value=ratio,
        )

    def _judged(
        self,
        applied: frozenset[str],
        taken: list[tuple[float, float]],
        journal: JournalFile | None,
        folder: Path,
    ) -> tuple[StepVerdict, float, str]:
        if applied == self.baseline:
            return StepVerdict.GOOD, 1.0, "it is what others are compared with"
        limit = math.sqrt(1 - self.worse_by)
        looks = math.ceil(math.log2(self.most_samples / _FIRST_LOOK)) + 1
        count = 0
        while True:
            count = min(max(_FIRST_LOOK, 2 * count), self.most_samples)
            while len(taken) < count:
                pair = self._pair(applied, len(taken), folder)
                if journal is not None:
                    journal.append(msgspec.json.encode(pair))  # before the next one is taken
                taken.append(pair)
            good, candidate = zip(*taken[:count], strict=True)
            found = compare_pairs(candidate, good, _ERROR / looks / 2)
            ratio, low, high = found.value, found.low, found.high
            worst, best = (low, high) if self.higher_is_better else (1 / high, 1 / low)
            detail = f"{ratio:.4f} of the good end's ({low:.4f} to {high:.4f}), {count} samples each"
            if best < limit:
                return StepVerdict.BAD, ratio, detail
            if worst > limit:
                return StepVerdict.GOOD, ratio, detail
            if count == self.most_samples:
                return StepVerdict.UNSTABLE, ratio, f"{detail}: not decided"

    def _pair(self, applied: frozenset[str], done: int, folder: Path) -> tuple[float, float]:
        """Return a sample of the good end and one of the candidate, in the order ABBA over two pairs."""
        arms = self.baseline, applied
        values = []
        for place, arm in enumerate(arms if done % 2 == 0 else arms[::-1], 2 * done + 1):
            values.append(self.sampler.sample(arm, folder / f"sample-{place}"))
        good, candidate = values if done % 2 == 0 else values[::-1]
        return good, candidate


@dataclass(frozen=True)
class NamedFigure:
    """A figure at a concurrency."""

    name: str
    level: int

    def __str__(self) -> str:
        """Return it as the user gives it."""
        return f"{self.name}@{self.level}"

    @property
    def higher_is_better(self) -> bool:
        """False for times."""
        return FIGURES[self.name][1]

    def value(self, findings: Sequence[Finding]) -> float:
        """Return the geometric mean of the figure over the categories of a sweep."""
        key = f"c={self.level} {FIGURES[self.name][0]}"
        logs = []
        for finding in findings:
            if finding.check != SWEEP or not finding.name.endswith(_BY_CATEGORY):
                continue
            if finding.verdict is not Verdict.PASS:
                raise UntestableError(f"{finding.name}: {finding.cause}")
            found = finding.measured.get(key)
            if not isinstance(found, float | int) or not 0 < found < math.inf:
                raise UntestableError(f"{finding.name}: there is no {key}")
            logs.append(math.log(found))
        if not logs:
            raise UntestableError("nothing was measured")
        return math.exp(math.fsum(logs) / len(logs))


def parse_figure(text: str) -> NamedFigure:
    """Return the figure that *text* names, such as ``ttft-ms@8``."""
    found = _FORM.fullmatch(text)
    if found is None or found[1] not in FIGURES:
        raise ConfigError(
            f"there is no figure {text!r}",
            because="a figure is NAME@CONCURRENCY, such as decode-tok-s@1",
            next_step=f"take one of {', '.join(FIGURES)}",
        )
    return NamedFigure(found[1], int(found[2]))


# What is served -----------------------------------------------------------------------------------

# Such as a release without a locked runtime, and a wheel without a part that the recipe asks for.
_OF_THE_CANDIDATE = (
    ConfigError, EnvironmentSetupError, IncompatibleOptionsError, LockMismatchError, TaskLostError,
)  # fmt: skip
# One start is one sample: more requests of one start make it no surer.
_SAMPLE = "smoke"
_BOOT = "boot"
_JUDGED = "judged.json"
# Words of uv where the index has not what the wheel requires, or the locked runtime lacks it; others may be
# of the network, the disk or a mirror, and say nothing of the candidate.
_UNSATISFIABLE = re.compile("No solution found|no trusted hash was provided")


@dataclass(frozen=True)
class Rehearsing:
    """Candidates' Python on this machine's CPU, for the checks of a rehearsal."""

    realiser: Realiser
    verifier: Verifier

    @property
    def checks(self) -> Sequence[str]:
        """Names of the checks that can judge."""
        return DEFAULT

    def __str__(self) -> str:
        """Return where candidates are served."""
        return "in a rehearsal"

    def check(self, applied: frozenset[str], check: str, folder: Path) -> tuple[CheckOutcome, str]:
        """Return the outcome of a rehearsal with one check, and its report."""
        candidate = self.realiser.candidate(applied)
        if candidate.point.commit:
            raise UntestableError("upstream has wheels for the CPU of releases only")
        report = self.realiser.merged(candidate)
        options = RehearsalOptions(checks=(check,), out=folder / "rehearsal")
        result = rehearse(self.realiser.exact_job(candidate), report, self.verifier, options)
        if not result.exact:
            raise UntestableError(f"there is no wheel for the CPU of {report.version}")
        return next(one for one in result.checks if one.name == check), result.report


@dataclass(frozen=True)
class Serving:
    """Candidates' wheels, served by a recipe on this machine, or on those of *cluster*."""

    realiser: Realiser
    cluster: Cluster | None
    recipe: str
    verifier: Verifier

    @property
    def checks(self) -> Sequence[str]:
        """Names of the checks that can judge."""
        return self.verifier.checks

    def __str__(self) -> str:
        """Return the machines and the recipe, with the digest of its file."""
        path = Path(self.recipe)
        digest = f" ({sha256_file(path)[:12]})" if path.suffix == ".toml" and path.is_file() else ""
        machines = self.cluster.name if self.cluster else "this machine"
        return f"on {machines} with {path.name}{digest}"

    def check(self, applied: frozenset[str], check: str, folder: Path) -> tuple[CheckOutcome, str]:
        """Return the outcome of one check of the candidate's server, and where all of them are."""
        result = self.verified(applied, folder, checks=(check,))
        by_name = {one.name: one for one in result.outcomes}
        if not result.started and check != _BOOT:
            raise UntestableError(by_name[_BOOT].detail)
        return by_name[check], str(folder / _JUDGED)

    def verified(
        self, applied: frozenset[str], folder: Path, *, checks: tuple[str, ...], levels: tuple[int, ...] = ()
    ) -> CheckResult:
        """Have the candidate's wheel served and verified; the result and the run are kept in *folder*."""
        request = CheckRequest(
            vllm=self.realiser.wheel(self.realiser.candidate(applied)),
            recipe=self.recipe,
            profile=_SAMPLE if levels or self.recipe == _SAMPLE else "full",
            checks=checks,
            levels=levels,
            offline=self.realiser.access.settings.offline,
        )
        try:
            if self.cluster is None:
                result = self.verifier.judge(request, folder / "run")
            else:
                result = self._elsewhere(self.cluster, request, folder)
        except _OF_THE_CANDIDATE as error:
            raise UntestableError(str(error)) from error
        except ServerError as error:
            if not _UNSATISFIABLE.search(error.because):
                raise
            raise UntestableError(str(error)) from error
        with storing(f"writing to {folder}"):
            write_atomically(folder / _JUDGED, to_json(to_builtins(result)))
        return result

    def _elsewhere(self, cluster: Cluster, request: CheckRequest, folder: Path) -> CheckResult:
        found = list[CheckResult]()

        def take(done: Done) -> bool:
            result = convert(done.value, CheckResult)
            if not bring_files(cluster.store, done.files, folder):
                return False
            found.append(result)
            emit("step.finished", machine=done.machine, seconds=round(done.seconds, 3))
            return True

        cluster.run([self.verifier.task(cluster.store, request, f"run-{secrets.token_hex(8)}")], take)
        return found[0]


@dataclass(frozen=True)
class FigureSampler:
    """A figure of one start of a candidate's server."""

    host: Serving
    figure: NamedFigure

    @property
    def name(self) -> str:
        """The figure, and where it is measured."""
        return f"{self.figure} {self.host}"

    def sample(self, applied: frozenset[str], folder: Path) -> float:
        """Start the candidate's server once and measure it.

        Raises:
            UntestableError: it cannot be made, started or measured.
        """
        found = self.host.verified(applied, folder, checks=(SWEEP,), levels=(self.figure.level,))
        if not found.started:
            raise UntestableError(found.outcomes[0].detail)
        return self.figure.value(found.findings)
