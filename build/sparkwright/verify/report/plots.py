"""Axes, lines and timelines: values for the drawings of ``charts.json`` that several checks share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.base.text import clean
from sparkwright.verify.report.vega import Spec, bind

PLAIN = -1
"""Style of a line that is no category."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
_LINE = 16.0  # the height of a label
_MANY, _TOO_MANY = 30, 150  # points of one line, beyond which their marks are small or left out
_CHARACTER = 6.9  # the mean width of one, in pixels
_LEFT = 48  # the width of a y axis


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
        low, high, at = (math.log(v) if self.base else v for v in (self.low, self.high, max(value, self.low)))
        return min(1.0, (at - low) / (high - low))

    def encoding(self, field: str, length: float, **axis: Any) -> Spec:
        """Return the encoding of *field* on this axis, *length* pixels long."""
        scale: Spec = {"domain": [self.low / self.unit, self.high / self.unit], "nice": False, "zero": False}
        if self.base:
            scale |= {"type": "log", "base": self.base}
        look = {"format": ",f", "tickCount": max(2, round(length / 70)), **axis}
        if self.percent:
            look["labelExpr"] = "round(datum.value * 100) + ' %'"
        return {
            "field": field,
            "type": "quantitative",
            "title": self.title or None,
            "scale": scale,
            "axis": look,
        }


def linear(title: str, values: Iterable[float]) -> Axis:
    """Return an axis from zero to the greatest of *values*, as amounts need."""
    return Axis(title, 0.0, max([value for value in values if math.isfinite(value)], default=0) * 1.04 or 1.0)


def percent(title: str) -> Axis:
    """Return an axis for shares."""
    return Axis(title, 0.0, 1.0, percent=True)


def logarithmic(title: str, values: Iterable[float], base: int = 10) -> Axis:
    """Return an axis for values of several orders of magnitude."""
    found = [value for value in values if 0 < value < math.inf] or [1.0]
    low, high = min(found), max(found)
    return Axis(title, low, max(high, low * 2), base)


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


def look(style: int) -> Spec:
    """Return the colour and the shape of a series, as fields of its rows."""
    colour = "var(--soft)" if style == PLAIN else f"var(--s{style})"
    return {"colour": colour, "shape": SHAPES[style % len(SHAPES)]}


def lines(
    width: float,
    x: Axis,
    y: Axis,
    series: Sequence[Series],
    rules: Sequence[Note] = (),
    *,
    listed: bool = False,
) -> Spec:
    """Return lines over one x axis, each named at its end, or in a list where they end anywhere."""
    panel = Panel(y, tuple(series), tuple(rules), 230)
    return bind("lines", width=width, **_panel(width, x, panel), **_names(panel, listed=listed))


def timeline(width: float, x: Axis, panels: Sequence[Panel], named: Sequence[Note] = ()) -> Spec:
    """Return panels above each other over the same time; *named* moments cross all of them."""
    ends = [len(one.name) for panel in panels if len(panel.series) > 1 for one in panel.series]
    inner = width - _LEFT - (max(ends, default=0) * _CHARACTER + 34 if ends else 16)
    unnamed: Spec = {"names": [], "leaders": []}
    views = [
        bind(
            "panel",
            width=inner,
            **_panel(inner, x, panel, named, bottom=panel is panels[-1], top=panel is panels[0]),
            **(_names(panel, listed=False) if len(panel.series) > 1 else unnamed),
        )
        for panel in panels
    ]
    return bind("timeline", panels=views)


def _panel(
    width: float, x: Axis, panel: Panel, named: Sequence[Note] = (), *, bottom: bool = True, top: bool = True
) -> Spec:
    """Return the axes of a panel and the rows of its layers, without the names of its lines."""
    hidden = {} if bottom else {"labels": False, "ticks": False, "title": None}
    rows: dict[str, list[Spec]] = {name: [] for name in ("lines", "dashed", "small", "large", "hollow")}
    run = 0  # the number of a line without a gap
    for one in panel.series:
        run += 1
        for index, point in enumerate(one.points):
            run += point.apart
            place = {"x": min(point.x, x.high) / x.unit, "y": max(point.y, panel.y.low)}
            row = {**place, "index": index, "run": run, **look(one.style)}
            rows["dashed" if one.dashed else "lines"].append(row)
            if len(one.points) <= _TOO_MANY or point.suspect:
                kind = "hollow" if point.suspect else "large" if len(one.points) <= _MANY else "small"
                rows[kind].append({**row, "words": clean(point.words)})
    moments = [{"x": note.at / x.unit, "label": note.label, "late": x(note.at) > 0.5} for note in named]  # noqa: PLR2004 - the side with more space
    missing: dict[float, list[str]] = {}
    for point in (point for one in panel.series for point in one.missing):
        missing.setdefault(point.x, []).append(clean(point.words))
    return {
        "height": panel.height,
        "across": x.encoding("x", width, **hidden),
        "up": panel.y.encoding("y", panel.height * 1.6, minExtent=_LEFT),
        **rows,
        "rules": [{"y": rule.at, "label": rule.label} for rule in panel.rules],
        "moments": moments,
        "early": [row for row in moments if top and not row["late"]],
        "late": [row for row in moments if top and row["late"]],
        "missing": [{"x": at, "words": "\n".join(words)} for at, words in sorted(missing.items())],
        "floor": panel.height - 7,
    }


def _names(panel: Panel, *, listed: bool) -> Spec:
    """Return the rows of the names of lines, at their ends or *listed*."""
    shown = [one for one in panel.series if one.points]
    if not listed:
        shown.sort(key=lambda one: one.points[-1].y, reverse=True)
    ends = [panel.height * (1 - panel.y(one.points[-1].y)) for one in shown]
    places = (
        [_LINE * (i + 0.5) for i in range(len(shown))] if listed else spread(ends, _LINE, 0, panel.height)
    )
    rows = [
        {"end": end, "place": place, "name": clean(one.name), **look(one.style)}
        for one, end, place in zip(shown, ends, places, strict=True)
    ]
    return {"names": rows, "leaders": [] if listed else rows}


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
