"""The locked runtime of a wheel: what ``serve`` and ``service`` install, and the command that does it."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from sparkwright.base.errors import SparkwrightError
from sparkwright.base.events import warn
from sparkwright.lock.runtime import beside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.engine.environment import OfferedWheel, ServedRuntime
    from sparkwright.recipes import Recipe
    from sparkwright.serve.built import BuiltWheel


def newest_wheel(series: Sequence[str]) -> BuiltWheel:
    """Return the wheel in ``dist/`` for this machine: the present build spec's, else the highest revision.

    Args:
        series: those that are wanted; any if empty.

    Raises:
        ConfigError: there is none.
    """
    from platform import machine

    from sparkwright.publish import dist_folder
    from sparkwright.serve.built import built_wheel, present_specs

    return built_wheel(dist_folder(Path()), machine(), series, present_specs(Path(), machine()))


def install_command(wheel: Path) -> str:
    """Return the command that installs *wheel* with its locked runtime, or the one that locks it."""
    from sparkwright.publish.evidence import stated_series

    runtime = beside(wheel)
    if not runtime.is_file():
        return f"sparkwright lock runtime --series {stated_series(wheel)}"
    folder, locked = shlex.quote(str(wheel.parent)), shlex.quote(str(runtime))
    return f"pip install --no-deps --require-hashes --find-links {folder} -r {locked}"


def runtime_of(offered: OfferedWheel, recipe: Recipe, *, locked: bool, then: str) -> ServedRuntime:
    """Return the runtime of `find_runtime`, with a warning about kernels that it lacks."""
    found, remedy = find_runtime(offered, recipe, locked=locked, then=then)
    if found.missing:
        warn(
            f"FlashInfer will compile {', '.join(found.missing)} while the engine starts or serves",
            next_step=remedy,
        )
    return found


def find_runtime(
    offered: OfferedWheel, recipe: Recipe, *, locked: bool, then: str
) -> tuple[ServedRuntime, str]:
    """Return the locked runtime of a wheel with the companion that the recipe needs on this machine's card.

    Beside it comes what to do about kernels that it lacks; nothing where it lacks none.

    Args:
        offered: the wheel.
        recipe: what it will serve.
        locked: require the lock of the wheel's series.
        then: what to do after a companion that is missing was built, such as "serve again".
    """
    from sparkwright.engine.environment import choose_runtime
    from sparkwright.engine.server import card_capability
    from sparkwright.publish import dist_folder

    capability = card_capability()
    found = choose_runtime(
        offered,
        recipe,
        capability=capability,
        folders=(dist_folder(Path()), offered.wheel.parent),
        patchsets=_patchsets(),
        environment=os.environ,
        locked=locked,
    )
    if not found.missing:
        return found, ""
    return found, f"{_remedy(offered, recipe, capability, locked=locked)}, then {then}"


def _remedy(offered: OfferedWheel, recipe: Recipe, capability: str, *, locked: bool) -> str:
    """Return what gives the recipe all its kernels."""
    if not locked:
        return "leave out --unlocked: a companion is installed with the locked runtime alone"
    if _patchsets() is None:
        return "ask the channel's publisher for a companion for this recipe and card"
    from sparkwright.engine.companions import build_command
    from sparkwright.wheel.names import parse_name

    name = parse_name(offered.wheel.name)
    return build_command(name.version, name.machine, capability, recipe.name)


def _patchsets() -> Path | None:
    """Return the folder of patchsets of the checkout around the current folder; `None` outside of one."""
    from sparkwright.pipeline import open_checkout

    with contextlib.suppress(SparkwrightError):
        return open_checkout(Path()).patchsets
    return None
