"""Figures of one set of values, tests of differences, and drifts over time.

Distributions, ranks and slopes are scipy's. Every function refuses empty input and NaN with `ValueError`
instead of returning NaN, which no comparison with a limit would catch. Times are the client's: divide a rate
of a server whose clock runs *speed* times as fast by *speed*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.engine.observations import Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float64]


LEAST_FOR_P99 = 100


@dataclass(frozen=True)
class Summary:
    """Percentiles of a set of values; no 99th of fewer than 100, of which at most one could lie above it."""

    p50: float
    p95: float
    p99: float | None


def finite(values: Sequence[float], least: int = 1) -> Values:
    """Return the values as an array of float64, shape (n,).

    Raises:
        ValueError: there are fewer than *least*, or one is not finite.
    """
    import numpy as np

    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size < least:
        raise ValueError(f"at least {least} values are needed, and here are {array.size}")
    if not np.isfinite(array).all():
        raise ValueError("a value is not finite")
    return array


def percentile(values: Sequence[float], q: float) -> float:
    """Return the *q*-th percentile (0 to 100), linearly interpolated (Hyndman and Fan 1996, type 7)."""
    import numpy as np

    return float(np.percentile(finite(values), q))


def summary(values: Sequence[float]) -> Summary:
    """Return the percentiles of *values*."""
    import numpy as np

    array = finite(values)
    p50, p95, p99 = (float(p) for p in np.percentile(array, (50, 95, 99)))
    return Summary(p50, p95, p99 if array.size >= LEAST_FOR_P99 else None)


def ratio_interval(
    sums: Sequence[float], counts: Sequence[float], level: float = 0.95
) -> tuple[float, float, float]:
    """Return the mean of values that come in clusters, and its confidence interval.

    Values within a cluster depend on each other, so clusters are the units: the variance is that of a ratio
    of two sums (linearized), and quantiles are those of Student's t.

    Raises:
        ValueError: there are fewer than two clusters, or a value is not finite.
    """
    import numpy as np

    total, many = finite(sums, 2), finite(counts, 2)
    n = total.size
    mean = float(total.sum() / many.sum())
    rest = total - mean * many
    error = float(np.sqrt(n / (n - 1) * (rest**2).sum()) / many.sum())
    width = t_quantile(0.5 + level / 2, n - 1) * error
    return mean, mean - width, mean + width


def t_quantile(p: float, degrees: float) -> float:
    """Return the quantile of Student's t distribution.

    Raises:
        ValueError: *p* is not between 0 and 1, or there is less than one degree of freedom.
    """
    from scipy.special import stdtrit

    if not 0 < p < 1 or degrees < 1:
        raise ValueError(f"no t quantile {p} for {degrees} degrees of freedom")
    return float(stdtrit(degrees, p))


# Differences and drifts -----------------------------------------------------------------------------------

SHUFFLES = 10_000


def one_sided_excess(null: Sequence[float], observed: Sequence[float], seed: int = 0) -> float:
    """Return the probability of values as large as *observed* if they have the distribution of *null*.

    Wilcoxon's rank-sum test against "larger", by 10 000 permutations, so that ties need no care. Give one
    value for each prompt, 0 where there is nothing: then rate and size of what is not 0 count together.

    False alarms, counted over 400 seeds with 10 to 96 values a side: 2.8 to 4.5 % at p < 0.05, 0.3 to 0.8 %
    at p < 0.01.

    Args:
        null: values that are known to be in order, shape (n,).
        observed: values to judge, shape (m,).
        seed: seed of the permutations.

    Returns:
        The p-value, at least 1/10001.

    Raises:
        ValueError: either is empty or not finite.
    """
    import numpy as np
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate([finite(null), finite(observed)]))
    sum_of_ranks = ranks[len(null) :].sum()
    shuffled = np.random.default_rng(seed).permuted(np.tile(ranks, (SHUFFLES, 1)), axis=1)
    as_large = (shuffled[:, len(null) :].sum(axis=1) >= sum_of_ranks - 1e-9).sum()
    return float((1 + as_large) / (1 + SHUFFLES))


def mcnemar(b: int, c: int) -> float:
    """Return the two-sided p-value of McNemar's exact test: *b* pairs changed one way, *c* the other.

    Under the null a pair that changed did so either way with probability 1/2 (McNemar 1947; the exact form
    is a sign test).

    Raises:
        ValueError: a count is negative.
    """
    if min(b, c) < 0:
        raise ValueError(f"counts of pairs are {b} and {c}")
    from scipy.stats import binomtest

    return float(binomtest(b, b + c).pvalue) if b + c else 1.0


LEAST_FOR_INTERVAL = 5


@dataclass(frozen=True)
class Slope:
    """A robust slope in units of y a unit of x, and its 95 % interval."""

    slope: float
    low: float
    high: float


def theil_sen(x: Sequence[float], y: Sequence[float], level: float = 0.95) -> Slope:
    """Return the median of the slopes between all pairs (Theil 1950), with Sen's interval (1968).

    The interval counts pairs by the variance of Kendall's S, corrected for ties. It is infinite where
    there are too few values for any.

    False alarms, as counted over 1000 seeds for 8 to 120 values of pure noise: the whole interval lies below
    0 in 1 to 2.5 % of cases. Where neighbours resemble each other it does so more often: with a correlation
    of 0.3 from one to the next in 3 to 6 %, with 0.6 in 7 to 16 %. So require a size of the slope, too.
    """
    import numpy as np
    from scipy.stats import theilslopes

    times, values = finite(x, 2), finite(y, 2)
    if times.size != values.size:
        raise ValueError(f"{times.size} times and {values.size} values")
    if times.min() == times.max():
        raise ValueError("all times are the same")
    with np.errstate(invalid="ignore"):  # ties can leave no variance: the interval is NaN then
        slope, _, low, high = map(float, theilslopes(values, times, level))
    if times.size < LEAST_FOR_INTERVAL:  # no order of so few is rare enough
        return Slope(slope, -math.inf, math.inf)
    return Slope(slope, slope, slope) if math.isnan(low) else Slope(slope, low, high)


# The part of a run with the full concurrency ---------------------------------------------------------------

PLATEAU = 0.95


@dataclass(frozen=True)
class Window:
    """A stretch of time and the tokens generated in it.

    Attributes:
        begin: ns of the client's clock.
        end: likewise; equal to `begin` if there is no such stretch.
        tokens: generated after `begin` and up to `end`, by requests that did not fail.
    """

    begin: int
    end: int
    tokens: float

    @property
    def seconds(self) -> float:
        """Return its length on the client's clock."""
        return (self.end - self.begin) / 1e9

    @property
    def tokens_per_s(self) -> float:
        """Return the throughput on the client's clock; 0 if the window is empty."""
        return self.tokens / self.seconds if self.end > self.begin else 0.0

    def __bool__(self) -> bool:
        """Tell if the window is not empty."""
        return self.end > self.begin


