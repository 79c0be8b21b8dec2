"""Tables and colours for results as text."""

from __future__ import annotations

from collections.abc import Sequence

from sparkwright.cli.output import printable

COLOURS = {
    "applied": "green",
    "proved": "green",
    "in store": "green",
    "pass": "green",
    "holds": "green",
    "absorbed": "cyan",
    "absorbed (unproved)": "yellow",
    "unproved": "yellow",
    "declared": "yellow",
    "not needed": "cyan",
    "superseded": "cyan",
    "not needed here": "cyan",
    "no proof needed": "cyan",
    "skipped": "cyan",
    "left-out": "cyan",
    "conflict-in-tests-or-docs": "yellow",
    "to do": "yellow",
    "waits": "yellow",
    "stale": "yellow",
    "none": "yellow",
    "conflict": "red",
    "refused": "red",
    "refuted": "red",
    "broken": "red",
    "not absorbed": "red",
    "not proved": "red",
    "fail": "red",
    "refuse": "red",
    "warn": "yellow",
    "note": "cyan",
}


def show_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """Print *rows* as a table, with known outcomes in their colours."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell), style=COLOURS.get(cell, "")) for cell in row))
    if not console.is_terminal:
        # No window limits the width, so no cell is folded.
        console = Console(highlight=False, width=max(console.width, 200))
    console.print(table)
