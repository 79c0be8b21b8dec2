"""Lines over time or load, and intervals, as SVG in the colours of the page: light, dark or printed.

The page's style sheet gives text 12.5 px. Widths of words are reckoned wide, since a reader's font may be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from sparkwright.base.text import clean

PLAIN = -1
"""Style of a line that is no category."""
_SHAPES = (
    "m-4,0a4,4 0 1,0 8,0a4,4 0 1,0-8,0",  # a circle, a square, triangles, a diamond, a cross
    "m-3.5-3.5h7v7h-7z",
    "m0-4.7l4.6,8.2h-9.2z",
    "m0-5.2l4.4,5.2l-4.4,5.2l-4.4-5.2z",
    "m0,4.7l4.6-8.2h-9.2z",
    "m-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
)
_DOT = "m-1.8,0a1.8,1.8 0 1,0 3.6,0a1.8,1.8 0 1,0-3.6,0"
_LINE = 16.0  # the height of a label
_CHARACTER = 6.9  # the mean width of one, in pixels
_MANY, _TOO_MANY = 30, 150  # points of one line, beyond which their marks are small or left out
_LEFT, _RIGHT, _TOP, _BOTTOM, _BETWEEN = 48.0, 16.0, 26.0, 42.0, 36.0
_FEW = 70.0  # pixels for a label of the x axis


class Drawing(NamedTuple):
    """The elements of a drawing, and its size in pixels."""

    width: float
    height: float
    body: str


def inline(drawing: Drawing, key: str, title: str, description: str, class_: str) -> str:
    """Return *drawing* as an element for HTML with the ids of *key*, a title and a description."""
    named = element("title", words(title), id=f"{key}-title") + element(
        "desc", words(description), id=f"{key}-desc"
    )
    return element(
        "svg",
        named + drawing.body,
        viewBox=f"0 0 {drawing.width:.0f} {drawing.height:.0f}",
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
        class_=class_,
        fill="var(--soft)",
    )


def element(tag: str, content: str = "", /, **attributes: str | float) -> str:
    """Return an element; underscores in names stand for hyphens."""
    written = "".join(
        f' {name.removesuffix("_").replace("_", "-") if name != "viewBox" else name}="{_written(value)}"'
        for name, value in attributes.items()
    )
    return f"<{tag}{written}>{content}</{tag}>" if content else f"<{tag}{written}/>"


def _written(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def words(text: str) -> str:
    """Return text from outside, fit for an element."""
    return escape(clean(text), quote=False)


def _path(d: str, told: str = "", **look: str | float) -> str:
    """Return a path that tells *told* under a pointer."""
    return element("path", element("title", words(told)) if told else "", d=d, **look)


def _rule(
    x1: float, y1: float, x2: float, y2: float, stroke: str = "var(--line)", **look: str | float
) -> str:
    return element("path", d=f"M{x1:.1f},{y1:.1f}L{x2:.1f},{y2:.1f}", stroke=stroke, **look)


# Lines ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """A quantitative axis from *low* to *high*, logarithmic if it has a *base*, labelled in *unit*."""

    title: str
    low: float
    high: float
    base: int = 0
    percent: bool = False
    unit: float = 1

    def __call__(self, value: float) -> float:
        """Return the place of *value* between 0 and 1."""
        low, high, at = (
            math.log(v) if self.base else v
            for v in (self.low, self.high, min(max(value, self.low), self.high))
        )
        return (at - low) / (high - low)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Return about *most* round values, and their labels."""
        low, high = self.low / self.unit, self.high / self.unit
        if self.base and (self.base == 2 or high > 10 * low):  # noqa: PLR2004 - powers of two; several of ten
            steps = (1,) if self.base == 2 else (1, 2, 5)  # noqa: PLR2004
            powers = range(math.floor(math.log(low, self.base)), math.ceil(math.log(high, self.base)) + 1)
            found = [step * float(self.base) ** power for power in powers for step in steps]
            found = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
            found = found[:: -(-len(found) // most) or 1]
        else:
            power = 10 ** math.floor(math.log10((high - low) / most))
            step = next(step * power for step in (1, 2, 5, 10) if step * power * most >= high - low)
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
            found = [step * number for number in range(first, last + 1)]
        return [
            (value * self.unit, f"{100 * value:.0f} %" if self.percent else _short(value)) for value in found
        ]


def _short(value: float) -> str:
    text = f"{value:,.6f}"
    return text.rstrip("0").rstrip(".")


def linear(title: str, values: Iterable[float]) -> Axis:
    """Return an axis from zero to the greatest of *values*, as amounts need."""
    return Axis(title, 0.0, max([value for value in values if math.isfinite(value)], default=0) * 1.04 or 1.0)


def percent(title: str) -> Axis:
    """Return an axis for shares."""
    return Axis(title, 0.0, 1.0, percent=True)


def logarithmic(title: str, values: Iterable[float], base: int = 10) -> Axis:
    """Return an axis for values of several orders of magnitude."""
    found = [value for value in values if 0 < value < math.inf] or [1.0]
    return Axis(title, min(found), max(*found, min(found) * 2), base)


@dataclass(frozen=True)
class Point:
    """One figure of a line, with its *words*; no line joins it to the one before if it lies *apart*."""

    x: float
    y: float
    words: str = ""
    suspect: bool = False
    apart: bool = False


@dataclass(frozen=True)
class Series:
    """A named line; *style* numbers its colour and shape, or is `PLAIN`. A *dashed* one is of another kind.

    Places without a figure are *missing*.
    """

    name: str
    style: int
    points: tuple[Point, ...]
    missing: tuple[Point, ...] = ()
    dashed: bool = False

    @property
    def colour(self) -> str:
        """The page's colour of this style."""
        return "var(--soft)" if self.style == PLAIN else f"var(--s{self.style})"

    @property
    def shape(self) -> str:
        """The path of a mark, from its middle."""
        return _SHAPES[self.style % len(_SHAPES)]


@dataclass(frozen=True)
class Note:
    """A named value on an axis."""

    at: float
    label: str


@dataclass(frozen=True)
class Panel:
    """One of several charts above each other that share the x axis."""

    y: Axis
    series: tuple[Series, ...]
    rules: tuple[Note, ...] = ()
    height: float = 84


def lines(width: float, x: Axis, y: Axis, series: Sequence[Series], rules: Sequence[Note] = ()) -> Drawing:
    """Return lines over one x axis."""
    return timeline(width, x, [Panel(y, tuple(series), tuple(rules), 230)])


def timeline(width: float, x: Axis, panels: Sequence[Panel], named: Sequence[Note] = ()) -> Drawing:
    """Return panels above each other over the same x axis; *named* places cross all of them."""
    ends = [len(one.name) for panel in panels if len(panel.series) > 1 for one in panel.series]
    inner = width - _LEFT - (max(ends) * _CHARACTER + 34 if ends else _RIGHT)
    body, top = "", _TOP
    for panel in panels:
        parts = _grid(inner, panel) + _curves(inner, x, panel)
        parts += _moments(inner, x, panel.height, named, labelled=panel is panels[0])
        parts += _names(inner, panel) if len(panel.series) > 1 else ""
        parts += _across(inner, x, panel.height) if panel is panels[-1] else ""
        body += element("g", parts, transform=f"translate({_LEFT:.0f},{top:.0f})")
        top += panel.height + _BETWEEN
    return Drawing(width, top - _BETWEEN + _BOTTOM, body)


def _grid(width: float, panel: Panel) -> str:
    """Return the y axis with its title, and the lines of its values."""
    made = element("text", words(panel.y.title), x=-_LEFT, y=-12)
    for value, label in panel.y.ticks(max(2, round(panel.height / 44))):
        at = panel.height * (1 - panel.y(value))
        made += _rule(0, at, width, at)
        made += element("text", label, x=-8, y=at + 4, text_anchor="end")
    return made


def _across(width: float, x: Axis, height: float) -> str:
    """Return the x axis with its title."""
    made = _rule(0, height, width, height, "var(--soft)")
    for value, label in x.ticks(max(2, round(width / _FEW) if x.base != 2 else 12)):  # noqa: PLR2004
        at = width * x(value)
        made += _rule(at, height, at, height + 4, "var(--soft)")
        made += element("text", label, x=at, y=height + 18, text_anchor="middle")
    return made + element("text", words(x.title), x=width / 2, y=height + 36, text_anchor="middle")


def _curves(width: float, x: Axis, panel: Panel) -> str:
    """Return rules, lines with their marks, and crosses where a figure is missing."""
    made = ""
    for one in panel.series:
        places = [(width * x(point.x), panel.height * (1 - panel.y(point.y))) for point in one.points]
        joined = "".join(
            f"{'M' if point.apart or not number else 'L'}{across:.1f},{down:.1f}"
            for number, (point, (across, down)) in enumerate(zip(one.points, places, strict=True))
        )
        marks = ""
        for point, (across, down) in zip(one.points, places, strict=True):
            at = f"M{across:.1f},{down:.1f}"
            if point.suspect:
                marks += _path(
                    at + one.shape, point.words, fill="var(--card)", stroke=one.colour, stroke_width=2
                )
            elif len(one.points) <= _TOO_MANY:
                shape = one.shape if len(one.points) <= _MANY else _DOT
                marks += _path(at + shape, point.words)
        dashes = {"stroke_dasharray": "5 4"} if one.dashed else {}
        line = element(
            "path", d=joined, class_="line", fill="none", stroke=one.colour, stroke_width=2, **dashes
        )
        made += element("g", line + marks, fill=one.colour) if joined else ""
    missing: dict[float, list[str]] = {}
    for point in (point for one in panel.series for point in one.missing):
        missing.setdefault(point.x, []).append(point.words)
    for place, told in sorted(missing.items()):
        cross = element("text", "✗", x=width * x(place), y=panel.height - 3, text_anchor="middle")
        made += element("g", element("title", words("\n".join(told))) + cross, fill="var(--fail)")
    for rule in panel.rules:
        down = panel.height * (1 - panel.y(rule.at))
        made += _rule(0, down, width, down, "var(--soft)", stroke_dasharray="4 4")
        label = element("text", words(rule.label), x=width - 4, y=down - 5, text_anchor="end")
        made += element("g", label, class_="words")
    return made


def _moments(width: float, x: Axis, height: float, named: Sequence[Note], *, labelled: bool) -> str:
    """Return an upright line for each of *named*, with its label on the side that has more space."""
    made = ""
    for note in named:
        at, late = width * x(note.at), x(note.at) > 0.5  # noqa: PLR2004
        made += _rule(at, 0, at, height, "var(--fail)", stroke_width=1.75, stroke_dasharray="6 3")
        if labelled:
            anchor, shift = ("end", -6) if late else ("start", 6)
            label = element("text", words(note.label), x=at + shift, y=12, text_anchor=anchor)
            made += element("g", label, class_="words", fill="var(--fail)", font_weight="600")
    return made


def _names(width: float, panel: Panel) -> str:
    """Return the names of lines beside their ends."""
    shown = sorted((one for one in panel.series if one.points), key=lambda one: -one.points[-1].y)
    ends = [panel.height * (1 - panel.y(one.points[-1].y)) for one in shown]
    made = ""
    for one, end, place in zip(shown, ends, spread(ends, _LINE, 0, panel.height), strict=True):
        made += _rule(width + 4, end, width + 12, place, one.colour, stroke_dasharray="1 3")
        made += _path(f"M{width + 18:.1f},{place:.1f}{one.shape}", fill=one.colour)
        made += element("text", words(one.name), x=width + 26, y=place + 4, fill="var(--ink)")
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


# Intervals -----------------------------------------------------------------------------------------------

_CHANGES = (0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.5, 2, 3, 4)


class Interval(NamedTuple):
    """A ratio with its interval, and the colour of its verdict."""

    label: str
    words: str
    ratio: float
    low: float
    high: float
    colour: str


def intervals(width: float, title: str, rows: Sequence[Interval]) -> Drawing:
    """Return intervals around 1, on an axis from ±10 % to a quarter and four times, with arrows beyond it."""
    known = [abs(math.log(v)) for row in rows for v in (row.low, row.ratio, row.high) if 0 < v < math.inf]
    reach = math.exp(min(math.log(4), max(math.log(1.1), *known) * 1.1))
    x = Axis(title, 1 / reach, reach, 10)
    beside = 230.0 if width > 700 else 0.0  # noqa: PLR2004 - names fit at the left
    left, step = beside + 20, 34.0 if beside else 54.0
    inner, height = width - left - 28, step * len(rows)
    body = ""
    for value in _thinned([one for one in _CHANGES if x.low <= one <= x.high], inner, x):
        at = inner * x(value)
        body += _rule(at, 0, at, height, "var(--soft)" if value == 1 else "var(--line)")
        label = "equal" if value == 1 else f"{value - 1:+.0%}"
        body += element("text", label, x=at, y=height + 18, text_anchor="middle")
    body += element("text", words(title), x=inner / 2, y=height + 36, text_anchor="middle")
    for number, row in enumerate(rows):
        middle = step * (number + (0.5 if beside else 0.7))
        low, ratio, high = (inner * x(value) for value in (row.low, row.ratio, row.high))
        ends = "M{0:.1f},{1:.1f}m6-5l-6,5l6,5" if row.low < x.low else "M{0:.1f},{1:.1f}m0-5v10"
        ends = ends.format(low, middle)
        ends += (
            f"M{high:.1f},{middle:.1f}m-6-5l6,5l-6,5"
            if row.high > x.high
            else f"M{high:.1f},{middle:.1f}m0-5v10"
        )
        interval = f"M{low:.1f},{middle:.1f}H{high:.1f}{ends}"
        body += _path(interval, row.words, fill="none", stroke=row.colour, stroke_width=2.5)
        if math.isfinite(row.ratio):
            body += _path(f"M{ratio:.1f},{middle:.1f}{_SHAPES[0]}", row.words, fill=row.colour)
        place = (
            {"x": -20.0, "text_anchor": "end", "y": middle + 4} if beside else {"x": 0.0, "y": middle - 16}
        )
        most = int((beside or inner) / _CHARACTER)
        label = clean(row.label)
        label = label if len(label) <= most else f"{label[: most - 1]}…"
        body += element("g", element("text", escape(label, quote=False), **place), class_="words")
    return Drawing(width, height + _BOTTOM + 4, element("g", body, transform=f"translate({left:.0f},4)"))


def _thinned(values: Sequence[float], width: float, x: Axis) -> list[float]:
    """Return those of *values* whose labels keep apart, 1 first of all."""
    kept: list[float] = []
    for value in sorted(values, key=lambda one: abs(math.log(one))):
        if all(abs(x(value) - x(other)) * width >= 48 for other in kept):  # noqa: PLR2004 - pixels of a label
            kept.append(value)
    return kept
