"""``sparkwright verify tune``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from sparkwright.base.errors import ConfigError, VerdictError
from sparkwright.cli.options import Names, Numbers
from sparkwright.recipes import Recipe
from sparkwright.verify.tune.options import TuneOptions
from sparkwright.verify.tune.report import TuneFiles

_DEMO = {"speed": 60.0, "requests": 8, "max_tokens": 64}


@click.command("tune")
@click.argument("recipe", required=False)
@click.option(
    "--wheel", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="The wheel to serve."
)
@click.option("--python", default="", help="Serve with this interpreter's vLLM instead of a wheel.")
@click.option("--demo", is_flag=True, help="Start simulators, without any GPU.")
@click.option(
    "--fault", "faults", multiple=True, metavar="NAME[=VALUE][@SETTING=VALUE]", help="Break simulators so."
)
@click.option("--use", default="", help="The use of the recipe to start from, such as many.")
@click.option(
    "--vary",
    multiple=True,
    metavar="SETTING=VALUE,VALUE",
    help="A flag, num-speculative-tokens or method; a few of the recipe's own by default.",
)
@click.option(
    "--space",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A TOML file with [vary] and [methods.NAME] instead.",
)
@click.option(
    "--strategy",
    type=click.Choice(["halving", "grid"]),
    default="halving",
    show_default=True,
    help="More starts for those that may be the best, or as many for all.",
)
@click.option("--levels", type=Numbers(), default=(1, 8, 32), help="Concurrencies.  [default: 1,8,32]")
@click.option("--weights", type=Numbers(), default=(), help="Weight of each in the objective, such as 1,2,1.")
@click.option(
    "--objective",
    type=click.Choice(["throughput", "goodput"]),
    default="throughput",
    show_default=True,
    help="Tokens a second, or those of requests that kept --slo.",
)
@click.option("--slo", default="", help="Limits that a configuration must keep, such as ttft_p95=2s.")
@click.option(
    "--reserve-gib", type=click.FloatRange(min=0), help="Memory that stays available.  [default: 4]"
)
@click.option(
    "--starts",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Of each on the grid; the mean of halving at the most.",
)
@click.option(
    "--most-starts",
    type=click.IntRange(min=1),
    default=6,
    show_default=True,
    help="Of each in halving, and twice as many of the best.",
)
@click.option(
    "--within",
    type=click.FloatRange(min=0.1, max=50),
    default=3.0,
    show_default=True,
    metavar="PERCENT",
    help="Differences that do not matter.",
)
@click.option("--requests", type=click.IntRange(min=4), help="In a cell, at the least.  [default: 12]")
@click.option("--max-tokens", type=click.IntRange(min=16), help="Output of each request.  [default: 256]")
@click.option("--categories", type=Names(), default=(), help="Categories of prompts.")
@click.option("--quality/--no-quality", default=True, help="Check answers before one is recommended.")
@click.option("--speed", type=float, help="How fast a simulator's clock runs.", hidden=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of prompts and simulators.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder; one in dist/evidence/ by default.")
@click.option(
    "--resume",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Continue the interrupted search in this folder.",
)
@click.option("--plan", "only_plan", is_flag=True, help="List the configurations, and start nothing.")
@click.option(
    "--offline", is_flag=True, envvar="SPARKWRIGHT_OFFLINE", help="Fetch neither packages nor models."
)
@click.option("--quiet", "-q", is_flag=True, help="Show warnings and the result only.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    out: Path | None,
    resume: Path | None,
    only_plan: bool,
    offline: bool,
    quiet: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Find the settings to serve RECIPE with, by starting servers and measuring them.

    Every combination of --vary is a configuration. Their servers run one at a time; a start is measured at
    each concurrency. Those that are surely slower, break a limit or do not start are left out, the others are
    started again. Leaves a page with the ranking, and the recipe file of the configuration to serve.
    """
    from sparkwright.cli.verify import refuse_others, require_libraries, showing_run

    require_libraries()
    from sparkwright.verify.options import VerifyOptions

    with showing_run(quiet=quiet or as_json) as log:
        if resume is None:
            options = _options_of(asked)
        else:
            options = _recorded(resume)
            refuse_others(context, resume, VerifyOptions())
        if only_plan:
            _show_plan(options, as_json=as_json)
            return
        folder = (resume or out or _new_folder(options)).absolute()
        log(folder)
        if not (quiet or as_json):
            click.echo(_extent(options), err=True)
        files = _run(options, folder, offline=offline)
    _show(files, options, as_json=as_json)


def _options_of(asked: dict[str, Any]) -> TuneOptions:
    """Return the options of the command line, with the settings that are varied.

    Raises:
        ConfigError: they contradict each other, or something is missing.
    """
    from sparkwright.verify.tune.options import TuneOptions
    from sparkwright.verify.tune.setup import with_defaults
    from sparkwright.verify.tune.space import parse_vary, read_space

    if not asked["recipe"]:
        raise ConfigError("no recipe to tune was named", next_step="sparkwright recipe list")
    demo, space, vary = asked.pop("demo"), asked.pop("space"), parse_vary(asked.pop("vary"))
    methods = {}
    if space is not None:
        found = read_space(space)
        vary, methods = {**found.vary, **vary}, found.methods
    usual = {**_DEMO, "reserve_gib": 0.0} if demo else {"reserve_gib": 4.0}
    given = {name: value for name, value in asked.items() if value is not None}
    given["wheel"] = str(asked["wheel"].absolute()) if asked["wheel"] else ""
    given["python"] = str(Path(asked["python"]).absolute()) if asked["python"] else ""
    given["within"] = asked["within"] / 100
    return with_defaults(TuneOptions(**{**usual, **given}, simulator=demo, vary=vary, methods=methods))


