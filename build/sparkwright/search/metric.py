"""A judge of a metric: samples of a candidate and of the good end, interleaved, until their ratio is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from sparkwright.search.model import Evaluation


class Sampler(Protocol):
    """Source of one sample of a metric, such as tokens a second of one boot."""

    name: str

    def sample(self, applied: frozenset[str], *, number: int, folder: Path) -> float:
        """Measure the start with the changes *applied* once; *number* counts samples of both arms together.

        Raises:
            UntestableError: this candidate cannot be measured.
        """


class UntestableError(Exception):
    """A candidate cannot be measured; the text is the reason."""


class MetricJudge:
    """Judge a candidate as bad if its metric is worse than the good end's by a given share.

    Looks at 4, 8, 16, … samples an arm. A candidate is bad if the interval of the ratio lies wholly on the
    worse side of half that share, and good if wholly on the other; else more samples are taken, and in the end
    it is unstable. Intervals are widened so that all looks together err in no more than 5 % of candidates.

    Args:
        sampler: measures.
        baseline: the changes of the good end: none, or all of them where the start is the bad end.
        worse_by: the share, such as 0.05.
        higher_is_better: the metric is a rate, not a time.
        most_samples: of one arm, before the candidate is given up as unstable.
        seed: of the resamples.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        baseline: frozenset[str] = frozenset(),
        worse_by: float,
        higher_is_better: bool,
        most_samples: int = 64,
        seed: int = 0,
    ) -> None:
        raise NotImplementedError

    def evaluate(self, applied: frozenset[str], *, attempt: int, folder: Path) -> Evaluation:
        """Judge the candidate; its value is its metric over the good end's."""
        raise NotImplementedError
