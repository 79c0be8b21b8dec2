"""Global options: declared once, and taken from anywhere on the line before ``--``.

Every group and command parses them: 'sparkwright wheel --offline' is 'sparkwright --offline wheel', and a
word that is the value of another option is left alone. A command refuses those that mean nothing to it.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from sparkwright.cli.output import expect_json
from sparkwright.cli.result import Result, show

R = TypeVar("R")

_VALUES = "sparkwright.global-options"
_STATED = "sparkwright.stated-global-options"
_ALWAYS = frozenset({"offline", "quiet"})
"""A command that does not ask for these uses no network, and shows its result only."""


def _keep(context: click.Context, option: click.Parameter, value: Any) -> None:
    """Keep *value*: one of the command line, of any group or command, before a default or a variable."""
    values = context.meta.setdefault(_VALUES, {})
    if context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE:
        context.meta.setdefault(_STATED, set()).add(option)
        values[option.name] = value
    values.setdefault(option.name, value)


_option = functools.partial(click.Option, expose_value=False, callback=_keep)
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
        help="A store that machines share: https://, http:// or s3://; none: not the one of store.toml.",
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
_HIDDEN = tuple(map(copy.copy, GLOBAL_OPTIONS))
for _one in _HIDDEN:
    _one.hidden = True
FLAGS = {word for option in GLOBAL_OPTIONS if option.is_flag for word in option.opts}


def global_options() -> dict[str, Any]:
    """Return the values of the global options, by the names of their parameters."""
    values: dict[str, Any] = click.get_current_context().meta[_VALUES]
    return values


def takes(*names: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Pass the global options of these *names* to a command."""

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @functools.wraps(function)
        def wrapper(*words: Any, **arguments: Any) -> R:
            values = global_options()
            return function(*words, **{name: values[name] for name in names}, **arguments)

        return taking(*names)(wrapper)

    return decorate


def taking(*names: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Mark a command as one that asks for the global options of these *names* by itself."""

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        vars(function)["global_options"] = {*vars(function).get("global_options", ()), *names}
        return function

    return decorate


class _Anywhere(click.Command):
    """Parses the global options; the root shows them, and the others accept them where it does not."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return its own parameters and the global options."""
        return [*super().get_params(ctx), *(GLOBAL_OPTIONS if ctx.parent is None else _HIDDEN)]


class Command(_Anywhere):
    """A command with the global options that its function `takes`."""

    def taken(self) -> list[click.Option]:
        """Return the global options that mean something here."""
        names = {*_ALWAYS, *getattr(self.callback, "global_options", ())}
        return [option for option in GLOBAL_OPTIONS if option.name in names]

    def invoke(self, ctx: click.Context) -> None:
        """Run the command, and show the result that it returns."""
        result = super().invoke(ctx)
        if isinstance(result, Result):
            show(result, as_json=ctx.meta[_VALUES]["as_json"])
            if result.status:
                ctx.exit(result.status)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse the global options that mean nothing here, if one stands on the command line."""
        rest = super().parse_args(ctx, args)
        expect_json(ctx.meta[_VALUES]["as_json"])
        names = {option.name for option in self.taken()}
        for option in () if ctx.resilient_parsing else ctx.meta.get(_STATED, ()):
            if option.name not in names:
                raise click.UsageError(f"{option.opts[0]} means nothing to '{ctx.command_path}'.", ctx)
        return rest

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Name the global options that are taken, in one line."""
        super().format_epilog(ctx, formatter)
        if ctx.parent is not None:
            names = ", ".join(option.opts[0] for option in self.taken())
            formatter.write_paragraph()
            formatter.write_text(f"Global: {names}")


class Group(_Anywhere, click.Group):
    """A group whose commands have the global options."""

    command_class = Command
    group_class = type
