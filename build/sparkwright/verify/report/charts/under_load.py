"""Charts of measurements under load: capacity, the sweep over concurrency, and long prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from sparkwright.base.text import clean
from sparkwright.verify.capacity.check import OBJECTIVE, step_of
from sparkwright.verify.capacity.search import Step
from sparkwright.verify.capacity.slo import parse_slo
from sparkwright.verify.report.charts.chart import CACHE_STYLES, Chart, Table, chart_of, name_of, trouble_of
from sparkwright.verify.report.figures import CellFigures, cells, pooled
from sparkwright.verify.report.overview import Level, levels
from sparkwright.verify.report.plots import (
    PLAIN,
    Axis,
    Note,
    Point,
    Series,
    linear,
    lines,
    logarithmic,
    look,
    percent,
)
from sparkwright.verify.report.text import at_c, number, share, span
from sparkwright.verify.report.vega import Spec, bind
from sparkwright.verify.run import Run

# Capacity ---------------------------------------------------------------------------------------------


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
    yield chart_of(
        "capacity",
        lead=f"{found[0]}." if found else "",
        slo=slo,
        draw=lambda width: lines(
            width,
            logarithmic("requests a second, logarithmic", [step.rate for _, step in steps]),
            percent("good requests"),
            [Series(f"kept {slo}", 0, points)],
            [Note(slo.share, f"{slo.share:.0%}")],
        ),
        table=Table.of(
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


# Sweep ------------------------------------------------------------------------------------------------

CATEGORIES = ("code", "math", "reasoning", "prose", "dialogue", "extraction")


@dataclass(frozen=True)
class _Measure:
    """One chart over concurrency: a quantity, its axis and its words."""

    key: str
    unit: str
    value: Callable[[CellFigures], float]
    axis: Callable[[str, list[float]], Axis]
    spoken: Callable[[_Measure, list[CellFigures]], str]
    slowest: Callable[[Level], float] | None = None  # the 95th percentile over all categories

    @property
    def short_unit(self) -> str:
        """The unit without the remark on the axis."""
        return self.unit.partition(",")[0]

    def point(self, cell: CellFigures) -> Point:
        """Return the point of *cell*."""
        words = f"{_place(cell)}: {number(self.value(cell))} {self.short_unit}"
        trouble = f" ({trouble_of(cell)})" if cell.trouble else ""
        return Point(cell.concurrency, self.value(cell), words + trouble, suspect=bool(cell.trouble))


def _highest(measure: _Measure, found: list[CellFigures]) -> str:
    best = max(found, key=measure.value)
    return f"Highest: {number(measure.value(best))} {measure.short_unit} ({_place(best)})."


def _edges(measure: _Measure, found: list[CellFigures]) -> str:
    """Return the figures at the lowest and at the highest concurrency, in words."""
    least, most = (edge(cell.concurrency for cell in found) for edge in (min, max))
    parts = []
    for level in dict.fromkeys((least, most)):
        values = [measure.value(cell) for cell in found if cell.concurrency == level]
        parts.append(f"{span(values)} {measure.short_unit} at {at_c(level)}")
    return f"{', '.join(parts)}."


def _spread(measure: _Measure, found: list[CellFigures]) -> str:
    """Return the category that varies the most over concurrency, in words."""
    widest, of = 0.0, ""
    for name in categories(found):
        values = [measure.value(cell) for cell in found if cell.category == name]
        if min(values) > 0 and max(values) / min(values) - 1 >= widest:
            widest, of = max(values) / min(values) - 1, name
    return f"Widest spread over concurrency: {share(widest)} ({of})."


_MEASURES = (
    _Measure("throughput", "tokens/s", lambda cell: cell.steady_tok_s, linear, _highest),
    _Measure(
        "ttft", "ms, median, logarithmic", lambda cell: cell.ttft_ms.p50, logarithmic, _edges,
        lambda level: level.ttft_p95_ms,
    ),
    _Measure(
        "tpot", "ms, median", lambda cell: cell.tpot_ms.p50, linear, _edges, lambda level: level.tpot_p95_ms
    ),
    _Measure("step", "ms", lambda cell: cell.step_ms, linear, _edges),
    _Measure(
        "mal", "tokens a step", lambda cell: cell.mal,
        lambda title, values: linear(title, [*values, 1.0]), _spread,
    ),
)  # fmt: skip
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
    "trouble": trouble_of,
}


def sweep_charts(run: Run) -> Iterator[Chart]:
    """Yield all charts of the sweep; none where nothing was swept."""
    swept = [cell for cell in cells(run, "sweep") if cell.category]
    for measure in _MEASURES:
        if any(math.isfinite(measure.value(cell)) for cell in swept):
            yield _over_concurrency(measure, swept, levels(swept, run.speed))
    yield from _tradeoff(swept)
    yield from _positions(swept)


def categories(found: Sequence[CellFigures]) -> dict[str, int]:
    """Return categories with the number of their colour and shape, the same in every chart."""
    seen = dict.fromkeys(cell.category for cell in found if cell.category)
    styles = {name: CATEGORIES.index(name) for name in CATEGORIES if name in seen}
    others = [name for name in seen if name not in CATEGORIES]
    return styles | {name: (len(CATEGORIES) + index) % 6 for index, name in enumerate(others)}


def _of_category(found: Sequence[CellFigures], category: str) -> list[CellFigures]:
    return sorted((cell for cell in found if cell.category == category), key=lambda cell: cell.concurrency)


def _place(cell: CellFigures) -> str:
    """Return category and concurrency, the latter without a line break."""
    return f"{cell.category}, {at_c(cell.concurrency)}"


def _over_concurrency(measure: _Measure, swept: Sequence[CellFigures], found: Sequence[Level]) -> Chart:
    value, styles = measure.value, categories(swept)
    shown = [cell for cell in swept if math.isfinite(value(cell))]
    series = [_of_measure(measure, name, style, _of_category(swept, name)) for name, style in styles.items()]
    slowest = tuple(
        Point(one.concurrency, late, f"p95, {at_c(one.concurrency)}: {number(late)} {measure.short_unit}")
        for one in found
        if measure.slowest and math.isfinite(late := measure.slowest(one))
    )
    series += [Series("p95 of all", PLAIN, slowest, dashed=True)] if slowest else []
    x = logarithmic("requests at a time (c)", [cell.concurrency for cell in swept], 2)
    y = measure.axis(measure.unit, [*map(value, shown), *(point.y for point in slowest)])
    return chart_of(
        measure.key,
        lead=measure.spoken(measure, shown),
        draw=lambda width: lines(width, x, y, series),
        also=f"One line for each of {', '.join(styles)}.",
        table=Table.of([cell for name in styles for cell in _of_category(swept, name)], _SWEPT),
    )


def _of_measure(measure: _Measure, name: str, style: int, found: Sequence[CellFigures]) -> Series:
    """Return the line of one category, with the places that have no figure."""
    points = [measure.point(cell) for cell in found]
    known, missing = (
        tuple(one for one in points if math.isfinite(one.y) == finite) for finite in (True, False)
    )
    return Series(name, style, known, missing)


def _tradeoff(swept: Sequence[CellFigures]) -> Iterator[Chart]:
    """Yield the speed of one request against that of all together, from level to level."""
    shown = [c for c in swept if math.isfinite(c.steady_tok_s) and math.isfinite(c.decode_tok_s)]
    if not shown:
        return

    def point(cell: CellFigures) -> Point:
        speeds = f"{number(cell.decode_tok_s)} tokens/s each, {number(cell.steady_tok_s)} together"
        words = f"{_place(cell)}: {speeds}"
        return Point(cell.decode_tok_s, cell.steady_tok_s, words, suspect=bool(cell.trouble))

    styles = categories(shown)
    series = [
        Series(name, style, tuple(map(point, reversed(_of_category(shown, name)))))
        for name, style in styles.items()
    ]
    x = linear("tokens/s of one request", [cell.decode_tok_s for cell in shown])
    y = linear("tokens/s of all requests", [cell.steady_tok_s for cell in shown])
    fastest = max(shown, key=lambda cell: cell.decode_tok_s)
    yield chart_of(
        "tradeoff",
        lead=f"One request gets at most {number(fastest.decode_tok_s)} tokens/s ({_place(fastest)}).",
        draw=lambda width: lines(width, x, y, series, listed=True),
        table=Table.of(
            [cell for name in styles for cell in _of_category(shown, name)],
            {
                "category": lambda cell: cell.category,
                "c": lambda cell: str(cell.concurrency),
                "tokens/s of one request": lambda cell: number(cell.decode_tok_s),
                "tokens/s of all": lambda cell: number(cell.steady_tok_s),
            },
        ),
    )


def _positions(swept: Sequence[CellFigures]) -> Iterator[Chart]:
    """Yield acceptance at each position of the draft, each category's levels together."""
    rates: dict[str, tuple[float, ...]] = {}
    styles = categories(swept)
    for name in styles:
        found = [cell.speculation for cell in swept if cell.category == name and cell.speculation]
        if (whole := pooled(found)) and whole.position_rates:
            rates[name] = whole.position_rates
    if not rates:
        return
    shown = [bar for name, values in rates.items() for bar in _bars(name, styles[name], values)]
    longest = max(map(len, rates.values()))
    firsts = [values[0] for values in rates.values()]
    yield chart_of(
        "positions",
        lead=f"First position: {share(min(firsts))} to {share(max(firsts))} accepted.",
        draw=lambda width: _side_by_side(width, [clean(name) for name in rates], shown),
        table=Table(
            ("category", *(str(index + 1) for index in range(longest))),
            tuple(
                (name, *map(share, values), *[""] * (longest - len(values))) for name, values in rates.items()
            ),
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


def _side_by_side(width: float, names: Sequence[str], bars: Sequence[Spec]) -> Spec:
    """Return small charts of bars, one for each category, as many in each line."""
    lines_of_panels = -(-len(names) // max(1, int(width // 172)))
    columns = -(-len(names) // lines_of_panels)
    rate = percent("").encoding("rate", 140)
    return bind("bars", bars=bars, sorted=names, columns=columns, width=width / columns - 72, rate=rate)


# Context ----------------------------------------------------------------------------------------------


def context_charts(run: Run) -> Iterator[Chart]:
    """Yield acceptance and time to the first token by length, if long prompts were sent."""
    sent = [cell for cell in cells(run, "context") if cell.observation.counted]
    yield from _by_length("context-mal", sent, lambda cell: cell.mal, "tokens a step")
    yield from _by_length("context-ttft", sent, lambda cell: cell.ttft_ms.p50, "ms, median")


def _tokens(cell: CellFigures) -> float:
    return float(median(sample.prompt_tokens for sample in cell.observation.counted))


def _cache(cell: CellFigures) -> str:
    return cell.observation.cell.tags.get("cache") or "cold"


def _by_length(
    key: str, sent: Sequence[CellFigures], value: Callable[[CellFigures], float], unit: str
) -> Iterator[Chart]:
    """Yield a quantity over the length of the prompt, if it is known anywhere."""
    found = [cell for cell in sent if math.isfinite(value(cell))]
    if not found:
        return

    def point(cell: CellFigures) -> Point:
        said = f"{name_of(cell)}: {number(value(cell))} {unit.partition(',')[0]}"
        return Point(_tokens(cell), value(cell), said, suspect=bool(cell.trouble))

    by_kind = {
        kind: sorted((cell for cell in found if _cache(cell) == kind), key=_tokens)
        for kind in dict.fromkeys(map(_cache, found))
    }
    series = [Series(kind, CACHE_STYLES.get(kind, 0), tuple(map(point, of))) for kind, of in by_kind.items()]
    x = linear("tokens of the prompt", [_tokens(cell) for cell in found])
    y = linear(unit, [value(cell) for cell in found])
    ends = ", ".join(f"{number(value(of[-1]))} {kind}" for kind, of in by_kind.items())
    yield chart_of(
        key,
        lead=f"Longest prompts: {ends}.",
        draw=lambda width: lines(width, x, y, series, listed=True),
        table=Table.of(
            found,
            {
                "cell": name_of,
                "cache": _cache,
                "prompt tokens": lambda cell: number(_tokens(cell)),
                "requests": lambda cell: str(len(cell.observation.counted)),
                "MAL": lambda cell: number(cell.mal),
                "TTFT p50, ms": lambda cell: number(cell.ttft_ms.p50),
                "cache hits": lambda cell: share(cell.hit_rate),
                "trouble": trouble_of,
            },
        ),
    )
