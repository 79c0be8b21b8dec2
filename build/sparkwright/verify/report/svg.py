"""Lines over one x axis as inline SVG, in the colours and the text of the page: light, dark or printed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from sparkwright.base.text import clean
from sparkwright.verify.report.overview import number

# The narrowest page has room for a drawing of this width without scaling, so that its words stay readable.
_WIDTH = 340.0
_LEFT, _RIGHT, _TOP, _BETWEEN, _BOTTOM = 48.0, 14.0, 26.0, 10.0, 40.0
_TICKS = 4
_MARKED = 20  # points of a line, beyond which marks would hide it
_AROUND = 0.1  # share of the greatest value that an axis which does not begin at zero shows on both sides
MARKS = (
    "m-3.5,0a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0-7,0",
    "m-3.2-3.2h6.4v6.4h-6.4z",
    "m0-4.3l4.2,7.6h-8.4z",
    "m0-4.6l4,4.6l-4,4.6l-4-4.6z",
)
"""Paths of a circle, a square, a triangle and a diamond around a point: colours alone tell no lines apart."""


class Point(NamedTuple):
    """A figure with its interval, if it has one."""

    x: float
    y: float
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        interval = "" if math.isnan(self.low) else f" ({number(self.low)} to {number(self.high)})"
        return number(self.y) + interval


class Line(NamedTuple):
    """A line of *points* in the colour and with the mark of its *style*."""

    points: Sequence[Point]
    style: int = 0
    dashed: bool = False


class Panel(NamedTuple):
    """Lines over an axis of their own, from zero or around them."""

    title: str
    lines: Sequence[Line]
    height: float
    from_zero: bool = True

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of its axis."""
        points = [point for line in self.lines for point in line.points]
        high = max(point.y for point in points)
        if self.from_zero or high <= 0:  # a very wide interval is cut
            return 0.0, 1.05 * min(2 * high, max(max(point.y, point.high) for point in points)) or 1.0
        return max(0.0, min(point.y for point in points) - _AROUND * high), (1 + _AROUND) * high


@dataclass(frozen=True)
class Axis:
    """The x axis that panels share, by powers of two if it is *binary*."""

    title: str
    low: float
    high: float
    binary: bool = False

    def place(self, value: float) -> float:
        """Return the place of *value* between 0 and 1."""
        low, high, at = (math.log2(one) if self.binary else one for one in (self.low, self.high, value))
        return (at - low) / (high - low) if high > low else 0.5

    @property
    def ticks(self) -> list[float]:
        """A few values to label."""
        if not self.binary:
            return round_values(self.low, self.high)
        powers = range(math.ceil(math.log2(self.low)), math.floor(math.log2(self.high)) + 1)
        return [2.0**power for power in powers] or [self.low]


def round_values(low: float, high: float) -> list[float]:
    """Return a few round values from *low* to *high*."""
    if high <= low:
        return [low]
    power = 10 ** math.floor(math.log10((high - low) / _TICKS))
    step = next(one * power for one in (1, 2, 5, 10) if one * power * _TICKS >= high - low)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * number for number in range(first, last + 1)]


def draw(key: str, title: str, description: str, x: Axis, panels: Sequence[Panel]) -> str:
    """Return *panels* one above the other as an SVG element with ids that begin with *key*."""
    width, top, body = _WIDTH - _LEFT - _RIGHT, 0.0, ""
    for panel in panels:
        top += _TOP + _BETWEEN * bool(body)
        body += f'<g transform="translate({_LEFT:g},{top:g})">{_panel(panel, x, width)}</g>'
        top += panel.height
    for value in x.ticks:
        body += _text(_LEFT + width * x.place(value), top + 18, f"{value:,g}", "middle")
    body += _text(_LEFT + width / 2, top + 35, x.title, "middle")
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {top + _BOTTOM:g}" role="img"'
        f' aria-labelledby="{key}-title {key}-desc">'
        f'<title id="{key}-title">{_words(title)}</title><desc id="{key}-desc">{_words(description)}</desc>'
        f"{body}</svg>"
    )


def _panel(panel: Panel, x: Axis, width: float) -> str:
    height = panel.height
    low, high = panel.ends

    def down(value: float) -> float:
        return height * (high - min(max(value, low), high)) / (high - low)

    drawn = _text(-_LEFT, -13, panel.title)
    for value in round_values(low, high):
        drawn += f'<path class="rule" d="M0,{down(value):.1f}h{width:g}"/>'
        drawn += _text(-6, down(value) + 4, f"{value:,g}", "end")
    for line in panel.lines:
        places = [f"{width * x.place(one.x):.1f},{down(one.y):.1f}" for one in line.points]
        bars = "".join(
            f"M{width * x.place(one.x):.1f},{down(one.low):.1f}V{down(one.high):.1f}"
            for one in line.points
            if one.low < one.high
        )
        marks = "".join(f"M{place}{MARKS[line.style]}" for place in places if len(places) <= _MARKED)
        shape, path = "dashed" if line.dashed else "line", "L".join(places)
        drawn += (
            f'<g class="s{line.style}"><path class="{shape}" d="M{path}"/><path class="line" d="{bars}"/>'
        )
        drawn += f'<path class="marks" d="{marks}"/></g>'
    return drawn


def _text(x: float, y: float, words: str, anchor: str = "") -> str:
    where = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{where}>{_words(words)}</text>'


def _words(text: str) -> str:
    return escape(clean(text), quote=False)
