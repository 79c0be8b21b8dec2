"""Figures of one set of values, and how sure they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float64]
    Statistic = Callable[[Values], float]

__all__ = ["Interval", "Summary", "bootstrap_interval", "bootstrap_ratio", "percentile", "summary"]

RESAMPLES = 2000
LEAST_FOR_P99 = 100
_STANDARD = NormalDist()


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Summary:
    """Figures of a set of values, in their unit.

    Attributes:
        n: how many.
        mean: arithmetic.
        std: of the population (``ddof=0``, as vLLM's own benchmark reports it).
        p50: the median.
        p90: 90th percentile.
        p95: 95th percentile.
        p99: 99th percentile; `None` for fewer than 100 values, of which at most one could lie above it.
    """

    n: int
    mean: float
    std: float
    p50: float
    p90: float
    p95: float
    p99: float | None


def finite(values: Sequence[float], least: int = 1) -> Values:
    """The values as an array of float64, shape (n,).

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
    """The *q*-th percentile (0 to 100), linear between order statistics (Hyndman and Fan 1996, type 7)."""
    import numpy as np

    return float(np.percentile(finite(values), q))


def summary(values: Sequence[float]) -> Summary:
    """Mean, spread and percentiles."""
    import numpy as np

    array = finite(values)
    p50, p90, p95, p99 = (float(p) for p in np.percentile(array, (50, 90, 95, 99)))
    enough = array.size >= LEAST_FOR_P99
    return Summary(
        array.size, float(array.mean()), float(array.std()), p50, p90, p95, p99 if enough else None
    )


def bootstrap_interval(
    values: Sequence[float], statistic: Statistic, seed: int, level: float = 0.95
) -> Interval:
    """Confidence interval of a statistic: bias-corrected and accelerated bootstrap (BCa; Efron 1987).

    Counted over 300 seeds of log-normal values (sigma 0.5), a 95 % interval of the mean holds it in 86 % of
    cases with 8 values, 91 % with 24 and 94 % with 100; of the median in 88 and 94 % with 8 and 24.

    Args:
        values: independent, shape (n,).
        statistic: of an array of shape (n,), such as ``numpy.median``.
        seed: of the 2000 resamples.
        level: how often such intervals hold the true value.
    """
    import numpy as np

    array = finite(values)
    observed = float(statistic(array))
    if array.size == 1:
        return Interval(-math.inf, math.inf)  # one value says nothing of its own spread
    resampled = _resample(array, statistic, np.random.default_rng(seed))
    left_out = np.array([statistic(np.delete(array, index)) for index in range(array.size)])
    return _bca(resampled, observed, left_out, level)


def bootstrap_ratio(
    over: Sequence[float], under: Sequence[float], statistic: Statistic, seed: int, level: float = 0.95
) -> Interval:
    """Percentile interval of ``statistic(over) / statistic(under)``, both resampled independently.

    Counted over 300 seeds, a 95 % interval of a ratio of means (log-normal, sigma 0.3) holds the truth in
    82 % of cases with 4 values each, 90 % with 8 and 94 % with 24: few values promise too much.

    Args:
        over: independent values, shape (n,).
        under: others, shape (m,), on which the statistic is positive.
        statistic: as for `bootstrap_interval`.
        seed: of the 2000 resamples.
        level: how often such intervals hold the true ratio.

    Raises:
        ValueError: the statistic of *under* is not always positive.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    numerators = _resample(finite(over, 2), statistic, random)
    denominators = _resample(finite(under, 2), statistic, random)
    if not (denominators > 0).all():
        raise ValueError("what is divided by is not always positive")
    tail = 50 * (1 - level)
    low, high = np.percentile(numerators / denominators, (tail, 100 - tail))
    return Interval(float(low), float(high))


def _resample(array: Values, statistic: Statistic, random: np.random.Generator) -> Values:
    import numpy as np

    draws = random.integers(array.size, size=(RESAMPLES, array.size))
    return np.array([statistic(row) for row in array[draws]], dtype=np.float64)


def _bca(resampled: Values, observed: float, left_out: Values, level: float) -> Interval:
    """Percentiles of *resampled*, shifted for bias (ties count half) and skew (from the jackknife)."""
    import numpy as np

    below = np.mean(resampled < observed) + np.mean(resampled == observed) / 2
    bias = _STANDARD.inv_cdf(min(max(float(below), 1 / resampled.size), 1 - 1 / resampled.size))
    away = left_out.mean() - left_out
    spread = float((away**2).sum()) ** 1.5
    skew = float((away**3).sum()) / (6 * spread) if spread > 0 else 0.0

    def place(q: float) -> float:
        shifted = bias + _STANDARD.inv_cdf(q)
        return 100 * _STANDARD.cdf(bias + shifted / (1 - skew * shifted))

    tail = (1 - level) / 2
    low, high = np.percentile(resampled, (place(tail), place(1 - tail)))
    return Interval(float(low), float(high))
