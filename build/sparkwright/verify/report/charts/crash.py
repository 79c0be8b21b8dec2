"""The crash check: one tile for each load, in order, passed or failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparkwright.base.text import clean
from sparkwright.verify.report.charts.chart import WHOLE, Chart
from sparkwright.verify.report.figures import CellFigures, cells
from sparkwright.verify.report.plots import COLOUR, WORDS, Spec, field, layer
from sparkwright.verify.report.text import plural
from sparkwright.verify.report.vega import CONFIG
from sparkwright.verify.run import Run

ORDER = 40  # among the charts of the page
_TILE = 46  # pixels, with the gap


def charts(run: Run) -> Iterator[Chart]:
    """Return the outcome of each load, if any was measured."""
    hunted = cells(run, "crash")
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
    yield Chart(
        key="crash",
        title="Crash hunt",
        lead=lead,
        meaning=meaning,
        widths=WHOLE,
        draw=lambda width: _tiles(width, hunted),
        columns=("load", "shape", "c", "requests", "failed", "trouble"),
        rows=tuple(_row(cell) for cell in hunted),
    )


def _tiles(width: float, hunted: Sequence[CellFigures]) -> Spec:
    """Return a square for each load, in order: a tick where it passed, a cross where not."""
    columns = max(1, int(width // _TILE))
    rows = [
        {"column": index % columns, "line": index // columns, **_tile(cell)}
        for index, cell in enumerate(hunted)
    ]
    gaps = {"paddingOuter": 0, "paddingInner": 0.13}
    place: Spec = {
        "x": field("column", "ordinal", axis=None, scale={**gaps, "domain": list(range(columns))}),
        "y": field("line", "ordinal", axis=None, scale=gaps),
    }
    square = {"type": "rect", "cornerRadius": 6, "stroke": "var(--pass)", "strokeOpacity": 0.35}
    ground = field("ground", scale=None, legend=None)
    layers = [layer(square, rows, **place, color=ground, description=WORDS)]
    for name, dy in (("label", -7), ("sign", 9)):
        text = {"type": "text", "fontWeight": 600, "dy": dy}
        layers.append(layer(text, rows, f"inside_{name}", **place, text=field(name), color=COLOUR))
    size = {"width": {"step": _TILE}, "height": {"step": _TILE}, "padding": 1}
    return {**size, "layer": layers, "config": CONFIG}


def _tile(cell: CellFigures) -> Spec:
    load, bad = cell.observation.cell.load, bool(cell.trouble)
    wave = cell.observation.cell.tags.get("kind") == "wave"
    drain = load.shape == "drain" and not wave
    return {
        "label": f"{'~' if wave else ''}{load.concurrency}{'↓' if drain else ''}",
        "sign": "✗" if bad else "✓",
        "words": clean(f"{cell.observation.cell.name}: {'; '.join(cell.trouble) or 'passed'}"),
        "ground": "var(--fail)" if bad else "var(--pass-pale)",
        "colour": "var(--card)" if bad else "var(--pass)",
    }


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
