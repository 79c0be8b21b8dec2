"""Vega-Lite specifications of lines and timelines, and parts that charts of several checks share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.base.text import clean
from sparkwright.verify.report.vega import CONFIG

Spec = dict[str, Any]

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


def layer(mark: Spec, rows: Sequence[Spec], name: str = "", **encoding: Spec) -> Spec:
    """Return one mark for each of *rows*; a *name* becomes part of its class."""
    described = {**mark, "aria": "description" in encoding}
    made = {"data": {"values": list(rows)}, "mark": described, "encoding": encoding}
    return made | ({"name": name} if name else {})


def field(name: str, kind: str = "nominal", **more: Any) -> Spec:
    """Return the encoding of a field of the rows."""
    return {"field": name, "type": kind, **more}


COLOUR = field("colour", scale=None, legend=None)
SHAPE = field("shape", scale=None, legend=None)
WORDS = field("words")
RIGHT = {"value": "width"}


def pixel(name: str) -> Spec:
    """Return the encoding of a field that holds a place in pixels."""
    return field(name, "quantitative", scale=None, axis=None)


def look(style: int) -> Spec:
    """Return the colour and the shape of a series, as fields of its rows."""
    colour = "var(--soft)" if style == PLAIN else f"var(--s{style})"
    return {"colour": colour, "shape": SHAPES[style % len(SHAPES)]}


def whole(width: float, height: float | Spec, layers: Sequence[Spec]) -> Spec:
    """Return a drawing of *layers* that is *width* pixels wide with its labels."""
    fit = {"type": "fit-x", "contains": "padding"}
    return {"width": width, "height": height, "layer": list(layers), "autosize": fit, "config": CONFIG}


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
    return whole(width, panel.height, _panel(width, x, panel, listed=listed)["layer"])


def timeline(width: float, x: Axis, panels: Sequence[Panel], named: Sequence[Note] = ()) -> Spec:
    """Return panels above each other over the same time; *named* moments cross all of them."""
    ends = [len(one.name) for panel in panels if len(panel.series) > 1 for one in panel.series]
    inner = width - _LEFT - (max(ends, default=0) * _CHARACTER + 34 if ends else 16)
    last = len(panels) - 1
    views = [
        _panel(inner, x, panel, named, bottom=index == last, top=index == 0, listed=None)
        for index, panel in enumerate(panels)
    ]
    return {"vconcat": views, "spacing": 18, "config": CONFIG}


def _panel(
    width: float,
    x: Axis,
    panel: Panel,
    named: Sequence[Note] = (),
    *,
    bottom: bool = True,
    top: bool = True,
    listed: bool | None = False,
) -> Spec:
    hidden = {} if bottom else {"labels": False, "ticks": False, "title": None}
    across, up = x.encoding("x", width, **hidden), panel.y.encoding("y", panel.height * 1.6, minExtent=_LEFT)
    rows: list[Spec] = []
    dashed: list[Spec] = []
    points: list[Spec] = []
    run = 0  # the number of a line without a gap
    for one in panel.series:
        run += 1
        for index, point in enumerate(one.points):
            run += point.apart
            row = {
                "x": min(point.x, x.high) / x.unit,
                "y": max(point.y, panel.y.low),
                "index": index,
                "run": run,
                **look(one.style),
            }
            (dashed if one.dashed else rows).append(row)
            if len(one.points) <= _TOO_MANY or point.suspect:
                few = len(one.points) <= _MANY or point.suspect
                points.append({**row, "words": clean(point.words), "suspect": point.suspect, "few": few})
    layers = [
        layer(
            {"type": "line", **({"strokeDash": [5, 4]} if of is dashed else {})},
            of,
            x=across,
            y=up,
            color=COLOUR,
            detail=field("run"),
            order=field("index", "quantitative"),
        )
        for of in (rows, dashed)
        if of or of is rows
    ]
    for test, mark in _MARKS:
        if chosen := [row for row in points if test == (row["few"], row["suspect"])]:
            layers.append(layer(mark, chosen, x=across, y=up, color=COLOUR, shape=SHAPE, description=WORDS))
    layers += _rules(panel, up) + _moments(x, across, named, words=top)
    layers += _missing(panel.series, across, panel.height)
    if listed is not None or len(panel.series) > 1:
        layers += _names(panel, listed=bool(listed))
    return {"width": width, "height": panel.height, "layer": layers}


_MARKS: tuple[tuple[tuple[bool, bool], Spec], ...] = (
    ((False, False), {"type": "point", "filled": True, "size": 12, "opacity": 1}),
    (
        (True, False),
        {
            "type": "point",
            "filled": True,
            "size": 50,
            "opacity": 1,
            "stroke": "var(--card)",
            "strokeWidth": 1,
        },
    ),
    ((True, True), {"type": "point", "fill": "var(--card)", "size": 50, "opacity": 1, "strokeWidth": 2}),
)


def _rules(panel: Panel, up: Spec) -> list[Spec]:
    rows = [{"y": rule.at, "label": rule.label} for rule in panel.rules]
    if not rows:
        return []
    text = {"type": "text", "align": "right", "dy": -7, "dx": -4, "color": "var(--soft)"}
    return [
        layer({"type": "rule", "strokeDash": [4, 4], "color": "var(--soft)"}, rows, y=up),
        layer(text, rows, y=up, x=RIGHT, text=field("label")),
    ]


def _moments(x: Axis, across: Spec, named: Sequence[Note], *, words: bool) -> list[Spec]:
    layers = []
    for note in named:
        row = [{"x": note.at / x.unit, "label": note.label}]
        rule = {"type": "rule", "color": "var(--fail)", "strokeWidth": 1.75, "strokeDash": [6, 3]}
        layers.append(layer(rule, row, x=across))
        if words:
            left = x(note.at) > 0.5  # noqa: PLR2004 - the side with more space
            text = {"type": "text", "align": "right" if left else "left", "dx": -6 if left else 6}
            text |= {"color": "var(--fail)", "fontWeight": 600}
            layers.append(layer(text, row, x=across, y={"value": 8}, text=field("label")))
    return layers


def _missing(series: Sequence[Series], across: Spec, height: float) -> list[Spec]:
    """Return a cross for each place where series have no figure, which names what is missing."""
    words: dict[float, list[str]] = {}
    for point in (point for one in series for point in one.missing):
        words.setdefault(point.x, []).append(clean(point.words))
    rows = [{"x": place, "words": "\n".join(figures)} for place, figures in sorted(words.items())]
    mark = {"type": "text", "text": "✗", "color": "var(--fail)", "fontWeight": 700}
    crosses = layer(mark, rows, "missing", x=across, y={"value": height - 7}, description=WORDS)
    return [crosses] if rows else []


def _names(panel: Panel, *, listed: bool) -> list[Spec]:
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
    leader = {"type": "rule", "strokeDash": [1, 3], "xOffset": 6, "x2Offset": 12}
    text = {"type": "text", "align": "left", "xOffset": 26, "limit": 120}
    ending = layer(leader, rows, x=RIGHT, x2=RIGHT, y=pixel("end"), y2={"field": "place"}, color=COLOUR)
    return [
        *([] if listed else [ending]),
        layer(
            {"type": "point", "filled": True, "size": 50, "opacity": 1, "xOffset": 18},
            rows,
            x=RIGHT,
            y=pixel("place"),
            color=COLOUR,
            shape=SHAPE,
        ),
        layer(text, rows, x=RIGHT, y=pixel("place"), text=field("name")),
    ]


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