def _recorded(folder: Path) -> TuneOptions:
    """Return the options of the search in *folder*.

    Raises:
        ConfigError: it holds another run, or none.
    """
    from sparkwright.verify.journal import read_journal
    from sparkwright.verify.tune.options import TuneOptions

    return TuneOptions.from_options(read_journal(folder).manifest.options)


def _new_folder(options: TuneOptions) -> Path:
    from datetime import UTC, datetime

    from sparkwright.publish import dist_folder

    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return dist_folder(Path()) / "evidence" / f"tune-{Path(options.recipe).stem}-{stamp}"


def _run(options: TuneOptions, folder: Path, *, offline: bool) -> TuneFiles:
    from sparkwright.verify.tune.report import write_search
    from sparkwright.verify.tune.search import run_search
    from sparkwright.verify.tune.setup import prepare_search

    search, manifest = prepare_search(
        options, folder, offline=offline, ask=partial(_refusals, offline=offline)
    )
    known = asyncio.run(run_search(search, folder, manifest))
    return write_search(known, folder, manifest)


def _refusals(python: Path, recipes: Sequence[Recipe], *, offline: bool) -> list[str]:
    """Return for each of *recipes* why it should not be started; empty where nothing speaks against it."""
    from sparkwright.cli.preflight import refusal_of

    return [
        f"this release does not take its options: {why}"
        if why
        else refusal_of(recipe, python, offline=offline)
        for recipe, why in zip(recipes, _not_taken(python, recipes), strict=True)
    ]


def _not_taken(python: Path, recipes: Sequence[Recipe]) -> list[str]:
    """Return for each of *recipes* what the own parser of the vLLM of *python* does not take of it."""
    from sparkwright.base.errors import SparkwrightError
    from sparkwright.base.events import warn
    from sparkwright.engine.installed import read_installed
    from sparkwright.engine.release import ask_installed
    from sparkwright.recipes.release_options import question_of
    from sparkwright.store import open_store

    questions = [question_of(recipe) for recipe in recipes]
    answer = None
    try:
        answer = ask_installed(open_store(), python, read_installed(python), questions)
    except SparkwrightError as error:
        warn(f"{error}; servers that refuse their options will say so when they are started")
    if answer is None:
        return [""] * len(recipes)
    return ["; ".join(str(one) for one in problems if one.refuses) for problems in answer.problems]


def _extent(options: TuneOptions) -> str:
    """Return the numbers of configurations and of starts."""
    from sparkwright.verify.tune.space import load_base, make_space
    from sparkwright.verify.tune.strategy import grid_cost

    space = make_space(load_base(options.recipe, options.use), options.vary, options.methods)
    count = len(space.configurations)
    if options.strategy == "grid":
        return f"{count} configurations: {count * options.starts} starts"
    most = (count + min(2, count)) * options.most_starts  # twice as many of the recipe and of the best one
    most = min(most, grid_cost(count, options.starts))
    return f"{count} configurations: at least {count} starts, at most {most}"


def _show_plan(options: TuneOptions, *, as_json: bool) -> None:
    from sparkwright.cli.output import print_json
    from sparkwright.verify.tune.space import load_base, make_space

    space = make_space(load_base(options.recipe, options.use), options.vary, options.methods)
    if as_json:
        print_json([{"key": one.key, "settings": dict(one.settings)} for one in space.configurations])
        return
    for one in space.configurations:
        settings = ", ".join(f"{name} {value}" for name, value in one.settings.items())
        click.echo(f"{one.key}  {settings or one.name}{'  (the recipe)' if one.own else ''}")
    click.echo(_extent(options))


def _show(files: TuneFiles, options: TuneOptions, *, as_json: bool) -> None:
    """Print the ranking and the result.

    Raises:
        VerdictError: no configuration can be recommended.
    """
    from sparkwright.base.text import human_size
    from sparkwright.cli.output import print_json, printable
    from sparkwright.cli.tables import show_table
    from sparkwright.verify.tune.page import LEFT_OUT, ranking_columns, ranking_row
    from sparkwright.verify.tune.result import Outcome

    result = files.result
    if as_json:
        listed = [{"path": str(path), "size": size, "sha256": sha} for path, size, sha in files.files]
        print_json({**files.described, "files": listed})
    else:
        rows = [row for row in result.rows if row.standing.state not in LEFT_OUT]
        show_table(ranking_columns(options), [ranking_row(row, options) for row in rows])
        for row in (row for row in result.rows if row.standing.state in LEFT_OUT):
            click.echo(printable(f"{row.standing.state}: {row.configuration.name}: {row.standing.why}"))
        click.echo(printable(f"result   {result.said}"))
        for one in result.speculation:
            click.echo(printable(f"         {one.configuration}: {one.said}"))
        for path, size, sha256 in files.files:
            click.echo(f"{path.name:<13} {path}  {human_size(size)}  sha256 {sha256}")
        click.echo(f"next     open {files.folder / 'report.html'}")
    if result.outcome is Outcome.NONE:
        raise VerdictError(
            "no configuration can be recommended",
            because=result.said,
            next_step=f"open {files.folder / 'report.html'}",
        )
