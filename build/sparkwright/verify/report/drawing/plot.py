"""The parts of a chart: a frame with axes, lines with labels at their ends, reference lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.verify.report.drawing.svg import element, group, marker, path_of, text, titled
from sparkwright.verify.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from xml.etree.ElementTree import Element

    from sparkwright.verify.report.drawing.scale import Axis

FONT = 12.5
LINE = 16.0
_MANY, _TOO_MANY = 30, 150  # points of one line, beyond which their marks are small or left out
_CHARACTER = 6.9  # the mean width of one in the fonts that systems show by default, rounded up


def wide(words: str) -> float:
    """About how much room *words* take, in pixels."""
    return len(words) * _CHARACTER


def short(words: str, room: float = 120.0) -> str:
    """*words* as far as they fit into *room* pixels."""
    words, most = clean(words), int(room / _CHARACTER)
    return words if len(words) <= most else f"{words[: most - 1]}…"


@dataclass(frozen=True)
class Point:
    """One figure.

    Attributes:
        x: where it lies.
        y: likewise.
        words: what to say of it.
        suspect: whether it is not to be trusted.
        apart: whether something is left out before it, so that no line joins it to the point before.
    """

    x: float
    y: float
    words: str = ""
    suspect: bool = False
    apart: bool = False


@dataclass(frozen=True)
class Series:
    """Points of one kind; *style* is the number of their colour and shape.

    What should be there and has no figure is *missing*: it is marked on the x axis.
    """

    name: str
    style: int
    points: tuple[Point, ...]
    missing: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Mark:
    """A moment or place on the x axis that is named."""

    x: float
    label: str


@dataclass(frozen=True)
class Rule:
    """A value on the y axis that is named."""

    y: float
    label: str


@dataclass(frozen=True)
class Box:
    """The room inside the axes, in pixels."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.top + self.height

    def x(self, axis: Axis, value: float) -> float:
        """Where *value* lies from left to right."""
        return self.left + axis(value) * self.width

    def y(self, axis: Axis, value: float) -> float:
        """Where *value* lies from bottom to top."""
        return self.bottom - axis(value) * self.height


@dataclass(frozen=True)
class Naming:
    """What a drawing is called: a key for its ids, a title, and what can be seen in it, in words."""

    key: str
    title: str
    description: str


def canvas(naming: Naming, width: float, height: float, parts: Iterable[Element | None]) -> Element:
    """A drawing with a name and a description for those who cannot see it."""
    name, words = element("title", id=f"{naming.key}-title"), element("desc", id=f"{naming.key}-desc")
    name.text, words.text = clean(naming.title), clean(naming.description)
    return element(
        "svg",
        name,
        words,
        *parts,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_labelledby=f"{naming.key}-title {naming.key}-desc",
        class_=f"w{width:g}",
    )


def axes(box: Box, x: Axis | None, y: Axis) -> Element:
    """Grid, ticks and titles; the y axis's title stands above it, where it is read first."""
    parts: list[Element] = [text(y.title, box.left, box.top - 12, "axis start")] if y.title else []
    for value, label in y.ticks:
        place = box.y(y, value)
        parts.extend(
            [
                element("line", x1=box.left, x2=box.right, y1=place, y2=place, class_="grid"),
                text(label, box.left - 8, place + 4, "tick end"),
            ]
        )
    parts.append(element("line", x1=box.left, x2=box.right, y1=box.bottom, y2=box.bottom, class_="base"))
    if x:
        for value, label in x.ticks:
            place = box.x(x, value)
            parts.extend(
                [
                    element("line", x1=place, x2=place, y1=box.bottom, y2=box.bottom + 4, class_="base"),
                    text(label, place, box.bottom + 18, "tick middle"),
                ]
            )
        parts.append(text(x.title, box.left + box.width / 2, box.bottom + 38, "axis middle"))
    return group(parts, class_="axes", aria_hidden="true")


def lines(box: Box, x: Axis, y: Axis, series: Sequence[Series], *, labels: bool = True) -> Element:
    """Series as lines, each named at its end so that no colour has to be looked up."""
    drawn = [_line(box, x, y, one) for one in series]
    drawn.extend(_missing(box, x, series))
    return group([*drawn, *(_labels(box, x, y, series) if labels else ())])


