"""Axes: from values to places, with ticks where a reader expects them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sparkwright.verify.report.text import MINUS, number

if TYPE_CHECKING:
    from collections.abc import Iterable

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_FINER = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


@dataclass(frozen=True)
class Axis:
    """Where values lie between 0 and 1, and which of them are labelled.

    Attributes:
        title: what is shown, with its unit.
        low: the value at 0.
        high: the value at 1.
        ticks: labelled values.
        kind: linear or logarithmic.
    """

    title: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    kind: Literal["linear", "log"] = "linear"

    def __call__(self, value: float) -> float:
        """Where *value* lies; what is outside of the axis lies at its end."""
        if self.kind == "log":
            value, low, high = math.log(max(value, self.low)), math.log(self.low), math.log(self.high)
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low)))


def linear(
    title: str,
    values: Iterable[float],
    *,
    zero: bool = True,
    most: float = math.inf,
    ticks: int = 5,
    percent: bool = False,
) -> Axis:
    """An axis with round ticks around *values*.

    Args:
        title: see `Axis`.
        values: what must fit.
        zero: whether it begins at 0, as lengths of bars and amounts must.
        most: where it ends at the latest, such as 1 for a share.
        ticks: about how many.
        percent: whether 0.25 is labelled ``25 %``.
    """
    found = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(found), max(found)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high == low:
        low, high = (low, low + 1) if zero else (low - 0.5, high + 0.5)
    step = _step((high - low) / ticks)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(min(high, most) / step - 1e-9)
    marks = [round(index * step, 12) for index in range(first, last + 1)]
    labels = [f"{number(round(mark * 100, 9))} %" if percent else number(mark) for mark in marks]
    return Axis(title, marks[0], max(marks[-1], marks[0] + step), tuple(zip(marks, labels, strict=True)))


def _step(rough: float) -> float:
    """The first round step that is not below *rough*."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in _STEPS if step * power >= rough * (1 - 1e-9))


def log2(title: str, values: Iterable[float]) -> Axis:
    """An axis on which doubling is always the same way, as for concurrency."""
    found = [value for value in values if value > 0] or [1.0]
    first, last = math.floor(math.log2(min(found))), math.ceil(math.log2(max(found)))
    last = max(last, first + 1)
    marks = [2.0**power for power in range(first, last + 1)]
    return Axis(title, marks[0], marks[-1], tuple((mark, number(mark)) for mark in marks), "log")


def log10(title: str, values: Iterable[float]) -> Axis:
    """An axis for what spans orders of magnitude, as times to the first token do."""
    found = [value for value in values if value > 0 and math.isfinite(value)] or [1.0]
    powers = range(math.floor(math.log10(min(found))), math.ceil(math.log10(max(found))) + 1)
    fine = [round(digit * 10.0**power, 12) for power in powers for digit in (1, 2, 5)]
    low = max((mark for mark in fine if mark <= min(found)), default=fine[0])
    high = min((mark for mark in fine if mark >= max(found)), default=fine[-1])
    if high == low:
        high = fine[fine.index(low) + 1] if low != fine[-1] else low * 2
    inside = [mark for mark in fine if low <= mark <= high]
    coarse = [mark for mark in inside if math.log10(mark) == round(math.log10(mark))]
    marks = coarse if len(inside) > 9 and len(coarse) > 2 else inside  # noqa: PLR2004
    if len(inside) < 4:  # noqa: PLR2004 - too few to read values off
        finer = [round(digit * 10.0**power, 12) for power in powers for digit in _FINER]
        marks = [mark for mark in finer if low <= mark <= high]
    return Axis(title, low, high, tuple((mark, number(mark)) for mark in marks), "log")


def minutes(title: str, longest: float, ticks: int = 8) -> Axis:
    """An axis of time from 0 to *longest* seconds, labelled in seconds, minutes or hours."""
    longest = max(longest, 1.0)
    step = next((step for step in _SECONDS if step >= longest / ticks), 86400)
    unit, size = next(
        (unit, size) for unit, size in (("h", 3600), ("min", 60), ("s", 1)) if step >= size or size == 1
    )
    marks = range(0, math.floor(longest / step) * step + 1, step)
    labels = tuple((float(mark), number(mark / size)) for mark in marks)
    return Axis(f"{title} ({unit})", 0.0, longest, labels)


def ratios(title: str, values: Iterable[float]) -> Axis:
    """A logarithmic axis around 1, as wide to both sides, labelled as changes in percent.

    It shows at least ±10 % and at most a quarter to four times; intervals without an end lie at its edge.
    """
    found = [abs(math.log(value)) for value in values if 0 < value < math.inf] or [0.0]
    reach = min(math.log(4), max(math.log(1.1), max(found) * 1.1))
    changes = next(marks for most, marks in _CHANGES if math.exp(reach) - 1 <= most)
    marks = [1.0, *(1 + sign * change / 100 for change in changes for sign in (1, -1))]
    inside = sorted(mark for mark in marks if math.exp(-reach) <= mark <= math.exp(reach))
    ticks = tuple((mark, _change(mark)) for mark in inside)
    return Axis(title, math.exp(-reach), math.exp(reach), ticks, "log")


# Labelled changes in percent, by the largest change that fits.
_CHANGES = (
    (0.16, (5, 10, 15)),
    (0.35, (10, 20, 30)),
    (0.8, (20, 40, 60)),
    (math.inf, (50, 100, 200, 300)),
)


def _change(ratio: float) -> str:
    if ratio == 1:
        return "equal"
    return f"{'+' if ratio > 1 else MINUS}{number(round(abs(ratio - 1) * 100, 6))} %"
