"""Acceptance over the length of the prompt, cold and from the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from sparkwright.verify.report.charts.chart import CACHE_STYLES, HALF, Chart
from sparkwright.verify.report.figures import CellFigures, cells
from sparkwright.verify.report.plots import Point, Series, linear, lines
from sparkwright.verify.report.text import number, share
from sparkwright.verify.run import Run

ORDER = 30  # among the charts of the page


def charts(run: Run) -> Iterator[Chart]:
    """Return acceptance and time to the first token by length, if long prompts were sent."""
    sent = [cell for cell in cells(run, "context") if cell.observation.counted]
    for measure in (_ACCEPTANCE, _FIRST_TOKEN):
        if chart := _chart(measure, sent):
            yield chart


def _tokens(cell: CellFigures) -> float:
    return float(median(sample.prompt_tokens for sample in cell.observation.counted))


@dataclass(frozen=True)
class _ContextMeasure:
    """A quantity over the length of the prompt."""

    key: str
    title: str
    unit: str
    meaning: str
    value: Callable[[CellFigures], float]


_ACCEPTANCE = _ContextMeasure(
    "context-mal",
    "Acceptance over prompt length",
    "tokens a step",
    "Mean acceptance length by length of the prompt. It should hold, whether the prompt was worked "
    "through (cold) or came from the prefix cache (cached).",
    lambda cell: cell.mal,
)
_FIRST_TOKEN = _ContextMeasure(
    "context-ttft",
    "Time to first token over prompt length",
    "ms, median",
    "Cached prompts should answer sooner than cold ones; if not, the cache was not used.",
    lambda cell: cell.ttft_ms.p50,
)


def _chart(measure: _ContextMeasure, sent: Sequence[CellFigures]) -> Chart | None:
    value = measure.value
    found = [cell for cell in sent if math.isfinite(value(cell))]
    if not found:
        return None
    kinds = list(dict.fromkeys(_kind(cell) for cell in found))
    series = tuple(
        Series(kind, CACHE_STYLES.get(kind, 0), tuple(_point(cell, measure) for cell in _of(found, kind)))
        for kind in kinds
    )
    x = linear("tokens of the prompt", [_tokens(cell) for cell in found])
    y = linear(measure.unit, [value(cell) for cell in found])
    ends = [_of(found, kind)[-1] for kind in kinds]
    lead = f"Longest prompts: {', '.join(f'{number(value(cell))} {_kind(cell)}' for cell in ends)}."
    return Chart(
        key=measure.key,
        title=measure.title,
        lead=lead,
        meaning=measure.meaning,
        widths=HALF,
        draw=lambda width: lines(width, x, y, series, listed=True),
        columns=(
            "cell",
            "cache",
            "prompt tokens",
            "requests",
            "MAL",
            "TTFT p50, ms",
            "cache hits",
            "trouble",
        ),
        rows=tuple(_row(cell) for cell in found),
    )


def _kind(cell: CellFigures) -> str:
    return cell.observation.cell.tags.get("cache") or "cold"


def _of(found: Sequence[CellFigures], kind: str) -> list[CellFigures]:
    return sorted((cell for cell in found if _kind(cell) == kind), key=_tokens)


def _point(cell: CellFigures, measure: _ContextMeasure) -> Point:
    value = measure.value(cell)
    words = f"{cell.observation.cell.name}: {number(value)} {measure.unit.partition(',')[0]}"
    return Point(_tokens(cell), value, words, suspect=bool(cell.trouble))


def _row(cell: CellFigures) -> tuple[str, ...]:
    return (
        cell.observation.cell.name,
        _kind(cell),
        number(_tokens(cell)),
        str(len(cell.observation.counted)),
        number(cell.mal),
        number(cell.ttft_ms.p50),
        share(cell.hit_rate),
        "; ".join(cell.trouble),
    )
