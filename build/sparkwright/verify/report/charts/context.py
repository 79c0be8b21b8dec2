"""Acceptance over the length of the prompt, cold and from the cache."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from sparkwright.verify.report.charts.chart import HALF, Chart
from sparkwright.verify.report.drawing import scale
from sparkwright.verify.report.drawing.kinds import Naming, line_chart
from sparkwright.verify.report.drawing.plot import Point, Series
from sparkwright.verify.report.text import number, share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sparkwright.verify.report.figures import CellFigures
    from sparkwright.verify.run import Run

__all__ = ["context_charts"]


def context_charts(run: Run, found: Sequence[CellFigures]) -> Iterator[Chart]:
    """Acceptance and time to the first token by length, if long prompts were sent."""
    del run
    sent = [cell for cell in found if cell.observation.cell.check == "context" and cell.observation.counted]
    if accepted := [cell for cell in sent if math.isfinite(cell.mal)]:
        yield _chart(
            "context-mal",
            "Acceptance over prompt length",
            "tokens a step",
            "Mean acceptance length by length of the prompt. It should hold, whether the prompt was worked through "
            "(cold) or came from the prefix cache (cached).",
            accepted,
            lambda cell: cell.mal,
        )
    if timed := [cell for cell in sent if cell.ttft_ms]:
        yield _chart(
            "context-ttft",
            "Time to first token over prompt length",
            "ms, median",
            "Cached prompts should answer sooner than cold ones; if not, the cache was not used.",
            timed,
            lambda cell: cell.ttft_ms.p50 if cell.ttft_ms else math.nan,
        )


def _tokens(cell: CellFigures) -> float:
    return float(median(sample.prompt_tokens for sample in cell.observation.counted))


def _chart(
    key: str,
    title: str,
    unit: str,
    meaning: str,
    found: Sequence[CellFigures],
    value: Callable[[CellFigures], float],
) -> Chart:
    kinds = list(dict.fromkeys(_kind(cell) for cell in found))
    series = tuple(
        Series(kind, style, tuple(_point(cell, value, unit) for cell in _of(found, kind)))
        for style, kind in enumerate(kinds)
    )
    x = scale.linear("tokens of the prompt", [_tokens(cell) for cell in found])
    y = scale.linear(unit, [value(cell) for cell in found])
    longest = max(_tokens(cell) for cell in found)
    ends = [f"{number(value(cell))} {_kind(cell)}" for cell in found if _tokens(cell) == longest]
    lead = f"At {number(longest)} tokens: {', '.join(ends)}."
    return Chart(
        key=key,
        title=title,
        lead=lead,
        meaning=meaning,
        widths=HALF,
        draw=lambda name, width: line_chart(Naming(name, title, f"{meaning} {lead}"), width, x, y, series),
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


def _point(cell: CellFigures, value: Callable[[CellFigures], float], unit: str) -> Point:
    words = f"{cell.observation.cell.name}: {number(value(cell))} {unit.partition(',')[0]}"
    return Point(_tokens(cell), value(cell), words, suspect=bool(cell.trouble))


def _row(cell: CellFigures) -> tuple[str, ...]:
    return (
        cell.observation.cell.name,
        _kind(cell),
        number(_tokens(cell)),
        str(len(cell.observation.counted)),
        number(cell.mal),
        number(cell.ttft_ms.p50 if cell.ttft_ms else math.nan),
        share(cell.hit_rate),
        "; ".join(cell.trouble),
    )