def names(box: Box, series: Sequence[Series]) -> Element:
    """A list of names with their marks, for lines that do not end at the right."""
    parts = []
    for index, one in enumerate(series):
        height = box.top + LINE * (index + 0.5)
        parts.append(marker(one.style, box.right + 16, height, 3.6))
        parts.append(text(short(one.name), box.right + 24, height + 4, "name start"))
    return group(parts)


def _line(box: Box, x: Axis, y: Axis, series: Series) -> Element:
    places = [(box.x(x, point.x), box.y(y, point.y)) for point in series.points]
    line = element("path", d="".join(map(path_of, _runs(series, places))), class_=f"line s{series.style}")
    few = len(places) <= _MANY
    dots = [
        titled(group([_dot(series.style, place, few=few, suspect=point.suspect)]), point.words)
        for place, point in zip(places, series.points, strict=True)
        if len(places) <= _TOO_MANY or point.suspect
    ]
    return group([line if places else None, *dots])


def _runs(series: Series, places: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Places that one line joins."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point, place in zip(series.points, places, strict=True):
        if point.apart and runs[-1]:
            runs.append([])
        runs[-1].append(place)
    return runs


def _missing(box: Box, x: Axis, series: Sequence[Series]) -> list[Element]:
    """A cross for each place where series have no figure, which says what is missing."""
    words: dict[float, list[str]] = {}
    for point in (point for one in series for point in one.missing):
        words.setdefault(point.x, []).append(point.words)
    return [
        titled(text("✗", box.x(x, place), box.bottom - 3, "missing middle halo"), "\n".join(said))
        for place, said in sorted(words.items())
    ]


def _dot(style: int, place: tuple[float, float], *, few: bool, suspect: bool) -> Element:
    """The mark of one point; where there are many, a plain dot on the line."""
    if few or suspect:
        return marker(style, *place, 3.6, hollow=suspect)
    return element("circle", cx=place[0], cy=place[1], r=2, class_=f"dot s{style}")


def _labels(box: Box, x: Axis, y: Axis, series: Sequence[Series]) -> list[Element]:
    ends = [(box.y(y, one.points[-1].y), one) for one in series if one.points]
    ends.sort(key=lambda end: end[0])
    heights = spread([height for height, _ in ends], LINE, box.top, box.bottom)
    parts = []
    for height, (wanted, one) in zip(heights, ends, strict=True):
        begin, end = box.x(x, one.points[-1].x) + 6, box.right + 10
        leader = path_of([(begin, wanted), (end, height)])
        parts.extend(
            [
                element("path", d=leader, class_=f"leader s{one.style}"),
                marker(one.style, end + 6, height, 3.6),
                text(short(one.name), end + 14, height + 4, "name start"),
            ]
        )
    return parts


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near *wanted* (ascending) with *gap* between them, inside of *low* to *high* if they fit."""
    places: list[float] = []
    for place in wanted:
        places.append(max(place, places[-1] + gap) if places else max(place, low))
    limit = high
    for index in reversed(range(len(places))):
        places[index] = min(places[index], limit)
        limit = places[index] - gap
    return places


def rules(box: Box, y: Axis, found: Iterable[Rule]) -> Element:
    """Named values as dashed lines across."""
    parts: list[Element] = []
    for rule in found:
        place = box.y(y, rule.y)
        parts.extend(
            [
                element("line", x1=box.left, x2=box.right, y1=place, y2=place, class_="rule"),
                text(rule.label, box.right - 4, place - 5, "note end halo"),
            ]
        )
    return group(parts)


def marks(box: Box, x: Axis, found: Iterable[Mark], *, named: bool = True) -> Element:
    """Named moments as lines from top to bottom; the name stands on the side where there is room."""
    parts: list[Element] = []
    for mark in found:
        place = box.x(x, mark.x)
        parts.append(element("line", x1=place, x2=place, y1=box.top, y2=box.bottom, class_="onset"))
        if named:
            left = place + wide(mark.label) + 8 > box.right
            words = text(mark.label, place + (-6 if left else 6), box.top + 12, "onset halo")
            words.set("class", f"onset halo {'end' if left else 'start'}")
            parts.append(words)
    return group(parts)
