"""The rate at which the share of good requests crosses a limit, from counts at several rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.verify.statistics import t_quantile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ROUNDS = 50
_SURE = 0.975
_LEAST = 3
_KNOWN = 0.5
"""Share of the degrees of freedom that the scatter has. Queues are rarely long: most searches see too few
long ones, and take the scatter for smaller than it is more often than with a normal distribution."""


@dataclass(frozen=True)
class Crossing:
    """A rate with its 95 % interval, requests a second."""

    rate: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Half of the interval, relative to the rate."""
        return max(self.rate - self.low, self.high - self.rate) / self.rate

    def within(self, low: float, high: float) -> Crossing:
        """Return the same with every rate between *low* and *high*."""
        return Crossing(*(min(max(one, low), high) for one in (self.rate, self.low, self.high)))


def fit_crossing(counts: Sequence[tuple[float, int, int]], share: float) -> Crossing:
    """Return the rate at which *share* of the requests are good, by logistic regression on its logarithm.

    Requests of one step resemble each other, since one burst delays many: the variance is scaled by the
    steps' own scatter (quasi-likelihood), never below that of independent requests. Half a request of each
    kind is added to a step, so that shares of all and none are finite. The interval is infinite where fewer
    than three steps were given, or where the share does not fall with the rate.

    Args:
        counts: rate, good requests and all requests of each step.
        share: 0 to 1, exclusive.
    """
    import numpy as np

    rates = np.array([rate for rate, _, _ in counts], dtype=np.float64)
    good = np.array([count for _, count, _ in counts], dtype=np.float64) + 0.5
    total = np.array([count for _, _, count in counts], dtype=np.float64) + 1.0
    middle = float(np.log(rates).mean())
    x = np.column_stack([np.ones_like(rates), np.log(rates) - middle])
    unknown = Crossing(math.exp(middle), 0.0, math.inf)
    if rates.size < _LEAST or np.ptp(rates) == 0:
        return unknown
    coefficients, covariance = _regress(x, good, total)
    slope = float(coefficients[1])
    if slope >= 0:
        return unknown
    at = (math.log(share / (1 - share)) - float(coefficients[0])) / slope
    ends = _fieller(float(coefficients[0]) - math.log(share / (1 - share)), slope, covariance, rates.size - 2)
    low, rate, high = (math.exp(min(max(middle + x, -700), 700)) for x in (ends[0], at, ends[1]))
    return Crossing(rate, low, high)


def _fieller(
    height: float, slope: float, covariance: NDArray[np.float64], freedom: int
) -> tuple[float, float]:
    """Return the 95 % interval of the place where a line crosses zero (Fieller's theorem).

    The slope has an error too, so the interval is wider on the side where the line is less well known; it is
    infinite where the slope might be zero.
    """
    quantile = t_quantile(_SURE, max(1.0, _KNOWN * freedom)) ** 2
    a = slope**2 - quantile * float(covariance[1, 1])
    b = height * slope - quantile * float(covariance[0, 1])
    c = height**2 - quantile * float(covariance[0, 0])
    if a <= 0 or b * b < a * c:
        return -math.inf, math.inf
    half = math.sqrt(b * b - a * c)
    return (-b - half) / a, (-b + half) / a


def _regress(
    x: NDArray[np.float64], good: NDArray[np.float64], total: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return coefficients of the log odds and their covariance, by iteratively reweighted least squares."""
    import numpy as np

    share: NDArray[np.float64] = good / total
    odds = np.log(share / (1 - share))
    coefficients: NDArray[np.float64] = np.zeros(2)
    fitted, weights = share, total * share * (1 - share)
    for _ in range(_ROUNDS):
        target = odds + (share - fitted) / (fitted * (1 - fitted))
        gram = x.T @ (weights[:, None] * x)
        new = np.linalg.solve(gram, x.T @ (weights * target))
        done = np.allclose(new, coefficients, atol=1e-9)
        coefficients = np.asarray(new, dtype=np.float64)
        odds = np.asarray(np.clip(x @ coefficients, -30, 30), dtype=np.float64)
        fitted = np.asarray(1 / (1 + np.exp(-odds)), dtype=np.float64)
        weights = total * fitted * (1 - fitted)
        if done:
            break
    covariance: NDArray[np.float64] = np.asarray(np.linalg.inv(x.T @ (weights[:, None] * x)))
    scatter = float(((good - total * fitted) ** 2 / weights).sum()) / max(1, len(total) - 2)
    return coefficients, covariance * max(1.0, scatter)
