"""Options that several commands share, each group as one argument."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from sparkwright.base.errors import ToolError
from sparkwright.cli.command import takes
from sparkwright.cli.output import showing_events
from sparkwright.pipeline.options import DEFAULT_PLATFORM, CompileOptions, TargetOptions
from sparkwright.publish.index import DIST_VARIABLE
from sparkwright.recipes.recipe import recipes

PATH_TYPE = click.Path(path_type=Path)
FILE_TYPE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER_TYPE = click.Path(path_type=Path, exists=True, file_okay=False)
_MOST = 1_000_000  # requests at a time, or a second

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Listed(click.ParamType[tuple[Any, ...]]):
    """Words between commas, or positive whole numbers up to a million if *kind* is ``int``."""

    name = "list"

    def __init__(self, kind: type[Any] = str) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the words or numbers of *value*."""
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(self._kind(word.strip()) for word in value.split(",") if word.strip())
        except ValueError:
            found = (0,)
        if not found:
            self.fail("it is empty; leave it out, or give a list", param, ctx)
        if self._kind is not str and not all(0 < one <= _MOST for one in found):
            self.fail(f"{value!r} is not a list of positive numbers such as 1,8,64", param, ctx)
        return found


NAMES, NUMBERS = Listed(), Listed(int)

_SOURCE = click.option(
    "--source",
    default="index",
    show_default=True,
    help="Origin of upstream's tree: index, git, a repository's address, or a folder.",
)
_TREE = (
    click.option(
        "--platform", default=DEFAULT_PLATFORM, show_default=True, help="The machine that the wheel is for."
    ),
    _SOURCE,
)
_KERNELS = (
    click.option(
        "--kernels",
        type=click.Choice(["auto", "upstream", "native"]),
        default="auto",
        show_default=True,
        envvar="SPARKWRIGHT_KERNELS",
        help="Upstream's kernels, or native ones, compiled for one card; auto: native on that card.",
    ),
    click.option(
        "--arch", default="", help="Architecture of native kernels, such as 12.1a; the lock's by default."
    ),
)
machines_option = click.option(
    "--cluster",
    default="",
    metavar="ADDRESS",
    help="Serve on one of these machines: ssh://[USER@]HOST[:PORT],…",
)
"""No variable sets it for good, as one does for machines that compile."""
_COMPILING = (
    click.option(
        "--require-native",
        is_flag=True,
        help="With native kernels: refuse an extension that cannot be compiled; do not take upstream's.",
    ),
    click.option(
        "--jobs",
        "-j",
        type=click.IntRange(min=1),
        help="Most compilers at once; by default as many as cores and memory allow.",
    ),
    click.option(
        "--isolate",
        is_flag=True,
        envvar="SPARKWRIGHT_ISOLATE",
        help="Take the network away from CMake and the compilers.",
    ),
    click.option(
        "--cluster",
        default="",
        metavar="ADDRESS",
        envvar="SPARKWRIGHT_CLUSTER",
        help="Other machines that compile: ssh://[USER@]HOST[:PORT],…",
    ),
)


out_option = click.option(
    "--out",
    type=PATH_TYPE,
    help=f"Folder for wheels and their index; {DIST_VARIABLE}, or dist/ in the checkout, by default.",
)


_LIBRARIES = {"verify": ("aiohttp", "numpy", "scipy"), "serve": ("aiohttp",)}


def require_libraries(extra: str = "verify") -> None:
    """Do nothing if the libraries of *extra* are installed, which are those of verification or of serving."""
    if missing := [name for name in _LIBRARIES[extra] if importlib.util.find_spec(name) is None]:
        raise ToolError(
            f"the command needs libraries of the extra {extra!r} that are not installed",
            because=f"{', '.join(missing)} cannot be imported",
            next_step=f"install the extra: pip install 'sparkwright[{extra}]', or 'make {extra}' in a clone",
        )


def together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return the decorator that adds all of *options*, in this order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def reading_options(function: Callable[..., R]) -> Callable[..., R]:
    """Show the events of a command without a checkout; *function* gets ``offline``."""

    @takes("offline", "quiet", "as_json")
    @functools.wraps(function)
    def wrapper(*, quiet: bool, as_json: bool, **arguments: Any) -> R:
        with showing_events(quiet=quiet or as_json):
            return function(**arguments)

    return wrapper


def compile_options(function: Callable[..., R]) -> Callable[..., R]:
    """Add the options of compiling kernels.

    *function* gets them as `CompileOptions`, and ``require_native`` as it is.
    """
    return _bundled(function, _COMPILING, CompileOptions, "compiling")


def source_options(function: Callable[..., R]) -> Callable[..., R]:
    """Take ``--series`` and ``--patchset``, and add ``--source``, for what is the same on every machine."""
    bundled = _bundled(function, (_SOURCE,), TargetOptions, "target", platform="")
    return takes("series", "patchset")(bundled)


def tree_options(function: Callable[..., R]) -> Callable[..., R]:
    """Take ``--series`` and ``--patchset``, and add ``--platform`` and ``--source``; see `TargetOptions`."""
    return takes("series", "patchset")(_bundled(function, _TREE, TargetOptions, "target"))


def job_options(function: Callable[..., R]) -> Callable[..., R]:
    """Like `tree_options`, with ``--kernels`` and ``--arch``."""
    return takes("series", "patchset")(_bundled(function, (*_TREE, *_KERNELS), TargetOptions, "target"))


def _bundled(
    function: Callable[..., R],
    options: tuple[Callable[[Any], Any], ...],
    bundle: type[Any],
    name: str,
    **fixed: str,
) -> Callable[..., R]:
    """Add *options* to *function*, which gets the fields of *bundle* as one argument called *name*."""
    fields = [field.name for field in dataclasses.fields(bundle)]

    @functools.wraps(function)
    def wrapper(**arguments: Any) -> R:
        chosen = {field: arguments.pop(field) for field in fields if field in arguments}
        return function(**{name: bundle(**chosen, **fixed)}, **arguments)

    return together(*options)(wrapper)


def complete_recipe(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the recipes that ship whose names begin so; where none does, a file of the user's is meant."""
    found = [CompletionItem(name) for name in sorted(recipes()) if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


RECIPE = click.argument("recipe", metavar="RECIPE", shell_complete=complete_recipe)
USE = click.option(
    "--use", default="", help="A use of the recipe, such as shared or many; single by default."
)
SIDECARS = click.option(
    "--sidecars", "sidecars_gib", type=click.FloatRange(min=0), default=0.0, metavar="GIB",
    envvar="SPARKWRIGHT_SIDECARS",
    help="Memory that other programs will take beside the server."
)  # fmt: skip
FORCE = click.option("--force", is_flag=True, help="Start in spite of preflight's predictions.")
UNLOCKED = click.option(
    "--unlocked", is_flag=True, help="Install what the index has today, not the locked runtime."
)
serving_options = together(
    USE,
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="FLAG=VALUE",
        help="A flag of 'vllm serve'; may be repeated.",
    ),
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at."),
    SIDECARS,
)
wheel_options = together(
    takes("series"),
    click.option(
        "--wheel",
        type=FILE_TYPE,
        help="Serve with this wheel; by default the present build spec's in dist/, or the highest revision.",
    ),
    click.option(
        "--channel", default="", metavar="URL|FOLDER", help="Take the newest wheel of this channel."
    ),
    UNLOCKED,
)
