"""Charts of load and of a soak, and the table of a comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparkwright.engine.findings import Finding
from sparkwright.verify.checks.soak_rounds import elapsed
from sparkwright.verify.report.figures import CellFigures, cells, windows
from sparkwright.verify.report.svg import Axis, Point, Series, draw_lines, from_zero, powers_of_two
from sparkwright.verify.report.text import at_c, duration, number, share, span
from sparkwright.verify.run import Run


@dataclass(frozen=True)
class Chart:
    """A chart: its definition and how a good result looks, the result in one sentence, and its lines."""

    key: str
    title: str
    meaning: str
    lead: str
    x: Axis
    y: Axis
    series: Sequence[Series]

    @property
    def drawing(self) -> str:
        """The chart as an SVG element."""
        description = f"{self.meaning} {self.lead} Lines: {', '.join(one.name for one in self.series)}."
        return draw_lines(self.key, self.title, description, (self.x, self.y), self.series)


def charts_of(run: Run) -> tuple[Chart, ...]:
    """Return each chart for which *run* has figures, in the order of the page."""
    return (*_sweep_charts(run), *_soak_chart(run))


# Sweep ---------------------------------------------------------------------------------------------------

CATEGORIES = ("code", "math", "reasoning", "prose", "dialogue", "extraction")


class _Measure(NamedTuple):
    """One chart over concurrency: a quantity from `least` up, and its words."""

    key: str
    title: str
    meaning: str
    unit: str
    value: Callable[[CellFigures], float]
    least: float = 0.0


_MEASURES = (
    _Measure(
        "throughput",
        "Throughput",
        "All requests together, while at least 95 % of them ran.",
        "tokens/s",
        lambda cell: cell.steady_tok_s,
    ),
    _Measure(
        "mal",
        "Mean acceptance length",
        "1 + accepted over drafts. It must not depend on concurrency: lines should be flat.",
        "tokens a step",
        lambda cell: cell.mal,
        1.0,
    ),
)


def _sweep_charts(run: Run) -> Iterator[Chart]:
    """Yield each quantity over concurrency, by category; none where nothing was swept."""
    swept = sorted((cell for cell in cells(run, "sweep") if cell.category), key=lambda c: c.concurrency)
    categories = sorted(
        dict.fromkeys(cell.category for cell in swept),
        key=lambda name: CATEGORIES.index(name) if name in CATEGORIES else len(CATEGORIES),
    )
    by_category = {name: [cell for cell in swept if cell.category == name] for name in categories}
    for measure in _MEASURES:
        shown = [cell for cell in swept if math.isfinite(measure.value(cell))]
        if shown:
            yield _over_concurrency(measure, by_category, shown)


def _over_concurrency(
    measure: _Measure, by_category: Mapping[str, Sequence[CellFigures]], shown: Sequence[CellFigures]
) -> Chart:
    series = []
    for place, (name, of) in enumerate(by_category.items()):
        style = CATEGORIES.index(name) if name in CATEGORIES else place % len(CATEGORIES)
        points = [
            Point(
                cell.concurrency,
                measure.value(cell),
                f"{name}, {at_c(cell.concurrency)}: {number(measure.value(cell))} {measure.unit}"
                + (f" ({'; '.join(cell.trouble)})" if cell.trouble else ""),
                suspect=bool(cell.trouble),
            )
            for cell in of
            if math.isfinite(measure.value(cell))
        ]
        series.append(Series(name, style, tuple(points)))
    levels = [cell.concurrency for cell in shown]
    ends = []
    for level in dict.fromkeys((min(levels), max(levels))):
        values = [measure.value(cell) for cell in shown if cell.concurrency == level]
        ends.append(f"{span(values)} {measure.unit} at {at_c(level)}")
    x = powers_of_two("requests at a time (c)", levels)
    y = from_zero(measure.unit, [measure.least, *(measure.value(cell) for cell in shown)])
    return Chart(measure.key, measure.title, measure.meaning, f"{', '.join(ends)}.", x, y, series)


# Soak ----------------------------------------------------------------------------------------------------

_KINDS = {"cold": 3, "cached": 2}  # of probes, and their styles
_MOST = 40  # windows of traffic
_WINDOW_S = 30.0  # at the least


def _soak_chart(run: Run) -> Iterator[Chart]:
    """Yield acceptance over the time of the soak, of its traffic and of its probes."""
    soaked = cells(run, "soak")
    begun = elapsed([cell.observation for cell in soaked], run.speed)
    end_s = max(begun.values(), default=0.0)
    points: dict[str, list[Point]] = {"traffic": [], **{kind: [] for kind in _KINDS}}
    for cell in soaked:
        seen, begin_s = cell.observation, begun[cell.observation.cell.name]
        kind = seen.cell.tags.get("kind", "traffic")
        if kind == "traffic":
            for at_s, rate in windows(seen, run.speed, max(_WINDOW_S, end_s / _MOST)):
                words = f"{duration(begin_s + at_s)}: {share(rate)}"
                points[kind].append(Point(begin_s + at_s, rate, words, suspect=bool(cell.trouble)))
        elif kind in _KINDS and cell.acceptance:
            words = f"{kind} probes, {duration(begin_s)}: {share(cell.acceptance.rate)}"
            points[kind].append(Point(begin_s, cell.acceptance.rate, words, suspect=bool(cell.trouble)))
    traffic = points["traffic"]
    if len(traffic) < 2:  # noqa: PLR2004 - one window is no course
        return
    units = {"h": 3600, "min": 60, "s": 1}
    name = next(name for name, unit in units.items() if end_s >= 3 * unit or unit == 1)
    last_s = max(point.x for of in points.values() for point in of)
    yield Chart(
        "soak",
        "Acceptance during the soak",
        "Of its traffic, and of the same questions put again and again (probes), cold and from the prefix"
        " cache. It should stay where it began.",
        f"{share(traffic[0].y)} in the first window, {share(traffic[-1].y)} in the last.",
        Axis(f"time since the soak began ({name})", 0.0, last_s, unit=units[name]),
        Axis("acceptance", 0.0, 1.0, percent=True),
        [Series(kind, _KINDS.get(kind, 0), tuple(of)) for kind, of in points.items() if of],
    )


# Comparison ----------------------------------------------------------------------------------------------

# Names of a comparison's measurements; unknown ones are words.
_RATIO, _LOW, _HIGH = "speed over the baseline's", "low", "high"
COMPARISON_COLUMNS = ("comparison", "ratio", "low", "high", "verdict")


def comparison_rows(run: Run) -> list[tuple[str, ...]]:
    """Return the intervals of a comparison as its findings hold them, by `COMPARISON_COLUMNS`."""

    def value(finding: Finding, name: str, unknown: float) -> float:
        found = finding.measured.get(name, "")
        return unknown if isinstance(found, str) else float(found)

    return [
        (
            one.name,
            number(value(one, _RATIO, math.nan)),
            number(value(one, _LOW, 0.0)),
            number(value(one, _HIGH, math.inf)),
            one.verdict.value,
        )
        for one in run.findings
        if one.check == "compare" and _RATIO in one.measured
    ]
