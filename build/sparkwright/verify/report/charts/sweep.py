"""Charts of the concurrency sweep: throughput, latencies, step time and acceptance by category."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sparkwright.base.text import clean
from sparkwright.verify.report.charts.chart import HALF, WHOLE, Chart
from sparkwright.verify.report.figures import CellFigures, cells, pooled
from sparkwright.verify.report.overview import Level, levels
from sparkwright.verify.report.plots import (
    COLOUR,
    PLAIN,
    WORDS,
    Axis,
    Point,
    Series,
    Spec,
    field,
    linear,
    lines,
    logarithmic,
    look,
    percent,
)
from sparkwright.verify.report.text import at_c, number, share, span
from sparkwright.verify.report.vega import CONFIG
from sparkwright.verify.run import Run

ORDER = 10  # among the charts of the page

CATEGORIES = ("code", "math", "reasoning", "prose", "dialogue", "extraction")
CONCURRENCY = "requests at a time (c)"

# A time below this many times the client's own error is partly the client's.


@dataclass(frozen=True)
class _SweepMeasure:
    """One chart over concurrency: a quantity, its axis and its words."""

    key: str
    title: str
    unit: str
    value: Callable[[CellFigures], float]
    axis: Callable[[str, list[float]], Axis]
    meaning: str
    spoken: Callable[[_SweepMeasure, list[CellFigures]], str]
    slowest: Callable[[Level], float] | None = None  # the 95th percentile over all categories

    @property
    def short_unit(self) -> str:
        """The unit without the remark on the axis."""
        return self.unit.partition(",")[0]


def charts(run: Run) -> Iterator[Chart]:
    """Return all charts of the sweep; none where nothing was swept."""
    swept = [cell for cell in cells(run, "sweep") if cell.category]
    for measure in _MEASURES:
        shown = [cell for cell in swept if math.isfinite(measure.value(cell))]
        if shown:
            yield _over_concurrency(measure, swept, _slowest(measure, levels(swept, run.speed)))
    if chart := _tradeoff(swept):
        yield chart
    if chart := _positions(swept):
        yield chart


def categories(found: Sequence[CellFigures]) -> dict[str, int]:
    """Return categories with the number of their colour and shape, the same in every chart."""
    seen = dict.fromkeys(cell.category for cell in found if cell.category)
    known = [name for name in CATEGORIES if name in seen]
    others = [name for name in seen if name not in CATEGORIES]
    styles = {name: CATEGORIES.index(name) for name in known}
    return styles | {name: (len(CATEGORIES) + index) % 6 for index, name in enumerate(others)}


def _highest(measure: _SweepMeasure, found: list[CellFigures]) -> str:
    best = max(found, key=measure.value)
    return f"Highest: {number(measure.value(best))} {measure.short_unit} ({_place(best)})."


def _edges(measure: _SweepMeasure, found: list[CellFigures]) -> str:
    """Return the figures at the lowest and at the highest concurrency, in words."""
    least, most = (edge(cell.concurrency for cell in found) for edge in (min, max))
    parts = []
    for level in dict.fromkeys((least, most)):
        values = [measure.value(cell) for cell in found if cell.concurrency == level]
        parts.append(f"{span(values)} {measure.short_unit} at {at_c(level)}")
    return f"{', '.join(parts)}."


def _spread(measure: _SweepMeasure, found: list[CellFigures]) -> str:
    """Return the category that varies the most over concurrency, in words."""
    widest, of = 0.0, ""
    for name in categories(found):
        values = [measure.value(cell) for cell in found if cell.category == name]
        if min(values) > 0 and max(values) / min(values) - 1 >= widest:
            widest, of = max(values) / min(values) - 1, name
    return f"Widest spread over concurrency: {share(widest)} ({of})."


def _from_one(title: str, values: list[float]) -> Axis:
    return linear(title, [*values, 1.0])


_MEASURES = (
    _SweepMeasure(
        "throughput",
        "Throughput",
        "tokens/s",
        lambda cell: cell.steady_tok_s,
        linear,
        "All requests together, while at least 95 % of them ran.",
        _highest,
    ),
    _SweepMeasure(
        "ttft",
        "Time to first token",
        "ms, median, logarithmic",
        lambda cell: cell.ttft_ms.p50,
        logarithmic,
        "From the request to the first chunk with a generated token. Dashed: the 95th percentile of all"
        " requests.",
        _edges,
        lambda level: level.ttft_p95_ms,
    ),
    _SweepMeasure(
        "tpot",
        "Time per output token",
        "ms, median",
        lambda cell: cell.tpot_ms.p50,
        linear,
        "Of one request, after its first token. Dashed: the 95th percentile of all requests.",
        _edges,
        lambda level: level.tpot_p95_ms,
    ),
    _SweepMeasure(
        "step",
        "Time of a decoding step",
        "ms",
        lambda cell: cell.step_ms,
        linear,
        "Mean acceptance length over decode rate: the engine's speed, apart from the drafter's quality. "
        f"At {at_c(1)} all categories should meet.",
        _edges,
    ),
    _SweepMeasure(
        "mal",
        "Mean acceptance length",
        "tokens a step",
        lambda cell: cell.mal,
        _from_one,
        "1 + accepted over drafts. It must not depend on concurrency: lines should be flat.",
        _spread,
    ),
)


def _slowest(measure: _SweepMeasure, found: Sequence[Level]) -> tuple[Series, ...]:
    """Return the line of the 95th percentile over all categories; none of a quantity without one."""
    if measure.slowest is None:
        return ()
    points = tuple(
        Point(one.concurrency, value, f"p95, {at_c(one.concurrency)}: {number(value)} {measure.short_unit}")
        for one in found
        if math.isfinite(value := measure.slowest(one))
    )
    return (Series("p95 of all", PLAIN, points, dashed=True),) if points else ()


def _over_concurrency(
    measure: _SweepMeasure,
    swept: Sequence[CellFigures],
    slowest: tuple[Series, ...],
) -> Chart:
    shown = [cell for cell in swept if math.isfinite(measure.value(cell))]
    styles = categories(swept)
    series = tuple(_series(measure, name, style, _levels(swept, name)) for name, style in styles.items())
    series += slowest
    x = logarithmic(CONCURRENCY, [cell.concurrency for cell in swept], 2)
    values = [measure.value(cell) for cell in shown]
    values += [point.y for one in slowest for point in one.points]
    y = measure.axis(measure.unit, values)
    spoken = measure.spoken(measure, shown)
    return Chart(
        key=measure.key,
        title=measure.title,
        lead=spoken,
        meaning=measure.meaning,
        widths=HALF,
        draw=lambda width: lines(width, x, y, series),
        also=f"One line for each of {', '.join(styles)}.",
        columns=("category", "c", *_COLUMNS),
        rows=tuple(_row(cell) for name in styles for cell in _levels(swept, name)),
    )


def _series(measure: _SweepMeasure, name: str, style: int, levels: list[CellFigures]) -> Series:
    known = [math.isfinite(measure.value(cell)) for cell in levels]
    return Series(
        name,
        style,
        tuple(_point(measure, cell) for cell, there in zip(levels, known, strict=True) if there),
        tuple(_point(measure, cell) for cell, there in zip(levels, known, strict=True) if not there),
    )


def _levels(found: Sequence[CellFigures], category: str) -> list[CellFigures]:
    return sorted((c for c in found if c.category == category), key=lambda cell: cell.concurrency)


def _point(measure: _SweepMeasure, cell: CellFigures) -> Point:
    value = measure.value(cell)
    words = f"{_place(cell)}: {number(value)} {measure.short_unit}"
    trouble = f" ({'; '.join(cell.trouble)})" if cell.trouble else ""
    return Point(cell.concurrency, value, words + trouble, suspect=bool(cell.trouble))


_COLUMNS = (
    "requests",
    "tokens/s, full load",
    "tokens/s, overall",
    "TTFT p50, ms",
    "TTFT p95, ms",
    "TPOT p50, ms",
    "TPOT p95, ms",
    "step, ms",
    "tokens/step",
    "trouble",
)


def _row(cell: CellFigures) -> tuple[str, ...]:
    values = (
        float(len(cell.observation.counted)),
        cell.steady_tok_s,
        cell.whole_tok_s,
        cell.ttft_ms.p50,
        cell.ttft_ms.p95,
        cell.tpot_ms.p50,
        cell.tpot_ms.p95,
        cell.step_ms,
        cell.mal,
    )
    return (cell.category, str(cell.concurrency), *map(number, values), "; ".join(cell.trouble))


def _tradeoff(swept: Sequence[CellFigures]) -> Chart | None:
    """Return the speed of one request against that of all together, from level to level."""
    shown = [c for c in swept if math.isfinite(c.steady_tok_s) and math.isfinite(c.decode_tok_s)]
    if not shown:
        return None
    styles = categories(shown)
    series = tuple(
        Series(
            name,
            style,
            tuple(
                Point(cell.decode_tok_s, cell.steady_tok_s, _speeds(cell), suspect=bool(cell.trouble))
                for cell in reversed(_levels(shown, name))
            ),
        )
        for name, style in styles.items()
    )
    x = linear("tokens/s of one request", [cell.decode_tok_s for cell in shown])
    y = linear("tokens/s of all requests", [cell.steady_tok_s for cell in shown])
    fastest = max(shown, key=lambda cell: cell.decode_tok_s)
    lead = f"One request gets at most {number(fastest.decode_tok_s)} tokens/s ({_place(fastest)})."
    meaning = (
        "Each line goes from the highest concurrency (left) to the lowest. Farther up and right is better."
    )
    title = "Throughput against one request's speed"
    return Chart(
        key="tradeoff",
        title=title,
        lead=lead,
        meaning=meaning,
        widths=HALF,
        draw=lambda width: lines(width, x, y, series, listed=True),
        columns=("category", "c", "tokens/s of one request", "tokens/s of all"),
        rows=tuple(
            (name, str(cell.concurrency), number(cell.decode_tok_s), number(cell.steady_tok_s))
            for name in styles
            for cell in _levels(shown, name)
        ),
    )


def _speeds(cell: CellFigures) -> str:
    speeds = f"{number(cell.decode_tok_s)} tokens/s each, {number(cell.steady_tok_s)} together"
    return f"{_place(cell)}: {speeds}"


def _place(cell: CellFigures) -> str:
    """Return category and concurrency, the latter without a line break."""
    return f"{cell.category}, {at_c(cell.concurrency)}"


def _positions(swept: Sequence[CellFigures]) -> Chart | None:
    """Return acceptance at each position of the draft, each category's levels together."""
    rates: dict[str, tuple[float, ...]] = {}
    for name in categories(swept):
        found = [cell.speculation for cell in swept if cell.category == name and cell.speculation]
        if (whole := pooled(found)) and whole.position_rates:
            rates[name] = whole.position_rates
    if not rates:
        return None
    styles = categories(swept)
    shown = [bar for name, values in rates.items() for bar in _bars(name, styles[name], values)]
    longest = max(len(values) for values in rates.values())
    firsts = [values[0] for values in rates.values()]
    lead = f"First position: {share(min(firsts))} to {share(max(firsts))} accepted."
    meaning = (
        "Share of drafts whose token at this position was accepted. It can only fall from left to right."
    )
    return Chart(
        key="positions",
        title="Acceptance by position in the draft",
        lead=lead,
        meaning=meaning,
        widths=WHOLE,
        draw=lambda width: _panels(width, [clean(name) for name in rates], shown),
        columns=("category", *(str(index + 1) for index in range(longest))),
        rows=tuple(
            (name, *(share(rate) for rate in values), *[""] * (longest - len(values)))
            for name, values in rates.items()
        ),
    )


