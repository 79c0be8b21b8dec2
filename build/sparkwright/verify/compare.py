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
from functools import cached_property

from sparkwright.engine.findings import Verdict
from sparkwright.verify.statistics import t_quantile

LOOKS = (3, 5, 7, 10)
"""Starts of each server after which the comparison is judged: it ends as soon as it is decided."""
FALSE_WORSE = 0.008
"""Chance that a server as fast as the reference is called worse, over all of these moments."""
TRIVIAL = 0.02
"""A server that is slower by less passes, however surely."""
MATERIAL = 0.04
"""Largest slowdown within the interval of a server that passes before the last start."""
TOLERANCE = 0.10
"""The same after the last one, and of any one concurrency."""
SPREAD = 0.025
"""Assumed standard deviation between starts of one server, where a side has a single one."""
_LOW = 0.025
_EACH = 0.1
"""Share of the error that single concurrencies have: starts are as fast or slow at all of them."""


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
        """Return the half width of the interval of a difference of means, or of one mean."""
        scale = self.deviation * math.sqrt(math.fsum(1 / count for count in starts))
        return t_quantile(1 - error, self.degrees) * scale if self.degrees >= 1 else math.inf


@dataclass(frozen=True)
class Ratio:
    """A ratio with its interval."""

    value: float
    low: float
    high: float

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
    low, high = (spread.width(tail, len(one), len(other)) for tail in (low_error, error))
    return Ratio(*(math.exp(end) for end in (difference, difference - low, difference + high)))


@dataclass(frozen=True)
class Look:
    """A moment at which a comparison is judged."""

    starts: int
    last: bool = True
    error: float = FALSE_WORSE

    @property
    def allowed(self) -> float:
        """Largest slowdown within the interval of a server that passes."""
        return TOLERANCE if self.last else MATERIAL


def looks_of(least: int, most: int) -> list[Look]:
    """Return the moments at which a comparison of *least* to *most* starts is judged.

    Later ones have more of the error: the fewer the starts, the less they show.
    """
    planned = sorted({least, *(one for one in LOOKS if least < one < most), max(least, most)})
    return [Look(starts, starts == planned[-1], FALSE_WORSE * starts / sum(planned)) for starts in planned]


@dataclass(frozen=True)
class Compared:
    """A server beside the reference, over all concurrencies and at each."""

    one: Mapping[int, Sequence[float]]
    other: Mapping[int, Sequence[float]]
    look: Look

    @cached_property
    def overall(self) -> Ratio:
        """The ratio over all concurrencies, each of the same weight."""
        one, other = (
            [math.fsum(start) / len(start) for start in zip(*side.values(), strict=True)]
            for side in (self.one, self.other)
        )
        return self._ratio(one, other, (1 - _EACH) * self.look.error)

    @cached_property
    def levels(self) -> dict[int, Ratio]:
        """The ratio at each concurrency."""
        error = _EACH * self.look.error / len(self.one)
        return {level: self._ratio(self.one[level], self.other[level], error) for level in self.one}

    def _ratio(self, one: Sequence[float], other: Sequence[float], error: float) -> Ratio:
        arms = list(one), list(other)
        few = min(map(len, arms)) < 2  # noqa: PLR2004 - no spread
        return ratio_of(*arms, Spread(SPREAD, math.inf) if few else Spread.of(arms), error)

    @property
    def worse(self) -> dict[str, Ratio]:
        """Ratios, by concurrency or "overall", that are surely below 1 and lower by more than 2 %."""
        found = {"overall": self.overall, **{f"c={level}": one for level, one in self.levels.items()}}
        return {name: one for name, one in found.items() if one.high < 1 and one.value < 1 - TRIVIAL}

    @property
    def verdict(self) -> Verdict:
        """Fail if any is worse; pass if the intervals end above what the look allows; else inconclusive."""
        if self.worse:
            return Verdict.FAIL
        passes = self.overall.low >= 1 - self.look.allowed and not self._wide
        return Verdict.PASS if passes else Verdict.INCONCLUSIVE

    @property
    def _wide(self) -> dict[int, Ratio]:
        """Ratios, by concurrency, that may be lower than any that passes."""
        return {level: one for level, one in self.levels.items() if one.low < 1 - TOLERANCE}

    def __str__(self) -> str:
        if self.worse:
            return f"worse: {', '.join(f'{name} {one.change}' for name, one in self.worse.items())}"
        word = "better" if self.overall.low > 1 else "not worse"
        most = max(0.0, 100 * (1 - self.overall.low))
        shown = f"{self.overall.change}, not more than {most:.1f} % slower"
        if self.verdict is Verdict.PASS:
            return f"{word}: {shown}"
        wide = "".join(f"; at c={level} {one.change}" for level, one in self._wide.items())
        return f"undecided: {shown}{wide}"


def compare_pairs(one: Sequence[float], other: Sequence[float], error: float) -> Ratio:
    """Return the ratio of *one* to *other*, positive values that were taken in turn, pair by pair.

    A drift of the machine moves both of a pair, so it does not widen the interval.

    Raises:
        ValueError: a value is not a positive number.
    """
    if not all(0 < value < math.inf for value in (*one, *other)):
        raise ValueError(f"no ratio of {list(one)} to {list(other)}")
    logs = [math.log(first / second) for first, second in zip(one, other, strict=True)]
    middle, width = math.fsum(logs) / len(logs), Spread.of([logs]).width(error, len(logs))
    return Ratio(*(math.exp(middle + side * width) for side in (0, -1, 1)))
