"""The kinds of charts, as drawings of a given width: lines, bars, timelines, intervals, budgets, strips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.verify.report.drawing.plot import (
    Box,
    Mark,
    Naming,
    Rule,
    Series,
    axes,
    canvas,
    lines,
    marks,
    names,
    rules,
    short,
    wide,
)
from sparkwright.verify.report.drawing.svg import element, group, marker, path_of, text, titled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from xml.etree.ElementTree import Element

    from sparkwright.verify.report.drawing.scale import Axis

_LEFT = 52.0


# Lines --------------------------------------------------------------------------------------------------


def line_chart(
    naming: Naming,
    width: float,
    scales: tuple[Axis, Axis],
    series: Sequence[Series],
    ruled: Sequence[Rule] = (),
    *,
    listed: bool = False,
) -> Element:
    """Lines over one x axis, each named at its end, or in a list where they end anywhere."""
    x, y = scales
    right = max([wide(short(one.name)) for one in series], default=0) + 28
    box = Box(_LEFT, 30, width - _LEFT - right, 250)
    parts = [axes(box, x, y), rules(box, y, ruled), lines(box, x, y, series, labels=not listed)]
    if listed:
        parts.append(names(box, series))
    return canvas(naming, width, box.bottom + 48, parts)


@dataclass(frozen=True)
class Panel:
    """One of several charts above each other that share the x axis."""

    y: Axis
    series: tuple[Series, ...]
    rules: tuple[Rule, ...] = ()
    height: float = 84


def timeline(
    naming: Naming, width: float, x: Axis, panels: Sequence[Panel], named: Sequence[Mark] = ()
) -> Element:
    """Panels above each other over the same time; *named* moments cross all of them."""
    named_ends = [wide(short(one.name)) for panel in panels for one in panel.series if len(panel.series) > 1]
    right = max(named_ends, default=0) + (28 if named_ends else 12)
    top, parts = 30.0, []
    for index, panel in enumerate(panels):
        box = Box(_LEFT, top, width - _LEFT - right, panel.height)
        last = index == len(panels) - 1
        parts.extend(
            [
                axes(box, x if last else None, panel.y),
                rules(box, panel.y, panel.rules),
                lines(box, x, panel.y, panel.series, labels=len(panel.series) > 1),
                marks(box, x, named, named=index == 0),
            ]
        )
        top = box.bottom + 42
    return canvas(naming, width, top + 6, parts)


# Bars ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BarPanel:
    """Bars under one heading; *values* are labelled by *labels*, and *suspect* bars are only outlined."""

    title: str
    style: int
    labels: tuple[str, ...]
    values: tuple[float, ...]
    words: tuple[str, ...]
    suspect: tuple[bool, ...]


def bar_panels(naming: Naming, width: float, y: Axis, x_title: str, panels: Sequence[BarPanel]) -> Element:
    """Small charts of bars side by side, as many in a row as there is room for."""
    columns = max(1, min(len(panels), int(width // 172)))
    if columns > 1:  # rows as equal as can be
        columns = -(-len(panels) // -(-len(panels) // columns))
    step_x, step_y = width / columns, 190.0
    parts: list[Element] = []
    for index, panel in enumerate(panels):
        row, column = divmod(index, columns)
        box = Box(column * step_x + 48, row * step_y + 36, step_x - 60, 106)
        parts.append(_bars(box, y, panel))
        parts.append(text(x_title, box.left + box.width / 2, box.bottom + 33, "axis middle"))
    rows = -(-len(panels) // columns)
    return canvas(naming, width, rows * step_y - 4, parts)


def _bars(box: Box, y: Axis, panel: BarPanel) -> Element:
    parts: list[Element | None] = [
        axes(box, None, y),
        marker(panel.style, box.left + 5, box.top - 16, 4),
        text(short(panel.title, box.width - 16), box.left + 16, box.top - 12, "heading start"),
    ]
    slot = box.width / max(1, len(panel.values))
    for index, value in enumerate(panel.values):
        place, top = box.left + slot * index, box.y(y, value)
        bar = element(
            "rect",
            x=place + slot * 0.14,
            y=min(top, box.bottom - 1),
            width=slot * 0.72,
            height=max(1.0, box.bottom - top),
            class_=f"bar s{panel.style}" + (" hollow" if panel.suspect[index] else ""),
        )
        parts.append(titled(bar, panel.words[index]))
        if slot >= 11 or index % 2 == 0:  # noqa: PLR2004 - two digits and a gap
            parts.append(text(panel.labels[index], place + slot / 2, box.bottom + 16, "tick middle"))
    return group(parts)


# Intervals ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """A ratio between two arms with its interval, and how small a difference could have been seen."""

    label: str
    ratio: float
    low: float
    high: float
    detectable: float
    verdict: str
    words: str


def intervals(naming: Naming, width: float, x: Axis, rows: Sequence[Interval]) -> Element:
    """Ratios with intervals around 1: right of it the tested server has more, left of it less."""
    beside = width > 700  # noqa: PLR2004 - names find room at the left
    left = max([wide(short(row.label, 300)) for row in rows], default=0) + 20 if beside else 16.0
    step = 34.0 if beside else 52.0
    box = Box(left, 20, width - left - 20, step * len(rows))
    parts: list[Element] = [_ratio_grid(box, x)]
    for index, row in enumerate(rows):
        bottom = box.top + step * (index + 1)
        centre = bottom - 17
        if beside:
            parts.append(text(short(row.label, 300), left - 14, centre + 4, "name end"))
        else:
            parts.append(text(short(row.label, box.width), left, bottom - 36, "name start halo"))
        parts.append(titled(_interval(box, x, row, centre), row.words))
    return canvas(naming, width, box.bottom + 48, parts)


def _ratio_grid(box: Box, x: Axis) -> Element:
    parts: list[Element] = []
    for value, label in x.ticks:
        place = box.x(x, value)
        class_ = "base" if value == 1 else "grid"
        parts.extend(
            [
                element("line", x1=place, x2=place, y1=box.top, y2=box.bottom, class_=class_),
                text(label, place, box.bottom + 18, "tick middle"),
            ]
        )
    parts.append(text(x.title, box.left + box.width / 2, box.bottom + 38, "axis middle"))
    return group(parts, class_="axes", aria_hidden="true")


def _interval(box: Box, x: Axis, row: Interval, centre: float) -> Element:
    low, high = box.x(x, row.low), box.x(x, row.high)
    band = None
    if row.detectable > 0:
        begin, end = box.x(x, 1 / (1 + row.detectable)), box.x(x, 1 + row.detectable)
        band = element("rect", x=begin, y=centre - 11, width=end - begin, height=22, class_="band")
    whiskers = [
        _end(low, centre, row.verdict, -1 if row.low < x.low else 0),
        _end(high, centre, row.verdict, 1 if row.high > x.high else 0),
    ]
    across = element("line", x1=low, x2=high, y1=centre, y2=centre, class_=f"whisker {row.verdict}")
    dot = element("circle", cx=box.x(x, row.ratio), cy=centre, r=5, class_=f"estimate {row.verdict}")
    return group([band, across, *whiskers, dot])


def _end(place: float, centre: float, verdict: str, beyond: int) -> Element:
    """The end of an interval: a stroke, or an arrow where it goes *beyond* the axis (-1 left, 1 right)."""
    tips = [(place, centre - 5), (place + 7 * beyond, centre), (place, centre + 5)]
    return element("path", d=path_of(tips), class_=f"whisker {verdict}")


# Budgets ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """Amounts that share one whole, such as a card's memory; *limit* is the share that may be used."""

    label: str
    parts: tuple[tuple[str, float, str], ...]  # name, amount, class
    whole: float
    limit: float


