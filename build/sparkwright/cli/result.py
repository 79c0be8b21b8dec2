"""The result of a command: one JSON document, and the lines and tables that show it as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import click

from sparkwright.base.errors import SparkwrightError
from sparkwright.cli.output import print_json, printable

_WORDS = {
    "green": ("applied", "proved", "in store", "pass", "holds"),
    "cyan": (
        "absorbed", "not needed", "superseded", "not needed here", "no proof needed", "skipped", "left-out",
        "note",
    ),
    "yellow": (
        "absorbed (unproved)", "unproved", "declared", "conflict-in-tests-or-docs", "to do", "waits", "stale",
        "none", "warn",
    ),
    "red": ("conflict", "refused", "refuted", "broken", "not absorbed", "not proved", "fail", "refuse"),
}  # fmt: skip
_COLOURS = {word: colour for colour, words in _WORDS.items() for word in words}


class Table(NamedTuple):
    """Rows below headings."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    @classmethod
    def of(cls, entries: Iterable[Mapping[str, Any]], columns: Mapping[str, str], title: str = "") -> Self:
        """Return *columns*, keys by their headings, of *entries* of the JSON document."""
        rows = [
            ["" if entry[key] is None else str(entry[key]) for key in columns.values()] for entry in entries
        ]
        return cls(tuple(columns), rows, title)


Part = Table | tuple[str, object] | str | Callable[[], None]
"""A table, a value behind its name, a line, or what prints itself; a value that is empty is left out."""


@dataclass(frozen=True)
class Result:
    """The result of a command: the session prints it, then raises its failure, if there is one.

    Attributes:
        described: the JSON document.
        parts: the text, in order.
        failure: the error that decides the exit status.
        status: the exit status without one.
    """

    described: Any
    parts: Sequence[Part] = ()
    failure: SparkwrightError | None = None
    status: int = 0


def show(result: Result, *, as_json: bool) -> None:
    """Print *result*, and raise the failure that it found.

    Raises:
        SparkwrightError: that failure.
    """
    if as_json:
        print_json(result.described)
    else:
        for part in result.parts:
            if isinstance(part, Table):
                _show_table(part)
            elif isinstance(part, str):
                click.echo(printable(part))
            elif callable(part):
                part()
            elif value := str(part[1]):
                click.echo(printable(f"{part[0]:<8} {value}"))
    if result.failure is not None:
        raise result.failure


def _show_table(shown: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(highlight=False)
    table = RichTable(title=shown.title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in shown.headings:
        table.add_column(heading, overflow="fold")
    for row in shown.rows:
        table.add_row(*(Text(printable(cell), style=_COLOURS.get(cell, "")) for cell in row))
    if not console.is_terminal:
        # No window limits the width, so no cell is folded.
        console = Console(highlight=False, width=max(console.width, 200))
    console.print(table)
