"""The capacity: requests that kept the objective, and the time to the first token, by rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparkwright.verify.capacity.check import OBJECTIVE
from sparkwright.verify.capacity.search import Step
from sparkwright.verify.capacity.slo import Slo, parse_slo
from sparkwright.verify.capacity.step import step_of
from sparkwright.verify.report.charts.chart import WHOLE, Chart
from sparkwright.verify.report.figures import CellFigures, cells
from sparkwright.verify.report.plots import Note, Point, Series, lines, logarithmic, percent
from sparkwright.verify.report.text import number, share
from sparkwright.verify.run import Run

ORDER = 5  # among the charts of the page
_Shown = tuple["CellFigures", "Step"]


def charts(run: Run) -> Iterator[Chart]:
    """Return the share of good requests over the rate, if there was a search."""
    searched = cells(run, "capacity")
    if not searched:
        return
    slo = parse_slo(searched[0].observation.cell.tags[OBJECTIVE])
    steps = [(cell, step_of(cell.observation, slo, run.speed)) for cell in searched]
    found = [finding.cause for finding in run.findings if finding.check == "capacity"]
    yield Chart(
        key="capacity",
        title="Goodput by rate",
        lead=f"{found[0]}." if found else "",
        meaning=f"Requests that kept {slo}, of those that arrived at random at this rate; a point is a step.",
        widths=WHOLE,
        draw=lambda width: lines(
            width,
            logarithmic("requests a second, logarithmic", [step.rate for _, step in steps]),
            percent("good requests"),
            [_series(steps, slo)],
            [Note(slo.share, f"{slo.share:.0%}")],
        ),
        columns=(
            "step",
            "requests/s",
            "requests",
            "good",
            "TTFT p50, ms",
            "TTFT p95, ms",
            "TPOT p95, ms",
            "",
        ),
        rows=tuple(_row(*one) for one in steps),
    )


def _series(steps: Sequence[_Shown], slo: Slo) -> Series:
    ordered = sorted(steps, key=lambda one: one[1].rate)
    return Series(
        f"kept {slo}",
        0,
        tuple(
            Point(
                step.rate,
                step.good / step.requests,
                f"{number(step.rate)} requests/s: {share(step.good / step.requests)} good",
                suspect=step.void,
            )
            for _, step in ordered
        ),
    )


def _row(cell: CellFigures, step: Step) -> tuple[str, ...]:
    remarks = [
        word
        for word, said in (
            ("queue grows", step.grows),
            ("client late", step.late),
            ("marked", step.disturbed),
        )
        if said
    ]
    return (
        cell.observation.cell.name.partition(":")[0],
        number(step.rate),
        number(step.requests),
        share(step.good / step.requests),
        number(cell.ttft_ms.p50),
        number(cell.ttft_ms.p95),
        number(cell.tpot_ms.p95),
        ", ".join(remarks),
    )
