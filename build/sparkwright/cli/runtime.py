"""The wheel that is taken, where one is named and where none is; the options of what serves recipes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from sparkwright.base.events import emit
from sparkwright.engine.environment import OfferedWheel
from sparkwright.lock.runtime import beside
from sparkwright.recipes import SERVED_NAMES

F = TypeVar("F", bound=Callable[..., Any])

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
_SERVED = (
    USE,
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="FLAG=VALUE",
        help="A flag of 'vllm serve'; may be repeated.",
    ),
    click.option(
        "--served-model-name",
        "names",
        multiple=True,
        metavar="NAME",
        help="Name by which clients ask for the model, instead of the recipe's; may be repeated.",
    ),
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at."),
    SIDECARS,
)
_OFFERED = (
    click.option(
        "--wheel",
        type=_FILE,
        help="Serve with this wheel; by default the present build spec's in dist/, or the highest revision.",
    ),
    click.option(
        "--channel", default="", metavar="URL|FOLDER", help="Take the newest wheel of this channel."
    ),
    click.option(
        "--series",
        default="",
        envvar="SPARKWRIGHT_SERIES",
        help="Take a wheel of this series only; by default of those that the recipe is meant for.",
    ),
    click.option(
        "--unlocked", is_flag=True, help="Install what the index has today, not the locked runtime."
    ),
)


def stated_settings(asked: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the flags of ``--set``, and that of the names of ``--served-model-name``."""
    names = [f"{SERVED_NAMES}={json.dumps(asked['names'])}"] if asked["names"] else []
    return (*asked["settings"], *names)


def serving_options(function: F) -> F:
    """Add ``--use``, ``--set``, ``--served-model-name``, ``--host`` and ``--sidecars``."""
    for option in reversed(_SERVED):
        function = option(function)
    return function


def wheel_options(function: F) -> F:
    """Add ``--wheel``, ``--channel``, ``--series`` and ``--unlocked``, by which the wheel is chosen."""
    for option in reversed(_OFFERED):
        function = option(function)
    return function


def newest_wheel(series: Sequence[str]) -> OfferedWheel:
    """Return the wheel in ``dist/`` for this machine: the present build spec's, else the highest revision.

    Args:
        series: those that are wanted; any if empty.

    Raises:
        NoWheelError: there is none.
    """
    from platform import machine

    from sparkwright.publish import dist_folder
    from sparkwright.serve.built import built_wheel, present_specs

    return built_wheel(dist_folder(Path()), machine(), series, present_specs(Path(), machine()))


def offered_wheel(
    wheel: Path | None, channel: str, series: Sequence[str], *, offline: bool = False, make: bool = True
) -> OfferedWheel:
    """Return the *wheel* that is named, the newest of the *channel*, or that of `newest_wheel`.

    Args:
        wheel: the one that was named.
        channel: folder or address of a channel.
        series: those that are wanted; any if empty.
        offline: use no network.
        make: where there is none, make it of the checkout around the current folder.

    Raises:
        NoWheelError: there is none, and none is made.
    """
    from platform import machine

    from sparkwright.serve.built import NoWheelError

    if wheel is not None:
        return OfferedWheel(wheel)
    if channel:
        from sparkwright.cli.channel_place import now, pinned_roots
        from sparkwright.publish.offer import open_channel
        from sparkwright.publish.seen import default_memory
        from sparkwright.store import open_store

        offer = open_channel(
            open_store(), channel, machine(), *series, roots=pinned_roots(None),
            memory=default_memory(), now=now(), offline=offline,
        )  # fmt: skip
        return OfferedWheel(offer.wheel, offer)
    try:
        return newest_wheel(series)
    except NoWheelError:
        chosen = makeable_series(series) if make else ""
        if not chosen:
            raise
        return _made_wheel(chosen, offline=offline)


def makeable_series(series: Sequence[str]) -> str:
    """Return which of the *series* a wheel for this machine can be made of here; empty outside of a checkout.

    The default one is preferred; of no series, it is the one.
    """
    from platform import machine

    from sparkwright.serve.built import present_specs

    return next((one for one in present_specs(Path(), machine()) if one in series or not series), "")


def _made_wheel(series: str, *, offline: bool) -> OfferedWheel:
    """Return the present build spec's wheel of *series* with upstream's kernels, which is made first."""
    from platform import machine

    from sparkwright.cli.hints import keeping_series
    from sparkwright.pipeline import BuildOptions, apply, open_job
    from sparkwright.pipeline.state import require

    options = BuildOptions(series=series, platform=machine(), offline=offline)
    with open_job(Path(), options) as job, keeping_series(job.checkout):
        emit("serve.makes", name=job.version, why=made_here(series))
        return OfferedWheel(
            require(apply(job).placed), why=f"made of the present build spec of series {series}"
        )


def made_here(series: str) -> str:
    """Return how a wheel of *series* is made where there is none, and how it would be for the card."""
    return (
        f"with upstream's kernels, of the present build spec of series {series}; "
        f"'make wheel SERIES={series} KERNELS=native' compiles them for the card instead, which takes hours"
    )


def install_command(wheel: Path) -> str:
    """Return the command that installs *wheel* with its locked runtime, or the one that locks it."""
    from sparkwright.publish.evidence import stated_series

    runtime = beside(wheel)
    if not runtime.is_file():
        return f"sparkwright lock runtime --series {stated_series(wheel)}"
    folder, locked = shlex.quote(str(wheel.parent)), shlex.quote(str(runtime))
    return f"pip install --no-deps --require-hashes --find-links {folder} -r {locked}"