def steady_window(samples: Sequence[Sample], concurrency: int) -> Window:
    """Return the time from the first moment at 95 % of *concurrency* until it falls below that for good.

    The rule is that of vLLM's Rust benchmark: it leaves out the rise at the beginning and the drain at the
    end, and keeps the moments between one request's end and the next one's start. Failed requests count as
    running, and their tokens do not count. The window is empty if the concurrency was never reached.

    Args:
        samples: of a closed loop; warm-ups are left out.
        concurrency: intended number of requests at a time.
    """
    counted = [sample for sample in samples if sample.counted]
    enough = max(1, math.ceil(PLATEAU * concurrency - 1e-9))  # 0.95 * 20 is 19, not a bit more
    running, begin, end = 0, None, None
    for at, step in _steps(counted):
        running += step
        if step > 0 and running >= enough and begin is None:
            begin = at
        if step < 0 and running == enough - 1 and begin is not None:
            end = at
    if begin is None or end is None:
        return Window(0, 0, 0.0)
    return Window(begin, end, _tokens(counted, begin, end))


def whole_run(samples: Sequence[Sample]) -> Window:
    """Return the window from the first start to the last end, without warm-ups; empty without samples."""
    counted = [sample for sample in samples if sample.counted]
    if not counted:
        return Window(0, 0, 0.0)
    begin, end = min(s.started for s in counted), max(s.ended for s in counted)
    return Window(begin, end, _tokens(counted, begin, end))


def _steps(samples: Sequence[Sample]) -> list[tuple[int, int]]:
    """Return starts (+1) and ends (-1) in order; at the same moment ends come first."""
    return sorted([*((s.started, 1) for s in samples), *((s.ended, -1) for s in samples)])


def _tokens(samples: Sequence[Sample], begin: int, end: int) -> float:
    arrived: list[float] = []
    for sample in samples:
        if sample.failure is None:
            arrived += _arrived(sample, begin, end)
    return math.fsum(arrived)


def _arrived(sample: Sample, begin: int, end: int) -> list[float]:
    """Return the counts of the tokens that arrive after *begin* and until *end*, one for each chunk.

    Where chunks have no count of their own, all are taken to have the same; those of all chunks add up
    to the server's count.
    """
    output = sample.output_tokens
    total = sum([chunk.tokens for chunk in sample.chunks])
    if total:
        return [chunk.tokens / total * output for chunk in sample.chunks if begin < chunk.at <= end]
    return [1 / len(sample.chunks) * output for chunk in sample.chunks if begin < chunk.at <= end]
