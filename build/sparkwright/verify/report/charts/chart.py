"""One chart as a report holds it: drawn for several widths, with its figures as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from xml.etree.ElementTree import Element

CACHE_STYLES = {"cold": 3, "cached": 2}  # numbers of colour and shape, the same in all charts

# Text in a drawing keeps its size only if the drawing is not scaled much: the style sheet shows the one of
# these that fits best.
HALF = (560, 360)
WHOLE = (1120, 640, 360)


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        key: names it within the page.
        title: what is shown.
        lead: what can be seen, in one sentence with figures.
        meaning: how it is defined, and how it should look.
        widths: what it is drawn for, in pixels: `HALF` of a page or the `WHOLE`.
        draw: makes the drawing, from a key for its ids and a width.
        columns: heads of its table.
        rows: its figures.
        legend: names of what is not named within the drawing, by their classes.
    """

    key: str
    title: str
    lead: str
    meaning: str
    widths: tuple[int, ...]
    draw: Callable[[str, float], Element]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    legend: tuple[tuple[str, str], ...] = ()

    @property
    def whole(self) -> bool:
        """Whether it takes the whole width of the page."""
        return self.widths == WHOLE
