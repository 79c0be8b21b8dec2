"""The charts of a page: load over concurrency, and a soak over its time, each with a table of its figures.

Each is inline SVG: lines over one x axis, in the colours and the text of the page: light, dark or printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean, median
from typing import NamedTuple

from sparkwright.base.text import clean
from sparkwright.verify.checks.soak_rounds import elapsed
from sparkwright.verify.compare import Spread
from sparkwright.verify.journal import Run
from sparkwright.verify.report.figures import LEVEL_COLUMNS, NOTHING, CellFigures, Level, level_of, number

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


_LOADED = ("compare", "sweep")  # checks whose cells differ in concurrency alone
_PANELS = {  # fields of `Level`: solid, and dashed
    "tokens/s": ("tok_s",),
    "TTFT ms": ("ttft_p50_ms", "ttft_p95_ms"),
    "TPOT ms": ("tpot_p50_ms", "tpot_p95_ms"),
}
_TAIL = 0.025  # of an interval, on each side
_COURSES = ("TTFT ms", "TPOT ms", "server's memory, GiB", "available memory, GiB")
_WINDOWS, _WINDOW_S = 40, 15.0  # of a soak: at the most, and what their length is a multiple of


@dataclass(frozen=True)
class Chart:
    """A drawing, what it shows and how to read it, the names of its lines, and its figures as a table."""

    key: str
    title: str
    meaning: str
    axis: Axis
    panels: Sequence[Panel]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: Sequence[str] = ()

    @property
    def drawing(self) -> str:
        """The chart as an SVG element."""
        first, last = (
            ", ".join(f"{name} {value}" for name, value in zip(self.columns, row, strict=True))
            for row in (self.rows[0], self.rows[-1])
        )
        told = f"{self.meaning} First: {first}. Last: {last}. The table has all figures."
        return draw(f"chart-{self.key}", self.title, told, self.axis, self.panels)


def charts_of(run: Run, found: Sequence[CellFigures]) -> list[Chart]:
    """Return each chart for which *run* has figures, which are those of its cells *found*."""
    return [*_load_chart(found, run.speed), *_soak_chart(run)]


# Load ----------------------------------------------------------------------------------------------------


def _load_chart(found: Sequence[CellFigures], speed: float) -> Iterator[Chart]:
    """Yield throughput and latency over concurrency: of the sweep, or of the arms of a comparison."""
    arms = _by_arm(found, speed)
    levels = sorted({level for starts in arms.values() for level in starts})
    if len(levels) < 2:  # noqa: PLR2004 - no course
        return
    figures = {
        (arm, level): {
            name: _over_starts(name, starts[level], [one[level] for one in arms.values() if level in one])
            for fields in _PANELS.values()
            for name in fields
        }
        for arm, starts in arms.items()
        for level in starts
    }
    names = {arm: "tested" if arm == "main" else arm for arm in arms}
    panels = [
        Panel(
            title,
            [
                Line(points, style, dashed=name != fields[0])
                for name in fields
                for style, arm in enumerate(arms)
                if (points := [of[name] for (one, _), of in figures.items() if one == arm and of[name].y > 0])
            ],
            height=112.0,
        )
        for title, fields in _PANELS.items()
    ]
    compared = any(len(one) > 1 for starts in arms.values() for one in starts.values())
    yield Chart(
        "load",
        "Throughput and latency over concurrency",
        "Output of all requests together, time to the first token, and time per token after it. Of times,"
        " solid lines are medians of requests, and dashed ones their 95th percentiles."
        + " Bars: 95 % intervals over starts, whose spread is taken to be the same for all."
        * compared,
        Axis("requests at a time (c)", levels[0], levels[-1], binary=True),
        [panel for panel in panels if panel.lines],
        ["load", *LEVEL_COLUMNS[1:]],
        [
            [f"{names[arm] + ' ' if len(arms) > 1 else ''}c={level}", *map(str, of.values())]
            for (arm, level), of in figures.items()
        ],
        tuple(names.values()) if len(arms) > 1 else (),
    )


def _by_arm(found: Sequence[CellFigures], speed: float) -> dict[str, dict[int, list[Level]]]:
    """Return the figures of the starts of each arm by concurrency, of as many arms as there are marks."""
    counting = [one for one in found if one.observation.counted and not one.trouble and one.concurrency > 0]
    made = {one.observation.cell.check for one in counting}
    check = next((name for name in _LOADED if name in made), "")
    groups: dict[tuple[str, int, int], list[CellFigures]] = {}
    for one in counting:
        cell = one.observation.cell
        if cell.check == check:
            groups.setdefault((cell.arm, one.concurrency, cell.boot), []).append(one)
    arms: dict[str, dict[int, list[Level]]] = {"main": {}}
    for (arm, level, _), of in sorted(groups.items(), key=lambda item: item[0][1:]):
        arms.setdefault(arm, {}).setdefault(level, []).append(level_of(level, of, speed))
    return dict([(arm, starts) for arm, starts in arms.items() if starts][: len(MARKS)])


def _over_starts(name: str, own: Sequence[Level], all_arms: Sequence[Sequence[Level]]) -> Point:
    """Return the geometric mean of the figure *name* over starts, with its interval if there are several."""
    known = ([getattr(one, name) for one in of if getattr(one, name) > 0] for of in (own, *all_arms))
    logs, *others = (list(map(math.log, values)) for values in known)
    level = own[0].concurrency
    if not logs:
        return Point(level, math.nan)
    width = Spread.of(others).width(_TAIL, len(logs)) if len(logs) > 1 else math.nan
    return Point(level, *(math.exp(fmean(logs) + side) for side in (0, -width, width)))


# Soak ----------------------------------------------------------------------------------------------------


def _soak_chart(run: Run) -> Iterator[Chart]:
    """Yield latency of the soak's traffic and memory over its time; none of two windows or less."""
    courses = _courses(run)
    end_s = max((at_s for course in courses.values() for at_s, _ in course), default=0.0)
    window_s = _WINDOW_S * max(1, math.ceil(end_s / _WINDOWS / _WINDOW_S))
    windows: dict[str, dict[float, list[float]]] = {name: {} for name in courses}
    for name, course in courses.items():
        for at_s, value in sorted(course):
            windows[name].setdefault((at_s // window_s + 0.5) * window_s / 60, []).append(value)
    moments = sorted({moment for course in windows.values() for moment in course})
    if len(moments) <= 2:  # noqa: PLR2004 - no course
        return
    middles = {
        name: {at: Point(at, median(of)) for at, of in course.items()} for name, course in windows.items()
    }
    yield Chart(
        "soak",
        "The soak over its time",
        f"Medians of windows of {window_s:g} s: time to the first token and per token after it of the"
        " traffic's requests, and memory, whose axis does not begin at zero. Lines should be flat.",
        Axis("minutes since the soak began", 0.0, moments[-1]),
        [
            Panel(name, [Line(tuple(course.values()))], height=76.0, from_zero="memory" not in name)
            for name, course in middles.items()
        ],
        ["minute", *middles],
        [[f"{at:g}", *(str(course.get(at, NOTHING)) for course in middles.values())] for at in moments],
    )


def _courses(run: Run) -> dict[str, list[tuple[float, float]]]:
    """Return figures of the soak by name, with their times in seconds since it began."""
    made = [one for one in run.observations if one.cell.check == "soak"]
    begun = elapsed(made, run.speed)
    courses: dict[str, list[tuple[float, float]]] = {name: [] for name in _COURSES}

    def add(name: str, at_s: float, value: float) -> None:
        if value >= 0:
            courses[name].append((at_s, value))

    for one in made:
        if one.before is None:
            continue
        begun_s, origin = begun[one.cell.name], one.before.at
        for sample in one.counted if one.cell.tags.get("kind") == "traffic" else ():
            at_s = begun_s + (sample.started - origin) * run.speed / 1e9
            add("TTFT ms", at_s, sample.ttft_ms * run.speed)
            add("TPOT ms", at_s, sample.tpot_ms * run.speed)
        for seen in one.host:
            at_s = begun_s + (seen.at - origin) * run.speed / 1e9
            add("server's memory, GiB", at_s, seen.server_rss_mib / 1024)
            if run.speed == 1:  # else the machine's memory is not the simulated one's
                add("available memory, GiB", at_s, seen.memory_available_mib / 1024)
    return {name: course for name, course in courses.items() if course}
