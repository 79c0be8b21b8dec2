"""Charts of load and of comparisons: each with its words, its drawing and its figures as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sparkwright.engine.findings import Finding
from sparkwright.verify.checks.capacity import OBJECTIVE, step_of
from sparkwright.verify.rate_search import Step
from sparkwright.verify.report.figures import CellFigures, cells
from sparkwright.verify.report.overview import Level, levels
from sparkwright.verify.report.svg import (
    PLAIN,
    Axis,
    Drawing,
    Interval,
    Note,
    Point,
    Series,
    intervals,
    linear,
    lines,
    logarithmic,
    percent,
)
from sparkwright.verify.report.text import at_c, number, plural, share, span
from sparkwright.verify.run import Run
from sparkwright.verify.slo import parse_slo

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class Table:
    """The figures of a chart: heads and rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, rows: Iterable[_Row], columns: Mapping[str, Callable[[_Row], str]]) -> Table:
        """Return a table of *rows*, each column with the function that writes its fields."""
        return cls(tuple(columns), tuple(tuple(write(row) for write in columns.values()) for row in rows))


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        meaning: the definition, and how a good result looks.
        lead: the result, in one sentence with figures.
        draw: returns the drawing for a width in pixels.
        whole: it takes the whole width of the page.
        also: a further sentence for the text alternative.
    """

    key: str
    title: str
    meaning: str
    lead: str
    draw: Callable[[float], Drawing]
    table: Table
    whole: bool = True
    also: str = ""

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths to draw for, in pixels; the style sheet shows the drawing that is scaled the least."""
        return (840, 400) if self.whole else (360,)

    @property
    def description(self) -> str:
        """The text alternative of the drawing."""
        return f"{self.meaning} {self.lead} {self.also}".strip()


def name_of(cell: CellFigures) -> str:
    """Return the name of *cell*."""
    return cell.observation.cell.name


def _trouble(cell: CellFigures) -> str:
    return "; ".join(cell.trouble)


# Capacity ------------------------------------------------------------------------------------------------


def capacity_charts(run: Run) -> Iterator[Chart]:
    """Yield the share of good requests over the rate, if there was a search."""
    searched = cells(run, "capacity")
    if not searched:
        return
    slo = parse_slo(searched[0].observation.cell.tags[OBJECTIVE])
    steps = [(cell, step_of(cell.observation, slo, run.speed)) for cell in searched]
    found = [finding.cause for finding in run.findings if finding.check == "capacity"]
    points = tuple(
        Point(
            step.rate,
            step.good / step.requests,
            f"{number(step.rate)} requests/s: {share(step.good / step.requests)} good",
            suspect=step.void,
        )
        for step in sorted((step for _, step in steps), key=lambda step: step.rate)
    )
    x = logarithmic("requests a second, logarithmic", [step.rate for _, step in steps])
    limit = Note(slo.share, f"{slo.share:.0%}")
    yield Chart(
        "capacity",
        "Goodput by rate",
        f"Requests that kept {slo}, of those that arrived at random at this rate; a point is a step.",
        f"{found[0]}." if found else "",
        lambda width: lines(width, x, percent("good requests"), [Series("", 0, points)], [limit]),
        Table.of(
            steps,
            {
                "step": lambda one: name_of(one[0]).partition(":")[0],
                "requests/s": lambda one: number(one[1].rate),
                "requests": lambda one: number(one[1].requests),
                "good": lambda one: share(one[1].good / one[1].requests),
                "TTFT p50, ms": lambda one: number(one[0].ttft_ms.p50),
                "TTFT p95, ms": lambda one: number(one[0].ttft_ms.p95),
                "TPOT p95, ms": lambda one: number(one[0].tpot_ms.p95),
                "": lambda one: _remarks(one[1]),
            },
        ),
    )


def _remarks(step: Step) -> str:
    said = {"queue grows": step.grows, "client late": step.late, "marked": step.disturbed}
    return ", ".join(word for word, true in said.items() if true)


# Sweep ---------------------------------------------------------------------------------------------------

CATEGORIES = ("code", "math", "reasoning", "prose", "dialogue", "extraction")


@dataclass(frozen=True)
class _Measure:
    """One chart over concurrency: a quantity, its axis and its words."""

    key: str
    title: str
    meaning: str
    unit: str
    value: Callable[[CellFigures], float]
    axis: Callable[[str, list[float]], Axis]
    slowest: Callable[[Level], float] | None = None  # the 95th percentile over all categories

    @property
    def short_unit(self) -> str:
        """The unit without the remark on the axis."""
        return self.unit.partition(",")[0]

    def lead(self, found: Sequence[CellFigures]) -> str:
        """Return the figures at the lowest and at the highest concurrency, in words."""
        least, most = (edge(cell.concurrency for cell in found) for edge in (min, max))
        parts = []
        for level in dict.fromkeys((least, most)):
            values = [self.value(cell) for cell in found if cell.concurrency == level]
            parts.append(f"{span(values)} {self.short_unit} at {at_c(level)}")
        return f"{', '.join(parts)}."


