"""A judge of a figure of `verify`'s sweep, such as ``decode-tok-s@1``.

It takes interleaved samples of a candidate and the good end, until their ratio is decided.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ConfigError
from sparkwright.base.events import emit
from sparkwright.base.journal import JournalFile, read_lines
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.search.model import Evaluation, StepVerdict, UntestableError
from sparkwright.verify.compare import compare_pairs

if TYPE_CHECKING:
    from sparkwright.search.served import FigureSampler

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
        worse_by: the share, such as 0.05.
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
    name: str = field(init=False)

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            ValueError: the share is not between 0 and 1, or too few samples are allowed for a first look.
        """
        if not 0 < self.worse_by < 1 or self.most_samples < _FIRST_LOOK:
            raise ValueError(f"no metric can be judged by {self.worse_by} with {self.most_samples} samples")
        self.name = f"metric {self.sampler.name} worse by {self.worse_by:.3g}"

    def evaluate(self, applied: frozenset[str], *, attempt: int, folder: Path) -> Evaluation:
        """Judge the candidate; its value is its metric over the good end's."""
        name = f"{digest_of(sorted(applied))[:16]}-{attempt}.jsonl"
        with Pairs(self.kept / name if self.kept else None) as pairs:
            verdict, ratio, detail = self._judged(applied, pairs, folder)
        return Evaluation(
            verdict=verdict,
            signature=self.name if verdict is StepVerdict.BAD else "",
            detail=detail,
            evidence=str(folder),
            value=ratio,
        )

    def _judged(self, applied: frozenset[str], pairs: Pairs, folder: Path) -> tuple[StepVerdict, float, str]:
        if applied == self.baseline:
            return StepVerdict.GOOD, 1.0, "it is what others are compared with"
        limit = math.sqrt(1 - self.worse_by)
        looks = math.ceil(math.log2(self.most_samples / _FIRST_LOOK)) + 1
        count = 0
        while True:
            count = min(max(_FIRST_LOOK, 2 * count), self.most_samples)
            while len(pairs.taken) < count:
                pairs.add(*self._pair(applied, len(pairs.taken), folder))
            good, candidate = zip(*pairs.taken[:count], strict=True)
            found = compare_pairs(candidate, good, _ERROR / looks / 2)
            ratio, low, high = found.value, found.low, found.high
            worst, best = (low, high) if self.higher_is_better else (1 / high, 1 / low)
            detail = f"{ratio:.4f} of the good end's ({low:.4f} to {high:.4f}), {count} samples each"
            emit("bisect.metric", ratio=ratio, low=low, high=high, samples=count)
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


class Pairs:
    """Pairs of samples, each on the disk before the next is taken; without a file, in memory alone."""

    def __init__(self, path: Path | None) -> None:
        """Open the file at *path* and read its pairs.

        Raises:
            StorageError: it cannot be written.
        """
        self.journal = None if path is None else JournalFile(path, subject="bisection")
        lines = [] if path is None else read_lines(path, subject="bisection")
        self.taken = [decode_json(line, tuple[float, float]) for line in lines]

    def __enter__(self) -> Self:
        """Return the pairs."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        if self.journal is not None:
            self.journal.close()

    def add(self, good: float, candidate: float) -> None:
        """Append a pair.

        Raises:
            StorageError: it could not be written.
        """
        if self.journal is not None:
            self.journal.append(msgspec.json.encode([good, candidate]))
        self.taken.append((good, candidate))


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
        """Return the geometric mean of the figure over the categories of a sweep.

        Raises:
            UntestableError: a request failed, or the figure is missing.
        """
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
    """Return the figure that *text* names, such as ``ttft-ms@8``.

    Raises:
        ConfigError: it names none.
    """
    found = _FORM.fullmatch(text)
    if found is None or found[1] not in FIGURES:
        raise ConfigError(
            f"there is no figure {text!r}",
            because="a figure is NAME@CONCURRENCY, such as decode-tok-s@1",
            next_step=f"take one of {', '.join(FIGURES)}",
        )
    return NamedFigure(found[1], int(found[2]))
