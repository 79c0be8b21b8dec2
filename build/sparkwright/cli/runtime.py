"""The options of what serves recipes, and the command that installs a wheel."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from sparkwright.base.errors import ToolError
from sparkwright.cli.globals import takes
from sparkwright.cli.options import together
from sparkwright.lock.runtime import beside

_LIBRARIES = {"verify": ("aiohttp", "numpy", "scipy"), "serve": ("aiohttp",)}


def complete_recipe(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the recipes that ship whose names begin so; where none does, a file of the user's is meant."""
    from sparkwright.recipes.recipe import recipes

    found = [CompletionItem(name) for name in sorted(recipes()) if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


RECIPE = click.argument("recipe", metavar="RECIPE", shell_complete=complete_recipe)
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
USE = click.option(
    "--use", default="", help="A use of the recipe, such as shared or many; single by default."
)
SIDECARS = click.option(
    "--sidecars", "sidecars_gib", type=click.FloatRange(min=0), default=0.0, metavar="GIB",
    envvar="SPARKWRIGHT_SIDECARS",
    help="Memory that other programs will take beside the server.",
)  # fmt: skip
FORCE = click.option("--force", is_flag=True, help="Start in spite of preflight's predictions.")
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
        type=_FILE,
        help="Serve with this wheel; by default the present build spec's in dist/, or the highest revision.",
    ),
    click.option(
        "--channel", default="", metavar="URL|FOLDER", help="Take the newest wheel of this channel."
    ),
    click.option(
        "--unlocked", is_flag=True, help="Install what the index has today, not the locked runtime."
    ),
)


def install_command(wheel: Path) -> str:
    """Return the command that installs *wheel* with its locked runtime, or the one that locks it."""
    from sparkwright.publish.evidence import stated_series

    runtime = beside(wheel)
    if not runtime.is_file():
        return f"sparkwright lock runtime --series {stated_series(wheel)}"
    folder, locked = shlex.quote(str(wheel.parent)), shlex.quote(str(runtime))
    return f"pip install --no-deps --require-hashes --find-links {folder} -r {locked}"


def require_libraries(extra: str = "verify") -> None:
    """Do nothing if the libraries of *extra* are installed, which are those of verification or of serving.

    Raises:
        ToolError: one is not.
    """
    if missing := [name for name in _LIBRARIES[extra] if importlib.util.find_spec(name) is None]:
        raise ToolError(
            f"the command needs libraries of the extra {extra!r} that are not installed",
            because=f"{', '.join(missing)} cannot be imported",
            next_step=f"install the extra: pip install 'sparkwright[{extra}]', or 'make {extra}' in a clone",
        )
