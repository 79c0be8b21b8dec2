"""Ratios of speeds with one interval, for every comparison: of wheels, recipes, settings and runs.

Kernels are selected at each start, and a server may be 15 % faster or slower for its whole life. So starts
are the unit of replication: a start gives one value, the mean of logarithms over what all starts measured,
and Student's t over starts gives the interval. What differs between requests of one start needs no model: it
is part of what differs between starts.

Values here are logarithms, one for each start of an arm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sparkwright.verify.statistics import t_quantile

LEAST_STARTS = 2
"""Starts of an arm that its mean represents others by, where no spread is assumed."""
_POWER = 0.8
_LOW = 0.025


@dataclass(frozen=True)
class Spread:
    """The standard deviation of a start's logarithm, the same for all arms.

    Attributes:
        degrees: of freedom that it is known with; infinite where it is assumed.
    """

    deviation: float
    degrees: float

    @classmethod
    def of(cls, arms: Iterable[Sequence[float]], assumed: float = 0.0, weight: float = 0.0) -> Spread:
        """Return the spread within *arms*; arms of one start add nothing to it.

        Args:
            arms: values of each arm's starts.
            assumed: standard deviation before anything was measured.
            weight: degrees of freedom that the assumed one counts as.
        """
        squares, degrees = weight * assumed**2, weight
        for values in arms:
            mean = math.fsum(values) / len(values) if values else 0.0
            squares += math.fsum((value - mean) ** 2 for value in values)
            degrees += max(0, len(values) - 1)
        return cls(math.sqrt(squares / degrees) if degrees else math.inf, degrees)

    def width(self, error: float, *starts: int) -> float:
        """Return the half width of the interval of a difference of means, or of one mean.

        Args:
            error: chance that the truth lies beyond one end.
            starts: of each mean.
        """
        scale = self.deviation * math.sqrt(math.fsum(1 / count for count in starts))
        return t_quantile(1 - error, self.degrees) * scale if self.degrees >= 1 else math.inf


@dataclass(frozen=True)
class Ratio:
    """A ratio with its interval.

    Attributes:
        detectable: the relative difference, 0.05 for 5 %, that would be told from none in four of five
            comparisons with this spread and as many starts.
    """

    value: float
    low: float
    high: float
    detectable: float = math.inf

    def __str__(self) -> str:
        """Return it as a factor, such as ``1.04 (1.01 to 1.07)``."""
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def change(self) -> str:
        """The same as a difference, such as ``+4.0 % (+1.2 % to +6.8 %)``."""
        shown = (f"{100 * (one - 1):+.1f} %" for one in (self.value, self.low, self.high))
        value, low, high = (one.replace("-", "\N{MINUS SIGN}") for one in shown)
        return f"{value} ({low} to {high})"


def ratio_of(
    one: Sequence[float], other: Sequence[float], spread: Spread, error: float, low_error: float = _LOW
) -> Ratio:
    """Return the ratio of *one* to *other*, arms of the same *spread*.

    Args:
        one: values by start.
        other: likewise.
        spread: between starts.
        error: chance that the truth lies above the interval.
        low_error: chance that it lies below.
    """
    difference = math.fsum(one) / len(one) - math.fsum(other) / len(other)
    low, high, power = (spread.width(tail, len(one), len(other)) for tail in (low_error, error, 1 - _POWER))
    value, below, above = (math.exp(one) for one in (difference, difference - low, difference + high))
    return Ratio(value, below, above, math.exp(high + power) - 1)


def compare_starts(
    one: Sequence[Mapping[str, float]],
    other: Sequence[Mapping[str, float]],
    error: float,
    low_error: float = _LOW,
    assumed: float = math.inf,
) -> tuple[Ratio | None, int]:
    """Return the ratio of *one* to *other* over the items that all starts have, and the number of these.

    There is none without a start of each and a common item. Where an arm has a single start, the spread
    between starts is the *assumed* one, and the items tell how sure the rest is.

    Args:
        one: positive values by item of each start, such as tokens a second by prompt.
        other: likewise.
        error: chance that the truth lies above the interval.
        low_error: chance that it lies below.
        assumed: standard deviation between starts; by default unknown, so that the interval is infinite.
    """
    means, items = common_means([*one, *other])
    arms = means[: len(one)], means[len(one) :]
    if not (one and other and items):
        return None, items
    if min(map(len, arms)) >= LEAST_STARTS or math.isinf(assumed):
        few = min(map(len, arms)) < LEAST_STARTS
        return ratio_of(*arms, Spread.of(() if few else arms), error, low_error), items
    by_item = [
        _mean_log(one, name) - _mean_log(other, name)
        for name in sorted(set.intersection(*(set(start) for start in (*one, *other))))
    ]
    # Starts are as fast or slow at every concurrency, so their part needs no correction for its number.
    of_starts = Spread(assumed, math.inf).width(_LOW, len(one), len(other))
    width = math.hypot(of_starts, Spread.of([by_item]).width(error, items))
    middle = math.fsum(arms[0]) / len(one) - math.fsum(arms[1]) / len(other)
    return _around(middle, width), items


def _mean_log(starts: Sequence[Mapping[str, float]], name: str) -> float:
    return math.fsum(math.log(start[name]) for start in starts) / len(starts)


def compare_pairs(one: Sequence[float], other: Sequence[float], error: float) -> Ratio:
    """Return the ratio of *one* to *other*, positive values that were taken in turn, pair by pair.

    A drift of the machine moves both of a pair, so it does not widen the interval.

    Args:
        one: values.
        other: likewise.
        error: chance that the truth lies beyond one end.

    Raises:
        ValueError: a value is not a positive number.
    """
    if not all(0 < value < math.inf for value in (*one, *other)):
        raise ValueError(f"no ratio of {list(one)} to {list(other)}")
    logs = [math.log(first / second) for first, second in zip(one, other, strict=True)]
    return _around(math.fsum(logs) / len(logs), Spread.of([logs]).width(error, len(logs)))


def _around(middle: float, width: float) -> Ratio:
    return Ratio(*(math.exp(middle + side * width) for side in (0, -1, 1)))


def common_means(starts: Sequence[Mapping[str, float]]) -> tuple[list[float], int]:
    """Return for each start the mean logarithm over the items that all *starts* have, and their number.

    Args:
        starts: positive values by item, such as tokens a second by prompt.
    """
    common = sorted(set.intersection(*(set(one) for one in starts))) if starts else []
    return [math.fsum(math.log(one[name]) for name in common) / max(1, len(common)) for one in starts], len(
        common
    )