def budgets(naming: Naming, width: float, x: Axis, rows: Sequence[Budget]) -> Element:
    """One bar for each start of a server: what took which part of the memory."""
    box = Box(8, 8, width - 24, 62.0 * len(rows))
    parts: list[Element] = [_ratio_grid(box, x)]
    for index, row in enumerate(rows):
        top = box.top + 62 * index + 26
        parts.append(text(short(row.label, box.width), box.left, top - 7, "name start halo"))
        whole = box.x(x, row.whole) - box.left
        if row.whole > 0:
            parts.append(element("rect", x=box.left, y=top, width=whole, height=22, class_="whole"))
        parts.extend(_shares(box, x, row, top))
        if row.limit > 0:
            place = box.x(x, row.limit)
            ends = {"x1": place, "x2": place, "y1": top - 6, "y2": top + 28}
            parts.extend([element("line", **ends, class_="under"), element("line", **ends, class_="limit")])
    return canvas(naming, width, box.bottom + 48, parts)


def _shares(box: Box, x: Axis, row: Budget, top: float) -> list[Element]:
    parts, begin = [], 0.0
    for name, amount, class_ in row.parts:
        left, right = box.x(x, begin), box.x(x, begin + amount)
        bar = element(
            "rect", x=left, y=top, width=max(0.0, right - left - 1.5), height=22, class_=f"share {class_}"
        )
        parts.append(titled(bar, f"{row.label}: {name} {amount:.1f} GiB"))
        if right - left > wide(name) + 12:
            parts.append(text(name, left + 7, top + 15, f"inside start {class_}"))
        begin += amount
    return parts


# Strips -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How one level went."""

    label: str
    bad: bool
    words: str


def outcomes(naming: Naming, width: float, rows: Sequence[Outcome]) -> Element:
    """A box for each level, in order: a tick where all went well, a cross where not."""
    size, gap = 40.0, 6.0
    columns = max(1, int((width + gap) // (size + gap)))
    parts = []
    for index, row in enumerate(rows):
        line, column = divmod(index, columns)
        x, y = column * (size + gap), line * (size + gap)
        class_ = "bad" if row.bad else "good"
        tile = group(
            [
                element("rect", x=x, y=y, width=size, height=size, rx=6, class_=f"tile {class_}"),
                text(row.label, x + size / 2, y + 17, f"level middle {class_}"),
                text("✗" if row.bad else "✓", x + size / 2, y + 33, f"sign middle {class_}"),
            ]
        )
        parts.append(titled(tile, row.words))
    lines_needed = -(-len(rows) // columns)
    return canvas(naming, width, lines_needed * (size + gap) - gap, parts)
