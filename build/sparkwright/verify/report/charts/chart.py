"""One chart of a report: a drawing for several widths, with its figures as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CACHE_STYLES = {"cold": 3, "cached": 2}  # numbers of colour and shape, the same in all charts

# Text in a drawing keeps its size only if the drawing is not scaled much: the style sheet shows the one of
# these that fits best.
HALF = (560, 360)
WHOLE = (1120, 640, 360)


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        key: its name within the page.
        title: the quantity shown.
        lead: the result, in one sentence with figures.
        meaning: the definition, and how a good result looks.
        widths: the widths to draw for, in pixels: `HALF` of a page or the `WHOLE`.
        draw: the Vega-Lite specification for a width.
        columns: heads of its table.
        also: a further sentence for the text alternative.
        legend: names of parts that have no name within the drawing, by their classes.
    """

    key: str
    title: str
    lead: str
    meaning: str
    widths: tuple[int, ...]
    draw: Callable[[float], dict[str, Any]]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    also: str = ""
    legend: tuple[tuple[str, str], ...] = ()

    @property
    def whole(self) -> bool:
        """Tell if it takes the whole width of the page."""
        return self.widths == WHOLE

    @property
    def description(self) -> str:
        """The text alternative of the drawing."""
        return f"{self.meaning} {self.lead} {self.also}".strip()
