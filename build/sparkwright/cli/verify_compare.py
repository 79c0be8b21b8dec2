"""``sparkwright verify compare`` and ``sparkwright verify eval``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.cli.command import Command, Result
from sparkwright.cli.options import (
    FOLDER_TYPE,
    NAMES,
    NUMBERS,
    UNLOCKED,
    machines_option,
    reading_options,
    require_libraries,
)
from sparkwright.cli.output import crashes_kept
from sparkwright.cli.verify import (
    DEFAULT_RECIPE,
    FAULTS,
    MODEL,
    OUT,
    PLAN,
    RESUME,
    SEED,
    SPEED,
    execute,
    given_of,
    objective,
    recorded_options,
    refuse_stated,
    report_folder,
    shown,
    shown_plan,
)
from sparkwright.engine.cell import Deadlines
from sparkwright.engine.client.endpoint import Endpoint, check_endpoint, open_session
from sparkwright.recipes.recipe import Recipe, recipe_path
from sparkwright.serve.preflight.run import look_before
from sparkwright.store.paths import default_home
from sparkwright.verify.checks.compare import compare_runs
from sparkwright.verify.evaluation import EvalRequest, evaluate, evaluation_run, read_scores
from sparkwright.verify.options import VerifyOptions, recipe_and_use
from sparkwright.verify.plan import plan_of
from sparkwright.verify.results import Results, load_run, write_report
from sparkwright.verify.space import parse_vary

_OF_SERVERS = {"before", "after", "levels", "unlocked", "cluster", "only_plan", "seed", "out"}
_OF_RECIPES = {*_OF_SERVERS, "wheel", "python", "demo", "faults", "speed"}
# Parameters that mean something, by what is compared; others are refused.
_TAKEN = {
    "finished runs": {"before", "after", "out"},
    "two wheels": {*_OF_SERVERS, "recipe", "use", "boots"},
    "two recipes": {*_OF_RECIPES, "boots"},
    "settings": {*_OF_RECIPES, "vary", "slo", "use"},
}


@click.command("compare", cls=Command)
@click.argument("before", required=False)
@click.argument("after", required=False)
@click.option(
    "--vary",
    multiple=True,
    metavar="SETTING=VALUE,VALUE",
    help="Compare settings of one recipe: a flag, or num-speculative-tokens.",
)
@click.option("--slo", callback=objective, help="Limits that every setting must keep, such as ttft_p95=2s.")
@click.option("--recipe", default="", help="What two wheels serve, by name or file.")
@click.option("--use", default="", help="The use of the recipe, such as many.")
@click.option("--wheel", default="", help="The wheel that serves recipes or settings.")
@click.option("--python", default="", help="The interpreter whose vLLM serves them instead.")
@UNLOCKED
@click.option("--demo", is_flag=True, help="Start simulators, without any GPU.")
@FAULTS
@click.option("--levels", type=NUMBERS, default=(), help="Requests at a time.  [default: 1,8,32]")
@click.option("--boots", type=click.IntRange(min=1), help="Starts of each of two servers, no more.")
@machines_option
@PLAN
@SPEED
@SEED
@OUT
@RESUME
@reading_options
@click.pass_context
def compare_command(
    context: click.Context,
    /,
    *,
    before: str | None,
    after: str | None,
    vary: tuple[str, ...],
    cluster: str,
    offline: bool,
    only_plan: bool,
    out: Path | None,
    resume: Path | None,
    **asked: Any,
) -> Result:
    """Compare AFTER with BEFORE: two finished runs, two wheels, or two recipes; or settings of one recipe.

    Runs are folders of 'sparkwright verify' with the same profile and seed; answers, tasks, failures and
    speed are judged. Of two wheels (with --recipe) or two recipes RECIPE[:USE] (with --wheel), servers are
    started in turns, three to ten times each, until it is decided whether AFTER is slower.

    With --vary, every combination of values is a configuration of the recipe BEFORE: those that are surely
    slower, break --slo or do not start are left out, the others are started again. Leaves the recipe file of
    the one to serve.
    """
    require_libraries()
    kind = "" if resume else _compared(before, after, vary)
    if kind:
        refuse_stated(context, f"an option does not go with a comparison of {kind}", _TAKEN[kind])
    if kind == "finished runs":
        return shown(_runs([Path(one) for one in (before, after) if one], report_folder(out, "compare")))
    if resume is not None:
        options = recorded_options(context, resume, {**asked, "url": ""}, "")
    else:
        options = _options_of(kind, str(before), after, vary, asked)
    plan = plan_of(options)
    if only_plan:
        return shown_plan(plan)
    results = execute(
        plan, out=out, resume=resume, cluster=cluster, offline=offline,
        refusal=partial(_refusal, offline=offline),
    )  # fmt: skip
    return shown(results)


def _refusal(recipe: Recipe, python: Path, *, offline: bool) -> str:
    """Return why *recipe* should not be started with the vLLM of *python* on this machine, or empty."""
    found = look_before(recipe, python=python, offline=offline)
    return "; ".join(f"{one.what}: {one.because}" for one in found if one.level == "refuse")


def _compared(before: str | None, after: str | None, vary: Sequence[str]) -> str:
    """Return what is compared, a key of `_TAKEN`."""

    def kind(place: str) -> str:
        path, there = Path(place), os.path.lexists(place)
        if there and path.is_dir():
            return "finished runs"
        if path.suffix == ".whl" or (
            there and path.is_file() and path.suffix != ".toml" and os.access(path, os.X_OK)
        ):
            return "two wheels"
        try:
            recipe_path(recipe_and_use(place)[0])
        except UnknownNameError as error:
            close = error.next_step.startswith("did you mean")
            raise UnknownNameError(
                f"there is no run, wheel or recipe {place!r}",
                next_step=error.next_step
                if close
                else "name the folder of a run, a file, or a recipe that ships",
            ) from error
        return "two recipes"

    kinds = {kind(one) for one in (before, after) if one}
    if before and kinds == {"finished runs"}:
        return "finished runs"
    if before and after and len(kinds) == 1 and not vary:
        return kinds.pop()
    if before and not after and vary and kinds == {"two recipes"}:
        return "settings"
    raise ConfigError(
        "it is not clear what to compare",
        because=f"{before or 'nothing'} and {after or 'nothing'} were named{', and --vary' * bool(vary)}",
        next_step="name two runs, two wheels, two recipes, or one recipe and --vary SETTING=VALUE,VALUE",
    )


def _runs(folders: Sequence[Path], out: Path) -> Results:
    """Compare two finished runs and write the results to *out*."""
    if len(folders) == 1:
        raise ConfigError(
            "a run is compared with another one",
            because=f"only {folders[0]} was named",
            next_step="name the other one behind it",
        )
    if other := [one for one in folders if not one.is_dir()]:
        raise ConfigError(
            f"{other[0]} is no run",
            because="it is no folder of 'sparkwright verify'",
            next_step="name folders that it left, such as those in dist/evidence/",
        )
    before, after = (one.resolve() for one in folders)
    if before == after:
        raise ConfigError(
            "a run is compared with itself",
            because=f"{before} was named twice",
            next_step="name another run behind it",
        )
    with crashes_kept(out):
        return write_report(compare_runs(load_run(before), load_run(after)), out)


def _options_of(
    kind: str, before: str, after: str | None, vary: Sequence[str], asked: dict[str, Any]
) -> VerifyOptions:
    """Return the options of a comparison for which servers are started."""
    demo = asked.pop("demo")
    given = given_of(asked)
    if kind == "two wheels" and after:
        given["recipe"] = given.get("recipe") or DEFAULT_RECIPE
        given["wheel" if after.endswith(".whl") else "python"] = str(Path(after).absolute())
        return VerifyOptions(**given, profile="full", against=str(Path(before).absolute()))
    sources = sum((demo, "wheel" in given, "python" in given))
    if sources != 1:
        raise ConfigError(
            "it is not clear what to start servers from",
            because=f"{sources} of --wheel, --python and --demo were given",
            next_step="give one of them",
        )
    recipe, use = recipe_and_use(after or before)
    given |= {"recipe": recipe, "use": use or given.get("use", "")}
    rival = {"against_recipe": before} if after else {"vary": parse_vary(vary)}
    return VerifyOptions(**given, **rival, profile="demo" if demo else "full", simulator=demo)


@click.command("eval", cls=Command)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--url", required=True, help="The server to evaluate.")
@MODEL
@click.option("--tasks", type=NAMES, required=True, help="Tasks of lm-evaluation-harness.")
@click.option("--chat", is_flag=True, help="Send chats, in the model's template, instead of raw prompts.")
@click.option("--concurrency", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--before", type=FOLDER_TYPE, help="An earlier evaluation, to compare question by question.")
@click.option("--python", default="", help="An interpreter that has lm-evaluation-harness.")
@OUT
@reading_options
def eval_command(
    *,
    url: str,
    model: str,
    before: Path | None,
    out: Path | None,
    **asked: Any,
) -> Result:
    """Evaluate tasks with the server at --url, by lm-evaluation-harness.

    It runs as a process of its own: in this environment if it is there, by --python in another, else in one
    that is made in the cache. ARGUMENTS after -- are its own, such as -- --limit 100 --include_path FOLDER.
    Tasks that generate text are supported. With --before, a task that lost surely more questions than it won
    fails.
    """
    require_libraries()
    key = os.environ.get("SPARKWRIGHT_API_KEY", "")

    async def served() -> str:
        endpoint = Endpoint(url, model, key)
        async with open_session(endpoint) as session:
            return (await check_endpoint(session, endpoint, Deadlines())).model

    earlier = read_scores(before) if before is not None else ()
    root = url.rstrip("/").removesuffix("/v1").rstrip("/")
    request = EvalRequest(root, asyncio.run(served()), api_key=key, **asked)
    folder = report_folder(out, f"{VerifyOptions(url=url).title}-eval")
    scores = evaluate(request, folder, default_home() / "evaluation")
    results = write_report(evaluation_run(request, scores, earlier), folder)
    return shown(results)
