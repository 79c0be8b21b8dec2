"""``sparkwright verify eval``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sparkwright.base.errors import ConfigError
from sparkwright.cli.globals import Command, takes
from sparkwright.cli.options import Names
from sparkwright.cli.terminal import showing_events
from sparkwright.cli.verify_options import MODEL, OUT
from sparkwright.engine.client import EndpointFacts
from sparkwright.recipes.evidence import EvalBound
from sparkwright.verify.evaluation import EvalLimits

_OF_BENCHY = ("arguments", "tool", "url", "model", "python", "out")


@click.command("eval", cls=Command)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--tool", type=click.Choice(("lm-eval", "llama-benchy")), default="lm-eval", show_default=True)
@click.option("--url", required=True, help="The server to evaluate.")
@MODEL
@click.option(
    "--tasks",
    type=Names(),
    default=(),
    help="Tasks of lm-evaluation-harness, or YAML files of your own; those of --recipe by default.",
)
@click.option(
    "--recipe", default="", help="Judge scores by the lowest ones of this recipe, a name or a file."
)
@click.option("--limit", type=click.IntRange(min=1), help="Questions of each task; all by default.")
@click.option("--chat", is_flag=True, help="Send chats, in the model's template, instead of raw prompts.")
@click.option("--concurrency", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--least", multiple=True, metavar="TASK=SCORE", help="Lowest allowed score of a task.")
@click.option(
    "--before",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of an earlier evaluation, to compare with question by question.",
)
@click.option("--python", default="", help="An interpreter that has the tool.")
@OUT
@takes("offline", "quiet", "as_json")
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    arguments: tuple[str, ...],
    tool: str,
    url: str,
    model: str,
    tasks: tuple[str, ...],
    recipe: str,
    limit: int | None,
    least: tuple[str, ...],
    before: Path | None,
    out: Path | None,
    quiet: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Evaluate tasks with the server at --url, by lm-evaluation-harness, or measure it by llama-benchy.

    The tool runs as a process of its own: in this environment if it has it, by --python in another, else in
    one that is made in the cache. ARGUMENTS after -- are its own, such as -- --pp 2048 --concurrency 1 4.
    Tasks that generate text are supported. With --recipe a score fails if its whole interval is below the
    recipe's lowest one, and is undecided if a part is. Figures of llama-benchy are attached, not judged.
    """
    from sparkwright.cli.verify import evidence_folder, refuse_stated, require_libraries, show_results

    require_libraries()
    from sparkwright.recipes import load_recipe
    from sparkwright.store.paths import default_home
    from sparkwright.verify.evaluation import BENCHY_FILE, EvalRequest, evaluate, evaluation_run, run_benchy
    from sparkwright.verify.options import VerifyOptions
    from sparkwright.verify.results import write_report

    with showing_events(quiet=quiet or as_json):
        if tool == "llama-benchy":
            refuse_stated(context, "llama-benchy evaluates no tasks: its own arguments follow --", _OF_BENCHY)
        bounds = load_recipe(recipe).evaluation if recipe else ()
        limits = _limits(bounds, least, before)
        tasks = tasks if tasks or tool == "llama-benchy" else _tasks_of(bounds, recipe)
        key = os.environ.get("SPARKWRIGHT_API_KEY", "")
        known = asyncio.run(_known(url, model, key))
        root = url.rstrip("/").removesuffix("/v1").rstrip("/")
        request = EvalRequest(root, known.model, tasks, arguments, limit=limit or 0, api_key=key, **asked)
        folder = (out or evidence_folder(f"{VerifyOptions(url=url).title}-eval")).absolute()
        cache = default_home() / "evaluation"
        if tool == "llama-benchy":
            results = write_report(run_benchy(request, folder, cache), folder, also=(BENCHY_FILE,))
        else:
            scores = evaluate(request, folder, cache)
            results = write_report(evaluation_run(request, scores, limits), folder)
    show_results(results, as_json=as_json)


async def _known(url: str, model: str, api_key: str) -> EndpointFacts:
    from sparkwright.engine.client import Endpoint, check_endpoint, open_session
    from sparkwright.engine.deadlines import Deadlines

    endpoint = Endpoint(url, model, api_key)
    async with open_session(endpoint) as session:
        return await check_endpoint(session, endpoint, Deadlines())


def _tasks_of(bounds: Sequence[EvalBound], recipe: str) -> tuple[str, ...]:
    """Return the tasks that a recipe has lowest scores of.

    Raises:
        ConfigError: it has none.
    """
    if not bounds:
        raise ConfigError(
            "it is not clear what to evaluate",
            because=f"the recipe {recipe} has no [[evaluation]]" if recipe else "no task was named",
            next_step="name tasks with --tasks",
        )
    return tuple(dict.fromkeys(one.task for one in bounds))


def _limits(bounds: Sequence[EvalBound], least: tuple[str, ...], before: Path | None) -> EvalLimits:
    """Return the limits of a recipe and of the command line, which is stronger.

    Raises:
        ConfigError: one is no score, or the earlier evaluation cannot be read.
    """
    from sparkwright.verify.eval_scores import read_scores
    from sparkwright.verify.evaluation import EvalLimits

    given = dict(map(_score_of, least))
    stated = {one.name: one for one in bounds if not {one.task, one.name} & given.keys()}
    limits = {name: one.least for name, one in stated.items()} | given
    sources = {name: one.source for name, one in stated.items()} | dict.fromkeys(given, "--least")
    return EvalLimits(limits, read_scores(before) if before is not None else (), sources)


def _score_of(text: str) -> tuple[str, float]:
    """Return task and score of ``TASK=SCORE``.

    Raises:
        ConfigError: it is something else.
    """
    name, _, value = text.rpartition("=")
    try:
        score = float(value)
    except ValueError as error:
        raise ConfigError(f"--least takes TASK=SCORE, not {text!r}", because=str(error)) from error
    if not name:
        raise ConfigError(f"--least takes TASK=SCORE, not {text!r}", because="it names no task")
    return name, score
