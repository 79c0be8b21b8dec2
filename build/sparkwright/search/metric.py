"""A judge of a metric: interleaved samples of a candidate and the good end, until their ratio is decided."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sparkwright.base.events import emit
from sparkwright.search.model import Evaluation, Verdict

if TYPE_CHECKING:
    from pathlib import Path

_FIRST_LOOK = 4
_ERROR = 0.05  # of all looks at a candidate together


class Sampler(Protocol):
    """Source of samples of a metric, such as tokens a second of one boot."""

    @property
    def name(self) -> str:
        """The metric's name."""

    def sample(self, applied: frozenset[str], *, number: int, folder: Path) -> float:
        """Measure the start with the changes *applied* once; *number* counts samples of both arms together.

        Raises:
            UntestableError: this candidate cannot be measured.
        """


class UntestableError(Exception):
    """A candidate cannot be measured; the text is the reason."""


@dataclass
class MetricJudge:
    """Judge a candidate as bad if its metric is worse than the good end's by a given share.

    Looks at 4, 8, 16, … samples an arm. A candidate is bad if the interval of the ratio lies wholly on the
    worse side of half that share, and good if wholly on the other; else more samples are taken, and in the
    end it is unstable. Intervals are widened so that all looks together err in at most 5 % of candidates. A
    search takes each verdict as it is: tell it that the judge is deterministic.

    Attributes:
        sampler: measures.
        worse_by: the share, such as 0.05.
        higher_is_better: the metric is a rate, not a time.
        baseline: the changes of the good end: none, or all of them where the start is the bad end.
        most_samples: of one arm, before the candidate is given up as unstable.
        seed: of the resamples.
    """

    sampler: Sampler
    worse_by: float
    higher_is_better: bool
    baseline: frozenset[str] = frozenset()
    most_samples: int = 128
    seed: int = 0
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
        started = time.monotonic()
        verdict, ratio, detail = self._judged(applied, attempt, folder)
        return Evaluation(
            verdict=verdict,
            signature=self.name if verdict is Verdict.BAD else "",
            detail=detail,
            seconds=time.monotonic() - started,
            evidence=str(folder),
            value=ratio,
        )

    def _judged(
        self, applied: frozenset[str], attempt: int, folder: Path
    ) -> tuple[Verdict, float | None, str]:
        if applied == self.baseline:
            return Verdict.GOOD, 1.0, "it is what others are compared with"
        from sparkwright.verify.statistics import hierarchical_bootstrap_log_ratio

        good: list[float] = []
        candidate: list[float] = []
        limit = math.sqrt(1 - self.worse_by)
        looks = math.ceil(math.log2(self.most_samples / _FIRST_LOOK)) + 1
        count = 0
        while True:
            count = min(max(_FIRST_LOOK, 2 * count), self.most_samples)
            try:
                self._sample(applied, good, candidate, count, folder)
            except UntestableError as error:
                return Verdict.UNTESTABLE, None, str(error)
            effect = hierarchical_bootstrap_log_ratio(
                [[[value]] for value in good],
                [[[value]] for value in candidate],
                self.seed + attempt,
                level=1 - _ERROR / looks,
            )
            ratio, low, high = effect.ratio, effect.low, effect.high
            worst, best = (low, high) if self.higher_is_better else (1 / high, 1 / low)
            detail = f"{ratio:.4f} of the good end's ({low:.4f} to {high:.4f}), {count} samples each"
            emit("bisect.metric", ratio=ratio, low=low, high=high, samples=count)
            if best < limit:
                return Verdict.BAD, ratio, detail
            if worst > limit:
                return Verdict.GOOD, ratio, detail
            if count == self.most_samples:
                return Verdict.UNSTABLE, ratio, f"{detail}: not decided"

    def _sample(
        self, applied: frozenset[str], good: list[float], candidate: list[float], count: int, folder: Path
    ) -> None:
        """Bring both arms to *count* samples, in the order ABBA, so that a drift cancels out."""
        while len(candidate) < count:
            turn = [(self.baseline, good), (applied, candidate)]
            for arm, values in turn if len(candidate) % 2 == 0 else turn[::-1]:
                number = len(good) + len(candidate) + 1
                values.append(self.sampler.sample(arm, number=number, folder=folder / f"sample-{number}"))
