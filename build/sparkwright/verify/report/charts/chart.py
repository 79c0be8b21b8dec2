"""One chart of a page: its words, its drawing for several widths, and its figures as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from sparkwright.verify.report.figures import CellFigures
from sparkwright.verify.report.vega import DRAWINGS, Spec

_Row = TypeVar("_Row")
CACHE_STYLES = {"cold": 3, "cached": 2}  # numbers of colour and shape, the same in all charts


@dataclass(frozen=True)
class Table:
    """The figures of a chart: heads and rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, rows: Iterable[_Row], columns: Mapping[str, Callable[[_Row], str]]) -> Table:
        """Return a table of *rows*, each column with the function that writes its fields."""
        return cls(tuple(columns), tuple(tuple(write(row) for write in columns.values()) for row in rows))


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        lead: the result, in one sentence with figures.
        meaning: the definition, and how a good result looks.
        whole: it takes the whole width of the page.
        also: a further sentence for the text alternative.
        legend: names of parts that have no name within the drawing, by their classes.
    """

    key: str
    title: str
    lead: str
    meaning: str
    draw: Callable[[float], Spec]
    table: Table
    whole: bool = False
    also: str = ""
    legend: Mapping[str, str] = field(default_factory=dict)

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths to draw for, in pixels; the style sheet shows the drawing that is scaled the least."""
        return (840, 400) if self.whole else (440,)

    @property
    def description(self) -> str:
        """The text alternative of the drawing."""
        return f"{self.meaning} {self.lead} {self.also}".strip()


def chart_of(
    key: str, *, lead: str, draw: Callable[[float], Spec], table: Table, also: str = "", **values: object
) -> Chart:
    """Return the chart that ``charts.json`` has words for; *values* stand in them."""
    words = {"whole": False, "legend": {}, **DRAWINGS["charts"][key]}
    title, meaning = (words.pop(name).format(**values) for name in ("title", "meaning"))
    return Chart(key, title, lead, meaning, draw, table, also=also, **words)


def trouble_of(cell: CellFigures) -> str:
    """Return the reasons not to trust the figures of *cell*."""
    return "; ".join(cell.trouble)


def name_of(cell: CellFigures) -> str:
    """Return the name of *cell*."""
    return cell.observation.cell.name
