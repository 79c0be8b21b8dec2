"""Lines over one x axis as SVG in the colours of the page: light, dark or printed.

The page's style sheet gives text 12.5 px. Widths of words are reckoned wide, since a reader's font may be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from sparkwright.base.text import clean

_SHAPES = (
    "m-4,0a4,4 0 1,0 8,0a4,4 0 1,0-8,0",  # a circle, a square, triangles, a diamond, a cross
    "m-3.5-3.5h7v7h-7z",
    "m0-4.7l4.6,8.2h-9.2z",
    "m0-5.2l4.4,5.2l-4.4,5.2l-4.4-5.2z",
    "m0,4.7l4.6-8.2h-9.2z",
    "m-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
)
_LINE = 16.0  # the height of a label
_CHARACTER = 6.9  # the mean width of one, in pixels
_WIDTH, _HEIGHT = 360.0, 230.0  # of a drawing, and of the space between its axes
_LEFT, _RIGHT, _TOP, _BOTTOM = 48.0, 16.0, 26.0, 42.0
_TICKS = 5


@dataclass(frozen=True)
class Axis:
    """A quantitative axis from *low* to *high*, in powers of two if it is *binary*, labelled in *unit*."""

    title: str
    low: float
    high: float
    binary: bool = False
    percent: bool = False
    unit: float = 1

    def __call__(self, value: float) -> float:
        """Return the place of *value* between 0 and 1."""
        low, high, at = (
            math.log2(one) if self.binary else one
            for one in (self.low, self.high, min(max(value, self.low), self.high))
        )
        return (at - low) / (high - low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return a few round values, and their labels."""
        low, high = self.low / self.unit, self.high / self.unit
        if self.binary:
            powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
            found = [2.0**power for power in powers]
        else:
            power = 10 ** math.floor(math.log10((high - low) / _TICKS))
            step = next(step * power for step in (1, 2, 5, 10) if step * power * _TICKS >= high - low)
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
            found = [step * number for number in range(first, last + 1)]
        return [
            (value * self.unit, f"{100 * value:.0f} %" if self.percent else f"{round(value, 6):,g}")
            for value in found
        ]


def from_zero(title: str, values: Iterable[float]) -> Axis:
    """Return an axis from zero to the greatest of *values*, as amounts need."""
    return Axis(title, 0.0, max(values) * 1.04 or 1.0)


def powers_of_two(title: str, values: Sequence[float]) -> Axis:
    """Return an axis from the least to the greatest of *values*."""
    return Axis(title, min(values), max(*values, min(values) * 2), binary=True)


@dataclass(frozen=True)
class Point:
    """One figure of a line, with its *words*."""

    x: float
    y: float
    words: str = ""
    suspect: bool = False


@dataclass(frozen=True)
class Series:
    """A named line; *style* numbers its colour and shape."""

    name: str
    style: int
    points: tuple[Point, ...]

    @property
    def colour(self) -> str:
        """The page's colour of this style."""
        return f"var(--s{self.style})"

    @property
    def shape(self) -> str:
        """The path of a mark, from its middle."""
        return _SHAPES[self.style % len(_SHAPES)]


def draw_lines(
    key: str, title: str, description: str, axes: tuple[Axis, Axis], lines: Sequence[Series]
) -> str:
    """Return *lines* over x and y *axes* as an element for HTML with the ids of *key*."""
    x, y = axes
    series = [one for one in lines if one.points]
    named = len(series) > 1
    beside = max(len(one.name) for one in series) * _CHARACTER + 34 if named else _RIGHT
    width = _WIDTH - _LEFT - beside
    body = _axes(width, x, y) + "".join(_curve(width, x, y, one) for one in series)
    body += _names(width, y, series) if named else ""
    return _element(
        "svg",
        _element("title", _words(title), id=f"{key}-title")
        + _element("desc", _words(description), id=f"{key}-desc")
        + _element("g", body, transform=f"translate({_LEFT:.0f},{_TOP:.0f})"),
        viewBox=f"0 0 {_WIDTH:.0f} {_TOP + _HEIGHT + _BOTTOM:.0f}",
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
        fill="var(--soft)",
    )


def _axes(width: float, x: Axis, y: Axis) -> str:
    """Return both axes with their titles, and the lines of the values of *y*."""
    made = _element("text", _words(y.title), x=-_LEFT, y=-12)
    for value, label in y.ticks():
        at = _HEIGHT * (1 - y(value))
        made += _rule(0, at, width, at)
        made += _element("text", label, x=-8, y=at + 4, text_anchor="end")
    made += _rule(0, _HEIGHT, width, _HEIGHT, "var(--soft)")
    for value, label in x.ticks():
        at = width * x(value)
        made += _rule(at, _HEIGHT, at, _HEIGHT + 4, "var(--soft)")
        made += _element("text", label, x=at, y=_HEIGHT + 18, text_anchor="middle")
    return made + _element("text", _words(x.title), x=width / 2, y=_HEIGHT + 36, text_anchor="middle")


def _curve(width: float, x: Axis, y: Axis, one: Series) -> str:
    """Return a line with its marks, hollow ones where the figure is not to be trusted."""
    line, marks = "", ""
    for point in one.points:
        at = f"{width * x(point.x):.1f},{_HEIGHT * (1 - y(point.y)):.1f}"
        line += f"{'L' if line else 'M'}{at}"
        look = {"fill": "var(--card)", "stroke": one.colour, "stroke_width": "2"} if point.suspect else {}
        told = _element("title", _words(point.words))
        marks += _element("path", told, d=f"M{at}{one.shape}", **look)
    line = _element("path", d=line, class_="line", fill="none", stroke=one.colour, stroke_width=2)
    return _element("g", line + marks, fill=one.colour)


def _names(width: float, y: Axis, series: Sequence[Series]) -> str:
    """Return the names of lines beside their ends."""
    shown = sorted(series, key=lambda one: -one.points[-1].y)
    ends = [_HEIGHT * (1 - y(one.points[-1].y)) for one in shown]
    made = ""
    for one, end, place in zip(shown, ends, spread(ends, _LINE, 0, _HEIGHT), strict=True):
        made += _rule(width + 4, end, width + 12, place, one.colour, stroke_dasharray="1 3")
        made += _element("path", d=f"M{width + 18:.1f},{place:.1f}{one.shape}", fill=one.colour)
        made += _element("text", _words(one.name), x=width + 26, y=place + 4, fill="var(--ink)")
    return made


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return places near *wanted* (ascending), *gap* apart, between *low* and *high* if they fit."""
    places: list[float] = []
    for place in wanted:
        places.append(max(place, places[-1] + gap) if places else max(place, low))
    limit = high
    for index in reversed(range(len(places))):
        places[index] = min(places[index], limit)
        limit = places[index] - gap
    return places


def _element(tag: str, content: str = "", /, **attributes: str | float) -> str:
    """Return an element; underscores in names stand for hyphens."""
    written = "".join(
        f' {name.removesuffix("_").replace("_", "-") if name != "viewBox" else name}="{_written(value)}"'
        for name, value in attributes.items()
    )
    return f"<{tag}{written}>{content}</{tag}>" if content else f"<{tag}{written}/>"


def _written(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def _words(text: str) -> str:
    """Return text from outside, fit for an element."""
    return escape(clean(text), quote=False)


def _rule(
    x1: float, y1: float, x2: float, y2: float, stroke: str = "var(--line)", **look: str | float
) -> str:
    return _element("path", d=f"M{x1:.1f},{y1:.1f}L{x2:.1f},{y2:.1f}", stroke=stroke, **look)
