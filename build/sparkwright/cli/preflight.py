"""``sparkwright preflight``, and its table for other commands."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sparkwright.base.errors import SparkwrightError
from sparkwright.cli.output import print_json
from sparkwright.cli.runtime import RECIPE, SIDECARS, USE
from sparkwright.cli.tables import show_table
from sparkwright.recipes import Recipe
from sparkwright.serve.preflight import AskOptions, Finding, PreflightReport
from sparkwright.verify.options import VerifyOptions

_OF_THE_MACHINE = frozenset({"card", "driver", "port"})


@click.command("preflight")
@RECIPE
@USE
@click.option("--python", type=click.Path(path_type=Path), help="The interpreter that has vLLM.")
@click.option(
    "--wheel", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="The wheel to serve with."
)
@click.option("--host", "address", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=int, default=0, help="Port to listen at; any by default.")
@SIDECARS
@click.option("--nodes", type=click.IntRange(1, 2), help="Machines that serve together.")
@click.option("--force", is_flag=True, help="Count predictions as warnings.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    *,
    recipe: str,
    use: str,
    nodes: int | None,
    force: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Check that RECIPE would start on this machine, and that the machine would survive it.

    Nothing is loaded. Of a model that is not on this machine, the hub is asked for sizes and headers alone;
    with --python, that vLLM is asked for its options. Prints the memory budget and what was found; the exit
    code is 76 if the server should not be started.
    """
    from sparkwright.recipes import served_recipe
    from sparkwright.serve.preflight import Hub, PreflightRequest, inspect_start, require_clear

    chosen = served_recipe(recipe, use)
    lacks = _lacking(chosen, asked["wheel"]) if asked["wheel"] and not asked["python"] else ()
    request = PreflightRequest(
        recipe=chosen, nodes=nodes or 0, ask=_asking(), lacks=lacks, hub=Hub(os.environ), **asked
    )
    report = inspect_start(request)
    if as_json:
        print_json(_described(report))
    else:
        _show_report(report)
    require_clear(report.findings, force=force)


def _lacking(recipe: Recipe, wheel: Path) -> tuple[str, ...]:
    """Return the kernels of FlashInfer that ``serve`` would install *wheel* without."""
    from sparkwright.engine.environment import OfferedWheel, plan_environment, sources_here

    with contextlib.suppress(SparkwrightError):  # without a locked runtime, 'serve' says so itself
        return plan_environment(OfferedWheel(wheel), recipe, sources_here()).missing
    return ()


def _described(report: PreflightReport) -> dict[str, Any]:
    return {
        "findings": [asdict(finding) for finding in report.findings],
        "memory": [asdict(row) for row in report.rows],
    }


def _show_report(report: PreflightReport) -> None:
    """Print the memory budget and the findings of *report* as tables."""
    show_table(
        ("part", "GiB", "from"),
        [(row.part, _gib(row.gib, row.low, row.high), row.source) for row in report.rows],
    )
    if not report.findings:
        click.echo("nothing speaks against a start")
        return
    show_table(
        ("level", "check", "found", "because", "next"),
        [(one.level, one.check, one.what, one.because, one.next_step) for one in report.findings],
    )


def check_before_verify(options: VerifyOptions, *, offline: bool, force: bool) -> None:
    """Refuse to verify by a recipe whose server would not start; what does not stop it becomes a warning.

    Of a model that is not on this machine, the machine alone is judged; recipes with generated weights are
    left to the server. The port is any free one.

    Args:
        options: of the run.
        offline: the server will use no network.
        force: start in spite of predictions.

    Raises:
        PreflightError: it would not start, or the host not survive it.
    """
    from sparkwright.recipes import load_recipe
    from sparkwright.serve.preflight import warn_or_refuse
    from sparkwright.verify.options import recipe_and_use

    if not options.recipe or options.url or options.simulator:
        return
    named = [(options.recipe, options.use)]
    named += [recipe_and_use(options.against_recipe)] if options.against_recipe else []
    python, wheel = (Path(one) if one else None for one in (options.python, options.wheel))
    for one in named:
        warn_or_refuse(_found(load_recipe(*one), python, wheel, offline=offline), force=force)


def refusal_of(recipe: Recipe, python: Path, *, offline: bool) -> str:
    """Return why *recipe* should not be started with the vLLM of *python* on this machine, or empty."""
    refused = (one for one in _found(recipe, python, None, offline=offline) if one.level == "refuse")
    return "; ".join(f"{one.what}: {one.because}" for one in refused)


def _found(recipe: Recipe, python: Path | None, wheel: Path | None, *, offline: bool) -> Sequence[Finding]:
    """Return what preflight finds: of a model that is not here, the machine alone; none of made-up ones."""
    from sparkwright.serve.preflight import PreflightRequest, find_folder, run_preflight

    if recipe.made_up:
        return ()
    environment = {**os.environ, **({"HF_HUB_OFFLINE": "1"} if offline else {})}
    found = run_preflight(
        PreflightRequest(recipe=recipe, python=python, wheel=wheel, environment=environment, ask=_asking())
    )
    here = find_folder(recipe.model, environment) is not None
    return found if here else [one for one in found if one.check in _OF_THE_MACHINE]


def _asking() -> AskOptions:
    """Return the question to a release for its options, with the store that records its answers."""
    from functools import partial

    from sparkwright.engine.release import ask_installed
    from sparkwright.store import open_store

    return partial(ask_installed, open_store())


def _gib(gib: float | None, low: float | None, high: float | None) -> str:
    if gib is None:
        return "unknown"
    return f"{gib:.2f}" if low is None or high is None else f"{gib:.2f} ({low:.1f} to {high:.1f})"
