"""The crash hunt as a strip: each level in the order of its coming, and whether all went well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkwright.verify.report.charts.chart import WHOLE, Chart
from sparkwright.verify.report.drawing.kinds import Outcome, outcomes
from sparkwright.verify.report.drawing.plot import Naming
from sparkwright.verify.report.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkwright.verify.report.figures import CellFigures
    from sparkwright.verify.run import Run


def crash_charts(run: Run, found: Sequence[CellFigures]) -> Iterator[Chart]:
    """The crash hunt's levels, if it ran."""
    del run
    hunted = [cell for cell in found if cell.observation.cell.check == "crash"]
    if not hunted:
        return
    bad = [cell for cell in hunted if cell.trouble]
    lead = f"{plural(len(hunted), 'load')}, all survived."
    if bad:
        lead = (
            f"{plural(len(bad), 'load')} of {len(hunted)} went wrong, first {bad[0].observation.cell.name}."
        )
    meaning = (
        "Requests at a time, on and between the sizes that graphs are captured for: bursts, batches that "
        "drain to one request (↓), and waves of mixed lengths (~). After each the server must still answer."
    )
    tiles = tuple(_tile(cell) for cell in hunted)
    yield Chart(
        key="crash",
        title="Crash hunt",
        lead=lead,
        meaning=meaning,
        widths=WHOLE,
        draw=lambda key, width: outcomes(Naming(key, "Crash hunt", f"{meaning} {lead}"), width, tiles),
        columns=("load", "shape", "c", "requests", "failed", "what went wrong"),
        rows=tuple(_row(cell) for cell in hunted),
    )


def _tile(cell: CellFigures) -> Outcome:
    load = cell.observation.cell.load
    label = f"{load.concurrency}{'↓' if load.shape == 'drain' else ''}"
    if cell.observation.cell.tags.get("kind") == "wave":
        label = f"~{load.concurrency}"
    words = f"{cell.observation.cell.name}: {'; '.join(cell.trouble) or 'all went well'}"
    return Outcome(label, bool(cell.trouble), words)


def _row(cell: CellFigures) -> tuple[str, ...]:
    observation = cell.observation
    return (
        observation.cell.name,
        observation.cell.load.shape,
        str(cell.concurrency),
        str(len(observation.samples)),
        str(len(observation.failed)),
        "; ".join(cell.trouble),
    )