def _bars(name: str, style: int, rates: tuple[float, ...]) -> Iterator[Spec]:
    """Yield the bars of one category; a rate above the one before it is outlined as wrong."""
    for index, rate in enumerate(rates):
        rises = index > 0 and rate > rates[index - 1] + 1e-9
        words = f"{name}, position {index + 1}: {rate:.1%}" + (" (above the one before it)" if rises else "")
        place = {"category": clean(name), "position": index + 1, "rate": rate, "words": clean(words)}
        wrong = {"colour": "var(--fail-pale)", "edge": "var(--fail)"} if rises else {"edge": "none"}
        yield {**place, **look(style), **wrong}


def _panels(width: float, names: Sequence[str], bars: Sequence[Spec]) -> Spec:
    """Return small charts of bars side by side, one for each category."""
    lines_of_panels = -(-len(names) // max(1, int(width // 172)))
    columns = -(-len(names) // lines_of_panels)  # as many in each line
    encoding = {
        "x": field("position", "ordinal", axis={"labelAngle": 0, "ticks": False}),
        "y": percent("").encoding("rate", 140),
        "color": COLOUR,
        "stroke": field("edge", scale=None, legend=None),
        "description": WORDS,
    }
    return {
        "data": {"values": list(bars)},
        "facet": field("category", title=None, sort=list(names)),
        "columns": columns,
        "spacing": 24,
        "spec": {"width": width / columns - 72, "height": 106, "mark": "bar", "encoding": encoding},
        "resolve": {"axis": {"x": "independent", "y": "independent"}},
        "config": CONFIG,
    }
