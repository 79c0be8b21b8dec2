"""Throughput of this run beside that of earlier runs of the same server."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sparkwright.verify.history import LEVELS, PastRun
from sparkwright.verify.report.charts.chart import HALF, Chart
from sparkwright.verify.report.plots import Axis, Point, Series, linear, lines
from sparkwright.verify.report.text import at_c, number
from sparkwright.verify.run import Run

ORDER = 95  # among the charts of the page
_SHOWN = 3  # levels


def charts(run: Run) -> Iterator[Chart]:
    """Return throughput over runs, if there are two or more."""
    runs = [one for one in run.history if one.tok_s]
    levels = _levels(runs)
    if len(runs) < 2 or not levels:  # noqa: PLR2004 - one run is no course
        return
    series = tuple(
        Series(at_c(level), style, points)
        for style, level in enumerate(levels)
        if (points := _points(runs, level))
    )
    x = Axis("runs, the latest last", 0.5, len(runs) + 0.5)
    y = linear("tokens/s", [point.y for one in series for point in one.points])
    yield Chart(
        key="history",
        title="Throughput of earlier runs",
        lead=_lead(runs, levels[-1]),
        meaning="Runs of the same server with the same profile beside this one. What was measured on a"
        " machine that was slowed or swapped is in the table alone.",
        widths=HALF,
        draw=lambda width: lines(width, x, y, series),
        columns=("started", "wheel", "verdict", *(at_c(level) for level in levels), "marked"),
        rows=tuple(
            (
                one.started,
                one.wheel,
                one.verdict,
                *(number(one.tok_s.get(level)) for level in levels),
                ", ".join(at_c(level) for level in sorted(one.marked)),
            )
            for one in runs
        ),
    )


def _levels(runs: Sequence[PastRun]) -> list[int]:
    """Return up to three concurrencies that the runs have, the usual ones before others."""
    known = sorted({level for one in runs for level in one.tok_s})
    usual = [level for level in known if level in LEVELS]
    others = [level for level in known if level not in LEVELS]
    return sorted([*usual, *others][:_SHOWN])


def _points(runs: Sequence[PastRun], level: int) -> tuple[Point, ...]:
    return tuple(
        Point(place, rate, f"{one.started}, {one.wheel}: {number(rate)} tokens/s at {at_c(level)}")
        for place, one in enumerate(runs, 1)
        if math.isfinite(rate := one.unmarked(level))
    )


def _lead(runs: Sequence[PastRun], level: int) -> str:
    """Return the latest figure over the one before it, where both count."""
    known = [rate for one in runs if math.isfinite(rate := one.unmarked(level))]
    if len(known) < 2:  # noqa: PLR2004
        return f"{len(runs)} runs."
    change = 100 * (known[-1] / known[-2] - 1)
    latest = f"{number(known[-1])} tokens/s at {at_c(level)}"
    return f"{len(runs)} runs; {latest}, {change:+.1f} % from the one before."
