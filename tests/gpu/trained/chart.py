"""Draw tokens a step of the patched tree beside stock's, and what torch computes, as an SVG file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trained.cells import Cell
from trained.judge import difference, mean, waves

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trained.judge import Steps

__all__ = ["draw"]

WIDTH, STEP = 640, 30
NAMES = {"full": "no windows", "window": "windows"}
WAVES = {"beside": "beside a long request", "beside warm": "those from the prefix cache"}
# From a copy of the sources: where the experiments run, nothing of this project is installed.
BUILD = Path(__file__).resolve().parents[3] / "build"


def draw(lines: Mapping[str, dict[str, Any]], foreseen: Mapping[str, dict[str, Steps]]) -> str:
    """Return the chart of a record that holds both trees; an empty text for another.

    Args:
        lines: the record of each cell by its name.
        foreseen: by the names of cells, the steps of each wave as torch computes them.
    """
    rows = [row for drafter in NAMES for row in compared_rows(drafter, lines, foreseen)]
    if not rows:
        return ""
    sys.path.insert(0, str(BUILD))
    from nvfp4.report import standalone

    from sparkwright.verify.report.vega import Naming, inline_svg

    words = "; ".join(row["words"] for row in rows)
    naming = Naming("trained-drafter", "Tokens a step of trained drafters, patched and stock", words)
    return str(standalone(inline_svg(specification(rows), naming)))


def compared_rows(
    drafter: str, lines: Mapping[str, dict[str, Any]], foreseen: Mapping[str, dict[str, Steps]]
) -> list[dict[str, Any]]:
    """Return a row for each wave that both trees answered with *drafter*."""
    patched, stock = (Cell(drafter, tree=tree).name for tree in ("patched", "stock"))
    if not {patched, stock} <= set(lines):
        return []
    ours, theirs, torch = waves(lines[patched]), waves(lines[stock]), foreseen.get(patched, {})
    found = []
    for wave in ours:
        number, _, heat = wave.partition(" ")
        if wave not in theirs or (heat == "warm" and wave not in WAVES):
            continue
        name = WAVES.get(wave) or f"{number} {'requests' if number != '1' else 'request'}, {heat}"
        apart = difference(ours[wave], theirs[wave])
        row = {"label": f"{NAMES[drafter]}: {name}", "patched": mean(ours[wave]), "stock": mean(theirs[wave])}
        row["apart"] = f"{apart.mean:+.2f} [{apart.low:.2f}, {apart.high:.2f}]"
        row["words"] = f"{row['label']}: {row['patched']:.2f} patched, {row['stock']:.2f} stock"
        if wave in torch:
            row["torch"] = mean(torch[wave])
            row["words"] += f", {row['torch']:.2f} by torch"
        found.append(row)
    return found


def specification(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the drawing: for each row a line from stock's point to the patched one, and its difference."""
    from sparkwright.verify.report.plots import Axis, field, layer, whole

    every = [row[name] for row in rows for name in ("patched", "stock", "torch") if name in row]
    low, high = min(every), max(every)
    axis = Axis("tokens a step", low - 0.05 * (high - low), high + 0.6 * (high - low))
    x = axis.encoding("patched", WIDTH / 2, format=".2f", grid=True)
    y = field("label", "ordinal", sort=None, title=None, axis={"labelLimit": 260, "ticks": False})
    layers = [layer({"type": "rule", "color": "var(--soft)"}, rows, x=x, x2={"field": "stock"}, y=y)]
    for name, colour, shape in (
        ("stock", "--s3", "square"), ("patched", "--s0", "circle"), ("torch", "--ink", "stroke"),
    ):  # fmt: skip
        some = [row for row in rows if name in row]
        upright = {"angle": 90, "strokeWidth": 2} if shape == "stroke" else {"filled": True}
        mark = {
            "type": "point",
            "shape": shape,
            "size": 70,
            "opacity": 1,
            "color": f"var({colour})",
            **upright,
        }
        layers.append(layer(mark, some, x={**x, "field": name}, y=y, description=field("words")))
    right = {"type": "text", "align": "right", "dx": -2}
    layers.append(layer(right, rows, x={"value": "width"}, y=y, text=field("apart")))
    return whole(WIDTH, {"step": STEP}, layers)
