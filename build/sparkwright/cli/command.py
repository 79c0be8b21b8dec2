"""Commands: the options that many of them have, declared once, and their results.

A command has ``--offline``, ``--quiet`` and ``--json``, and those of the others that its function `takes`.
Their help is on the page of `sparkwright` itself; a command's own page names them in one line.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import click

from sparkwright.base.errors import SparkwrightError
from sparkwright.cli.output import expect_json, print_json, printable

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
    """Print *result*, and raise the failure that it found."""
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


R = TypeVar("R")

_VALUES = "sparkwright.global-options"
_ALWAYS = frozenset({"offline", "quiet", "as_json"})


def _keep(context: click.Context, option: click.Parameter, value: Any) -> None:
    context.meta.setdefault(_VALUES, {})[option.name] = value


_option = functools.partial(click.Option, hidden=True, expose_value=False, callback=_keep)
GLOBAL_OPTIONS = (
    _option(
        ["--root"],
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        default=Path(),
        help="A clone of the project; by default that of the current folder, or else the package's data.",
    ),
    _option(
        ["--store", "store_url"],
        default="",
        metavar="URL",
        envvar="SPARKWRIGHT_STORE_URL",
        help="A store that machines share: https://, http://, s3:// or none.",
    ),
    _option(
        ["--series"],
        default="",
        envvar="SPARKWRIGHT_SERIES",
        help="A line of releases, with its lock and patchset; by default that of upstream.lock, a recipe or "
        "of a wheel.",
    ),
    _option(["--patchset"], default="", metavar="NAME", help="A patchset of your own on that lock."),
    _option(["--offline"], is_flag=True, envvar="SPARKWRIGHT_OFFLINE", help="Use no network."),
    _option(["--quiet", "-q"], is_flag=True, help="Show warnings and the result only."),
    _option(["--json", "as_json"], is_flag=True, help="Print the result as JSON."),
)


def global_options() -> dict[str, Any]:
    """Return the values of these options, by the names of their parameters."""
    context = click.get_current_context()
    unstated = {str(option.name): option.get_default(context) for option in GLOBAL_OPTIONS}
    return {**unstated, **context.meta.get(_VALUES, {})}


def takes(*names: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a command the options of these *names*, and pass it their values."""

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @functools.wraps(function)
        def wrapper(*words: Any, **arguments: Any) -> R:
            values = global_options()
            return function(*words, **{name: values[name] for name in names}, **arguments)

        return taking(*names)(wrapper)

    return decorate


def taking(*names: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a command, which asks for their values by itself, the options of these *names*."""

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        vars(function)["global_options"] = {*vars(function).get("global_options", ()), *names}
        return function

    return decorate


class Command(click.Command):
    """A command with the options that its function `takes`; shows the `Result` that it returns."""

    def taken(self) -> list[click.Option]:
        """Return those of `GLOBAL_OPTIONS` that it has."""
        names = {*_ALWAYS, *getattr(self.callback, "global_options", ())}
        return [option for option in GLOBAL_OPTIONS if option.name in names]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return its own parameters and these options."""
        return [*super().get_params(ctx), *self.taken()]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and know if the result is shown as JSON.

        An empty value, as a shell variable gives that is not set, would be the present folder, or the
        default. An option that may be empty is of the type `click.UNPROCESSED`.
        """
        stated, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        rest = super().parse_args(ctx, args)
        for one in self.get_params(ctx):
            value = ctx.params.get(str(one.name))
            given = stated.get(str(one.name))
            path, takes_any = isinstance(one.type, click.Path), one.type is click.UNPROCESSED
            if (path or (isinstance(one, click.Option) and not takes_any)) and given in ("", [""]):
                what = "name a file or folder" if path else "leave it out, or give a value"
                raise click.BadParameter(f"it is empty; {what}", ctx, one)
            if isinstance(value, float) and not math.isfinite(value):
                raise click.BadParameter(f"{value} is no number of anything", ctx, one)
        expect_json(ctx.meta[_VALUES]["as_json"])
        return rest

    def invoke(self, ctx: click.Context) -> None:
        """Run the command, and show its result."""
        result = super().invoke(ctx)
        if isinstance(result, Result):
            show(result, as_json=ctx.meta[_VALUES]["as_json"])
            if result.status:
                ctx.exit(result.status)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Name these options in one line."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(f"Global: {', '.join(option.opts[0] for option in self.taken())}")


class Parent(Command):
    """A command that does something itself, and has subcommands, by names that no argument of its has.

    *subcommands* are the module of each, where it is ``NAME_command``.
    """

    def __init__(self, *words: Any, subcommands: Mapping[str, str], **options: Any) -> None:
        super().__init__(*words, **options)
        self.subcommands = subcommands

    def subcommand(self, name: str) -> click.Command:
        """Return the subcommand *name*."""
        found: click.Command = getattr(importlib.import_module(self.subcommands[name]), f"{name}_command")
        return found

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of the subcommand that *args* begins with, or of the command itself."""
        first = next(iter(args), "")
        if first in self.subcommands:
            return self.subcommand(first).make_context(
                f"{info_name} {first}", args[1:], parent=parent, **extra
            )
        return super().make_context(info_name, args, parent=parent, **extra)


class Group(click.Group):
    """A group of such commands."""

    command_class = Command
    group_class = type
