"""Figures of one set of values, and their confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

LEAST_FOR_P99 = 100


@dataclass(frozen=True)
class Summary:
    """Figures of a set of values, in their unit.

    Attributes:
        std: standard deviation of the population (``ddof=0``, as vLLM's own benchmark reports it).
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
    """Return mean, spread and percentiles."""
    import numpy as np

    array = finite(values)
    p50, p90, p95, p99 = (float(p) for p in np.percentile(array, (50, 90, 95, 99)))
    enough = array.size >= LEAST_FOR_P99
    return Summary(
        array.size, float(array.mean()), float(array.std()), p50, p90, p95, p99 if enough else None
    )


def ratio_interval(
    sums: Sequence[float], counts: Sequence[float], level: float = 0.95
) -> tuple[float, float, float]:
    """Return the mean of values that come in clusters, and its confidence interval.

    Values within a cluster depend on each other, so clusters are the units: the variance is that of a ratio
    of two sums (linearized), and quantiles are those of Student's t.

    Args:
        sums: of the values, by cluster.
        counts: of the values, by cluster.
        level: of the interval.

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
    from scipy.stats import t

    if not 0 < p < 1 or degrees < 1:
        raise ValueError(f"no t quantile {p} for {degrees} degrees of freedom")
    return float(t.ppf(p, degrees))
