"""The result of a command: one JSON document, and the lines and tables that show it as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import click

from sparkwright.base.errors import SparkwrightError
from sparkwright.cli.output import print_json, printable
from sparkwright.cli.tables import show_table


class Table(NamedTuple):
    """Rows below headings."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


Part = Table | tuple[str, object] | str
"""A table, a value behind its name, or a line; a value that is empty is left out."""


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
                show_table(*part[:2], title=part.title)
            elif isinstance(part, str):
                click.echo(printable(part))
            elif value := str(part[1]):
                click.echo(printable(f"{part[0]:<8} {value}"))
    if result.failure is not None:
        raise result.failure
