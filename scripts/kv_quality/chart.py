"""Draw the divergence by position, a line for each format, as an SVG file."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from kv_quality.tables import EDGES, by_position, of_format

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["draw"]

WIDTH = 640
DRAWN = ("FP8", "NVFP4", "TurboQuant, 4 bits", "INT8 per token and head")


def draw(lines: Sequence[dict[str, Any]]) -> str:
    """Return the chart of the first model in *lines*."""
    from sparkwright.verify.report import plots
    from sparkwright.verify.report.plots import Point, Series, logarithmic
    from sparkwright.verify.report.vega import STANDALONE_STYLE, Naming, inline_svg

    model = lines[0]["model"]
    found = of_format([line for line in lines if line["model"] == model], "text")
    middles = [math.sqrt(max(begin, 4) * end) for begin, end in pairwise(EDGES)]
    series = []
    for style, name in enumerate(name for name in DRAWN if name in found):
        pairs = zip(middles, by_position(found[name]), strict=True)
        series.append(
            Series(name.partition(" per ")[0], style, tuple(Point(x, y) for x, y in pairs if y > 0))
        )
    every = [point for one in series for point in one.points]
    x = logarithmic("position in the text (tokens)", [point.x for point in every], 2)
    y = logarithmic("divergence from a 16-bit cache (nats)", [point.y for point in every])
    words = "; ".join(
        f"{one.name}: " + ", ".join(f"{p.x:.0f} {p.y:.4f}" for p in one.points) for one in series
    )
    drawing = inline_svg(
        plots.lines(WIDTH, x, y, series), Naming("kv-formats", f"Divergence by position, {model}", words)
    )
    drawing.set("xmlns", "http://www.w3.org/2000/svg")
    _, _, width, height = (drawing.get("viewBox") or "").split()
    drawing.set("width", width)
    drawing.set("height", height)
    style_element = ET.Element("style")
    style_element.text = STANDALONE_STYLE
    drawing.insert(2, style_element)
    return ET.tostring(drawing, encoding="unicode") + "\n"
