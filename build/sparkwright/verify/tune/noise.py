"""Noise between starts, and what it allows to say of two configurations.

Starts are the unit of replication: kernels are selected at each start. All configurations are taken to have
the same spread, which is measured over those that were started several times; until then it is assumed, with
the weight of a few starts, so that a single start decides nothing by luck.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparkwright.verify.statistics import t_quantile

ASSUMED = 4.0
"""Degrees of freedom that the assumed spread counts as."""


@dataclass(frozen=True)
class Noise:
    """The spread between starts of one configuration.

    Attributes:
        spread: standard deviation of the logarithm.
    """

    spread: float
    degrees: float

    @classmethod
    def measured(cls, repeated: Iterable[Sequence[float]], assumed: float) -> Noise:
        """Return the spread within *repeated*, one sequence of logarithms for each configuration.

        Args:
            repeated: values of all starts; sequences of one add nothing.
            assumed: standard deviation before anything was measured.
        """
        squares, degrees = ASSUMED * assumed**2, ASSUMED
        for values in repeated:
            if len(values) > 1:
                mean = math.fsum(values) / len(values)
                squares += math.fsum((value - mean) ** 2 for value in values)
                degrees += len(values) - 1
        return cls(math.sqrt(squares / degrees), degrees)

    def half_width(self, error: float, *counts: int) -> float:
        """Return the half width of an interval of a difference of means, or of one mean.

        Args:
            error: chance that the truth lies beyond one end.
            counts: starts of each mean.
        """
        scale = math.sqrt(math.fsum(1 / count for count in counts))
        return t_quantile(1 - error, self.degrees) * self.spread * scale


@dataclass(frozen=True)
class Ratio:
    """A ratio with its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{percent(self.value)} ({percent(self.low)} to {percent(self.high)})"


def percent(ratio: float) -> str:
    """Return a ratio as a difference: 1.04 as ``+4.0 %``."""
    return f"{100 * (ratio - 1):+.1f} %".replace("-", "\N{MINUS SIGN}")


def ratio_of(one: Sequence[float], other: Sequence[float], noise: Noise, error: float) -> Ratio:
    """Return the ratio of *one* to *other*, from logarithms by start.

    Args:
        one: of the numerator.
        other: of the denominator.
        noise: spread between starts.
        error: chance that the truth lies beyond one end of the interval.
    """
    difference = _mean(one) - _mean(other)
    width = noise.half_width(error, len(one), len(other))
    return Ratio(math.exp(difference), math.exp(difference - width), math.exp(difference + width))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