_DASHED = "Dashed: the 95th percentile of all requests."
_MEASURES = (
    _Measure(
        "throughput",
        "Throughput",
        "All requests together, while at least 95 % of them ran.",
        "tokens/s",
        lambda cell: cell.steady_tok_s,
        linear,
    ),
    _Measure(
        "ttft",
        "Time to first token",
        f"From the request to the first chunk with a generated token. {_DASHED}",
        "ms, median, logarithmic",
        lambda cell: cell.ttft_ms.p50,
        logarithmic,
        lambda level: level.ttft_p95_ms,
    ),
    _Measure(
        "tpot",
        "Time per output token",
        f"Of one request, after its first token. {_DASHED}",
        "ms, median",
        lambda cell: cell.tpot_ms.p50,
        linear,
        lambda level: level.tpot_p95_ms,
    ),
    _Measure(
        "mal",
        "Mean acceptance length",
        "1 + accepted over drafts. It must not depend on concurrency: lines should be flat.",
        "tokens a step",
        lambda cell: cell.mal,
        lambda title, values: linear(title, [*values, 1.0]),
    ),
)
_SWEPT: dict[str, Callable[[CellFigures], str]] = {
    "category": lambda cell: cell.category,
    "c": lambda cell: str(cell.concurrency),
    "requests": lambda cell: number(float(len(cell.observation.counted))),
    "tokens/s, full load": lambda cell: number(cell.steady_tok_s),
    "tokens/s, overall": lambda cell: number(cell.whole_tok_s),
    "TTFT p50, ms": lambda cell: number(cell.ttft_ms.p50),
    "TTFT p95, ms": lambda cell: number(cell.ttft_ms.p95),
    "TPOT p50, ms": lambda cell: number(cell.tpot_ms.p50),
    "TPOT p95, ms": lambda cell: number(cell.tpot_ms.p95),
    "step, ms": lambda cell: number(cell.step_ms),
    "tokens/step": lambda cell: number(cell.mal),
    "trouble": _trouble,
}


def sweep_charts(run: Run) -> Iterator[Chart]:
    """Yield each quantity over concurrency, by category; none where nothing was swept."""
    swept = sorted((cell for cell in cells(run, "sweep") if cell.category), key=lambda c: c.concurrency)
    by_category = {name: [c for c in swept if c.category == name] for name in _categories(swept)}
    for measure in _MEASURES:
        shown = [cell for cell in swept if math.isfinite(measure.value(cell))]
        if shown:
            yield _over_concurrency(measure, by_category, shown, levels(swept, run.speed))


def _categories(found: Sequence[CellFigures]) -> list[str]:
    """Return the categories of *found*, those of this project first."""
    seen = dict.fromkeys(cell.category for cell in found)
    return sorted(seen, key=lambda name: CATEGORIES.index(name) if name in CATEGORIES else len(CATEGORIES))


def _over_concurrency(
    measure: _Measure,
    by_category: Mapping[str, Sequence[CellFigures]],
    shown: Sequence[CellFigures],
    found: Sequence[Level],
) -> Chart:
    def point(cell: CellFigures) -> Point:
        value = measure.value(cell)
        words = f"{cell.category}, {at_c(cell.concurrency)}: {number(value)} {measure.short_unit}"
        words += f" ({_trouble(cell)})" if cell.trouble else ""
        return Point(cell.concurrency, value, words, suspect=bool(cell.trouble))

    series = []
    for place, (name, of) in enumerate(by_category.items()):
        style = CATEGORIES.index(name) if name in CATEGORIES else place % len(CATEGORIES)
        points = [point(cell) for cell in of]
        known, missing = (
            tuple(one for one in points if math.isfinite(one.y) == finite) for finite in (True, False)
        )
        series.append(Series(name, style, known, missing))
    slowest = tuple(
        Point(one.concurrency, late, f"p95, {at_c(one.concurrency)}: {number(late)} {measure.short_unit}")
        for one in found
        if measure.slowest and math.isfinite(late := measure.slowest(one))
    )
    series += [Series("p95 of all", PLAIN, slowest, dashed=True)] if slowest else []
    swept = [cell for of in by_category.values() for cell in of]
    x = logarithmic("requests at a time (c)", [cell.concurrency for cell in swept], 2)
    y = measure.axis(measure.unit, [*map(measure.value, shown), *(point.y for point in slowest)])
    return Chart(
        measure.key,
        measure.title,
        measure.meaning,
        measure.lead(shown),
        lambda width: lines(width, x, y, series),
        Table.of(swept, _SWEPT),
        whole=False,
        also=f"One line for each of {', '.join(by_category)}.",
    )


# Comparison ----------------------------------------------------------------------------------------------

# Names of a comparison's measurements; unknown ones are words.
_RATIO, _LOW, _HIGH = "speed over the baseline's", "low", "high"


def compare_charts(run: Run) -> Iterator[Chart]:
    """Yield the intervals of the comparison, as its findings hold them."""
    compared = [one for one in run.findings if one.check == "compare" and _RATIO in one.measured]
    rows = [(one, _interval(one)) for one in compared]
    if not rows:
        return
    decided = [row for _, row in rows if row.low > 1 or row.high < 1]
    yield Chart(
        "compare",
        "Tested server against baseline",
        "Ratio of the tested server to the baseline with its interval over starts. An interval across 1"
        " decides nothing.",
        f"{plural(len(decided), 'difference')} of {len(rows)} can be told from none.",
        lambda width: intervals(width, _RATIO, [row for _, row in rows]),
        Table.of(
            rows,
            {
                "comparison": lambda row: row[1].label,
                "ratio": lambda row: number(row[1].ratio),
                "low": lambda row: number(row[1].low),
                "high": lambda row: number(row[1].high),
                "verdict": lambda row: row[0].verdict.value,
            },
        ),
    )


def _interval(finding: Finding) -> Interval:
    ratio, low, high = (
        float(value) if isinstance(value := finding.measured.get(name, ""), float | int) else unknown
        for name, unknown in ((_RATIO, math.nan), (_LOW, 0.0), (_HIGH, math.inf))
    )
    words = f"{finding.name}: {number(ratio)} ({number(low)} to {number(high)})"
    colour = f"var(--{finding.verdict.value})"
    return Interval(finding.name, words, ratio, low, high, colour)
