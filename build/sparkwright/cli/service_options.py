"""Options that the commands of ``sparkwright service`` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_WHEEL = (
    click.option(
        "--wheel",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="Serve with this wheel; by default the newest of the channel, or in dist/.",
    ),
    click.option("--channel", default="", metavar="URL|FOLDER", help="Take wheels from this channel."),
    click.option(
        "--series", default="", envvar="SPARKWRIGHT_SERIES", help="Take a wheel of this series only."
    ),
    click.option(
        "--unlocked", is_flag=True, help="Install what the index has today, not the locked runtime."
    ),
)
_SCOPE = (
    click.option(
        "--user/--system",
        "of_user",
        default=None,
        help="A unit of this user or of the system; of the system for root by default.",
    ),
    click.option(
        "--root",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("/"),
        help="Write below this folder and run no command, as for an image.",
    ),
)


def wheel_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--wheel``, ``--channel``, ``--series`` and ``--unlocked``, by which the wheel is chosen."""
    return _with(function, _WHEEL)


def scope_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--user/--system``, which *function* gets as ``of_user``, and ``--root``."""
    return _with(function, _SCOPE)


def _with(function: Callable[..., Any], options: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    for option in reversed(options):
        function = option(function)
    return function
