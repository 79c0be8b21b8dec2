"""``sparkwright verify eval``."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import click

from sparkwright.base.errors import ConfigError
from sparkwright.cli.globals import Command, takes
from sparkwright.cli.options import Names
from sparkwright.cli.terminal import showing_events
from sparkwright.cli.verify_options import MODEL, OUT


@click.command("eval", cls=Command)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--url", required=True, help="The server to evaluate.")
@MODEL
@click.option("--tasks", type=Names(), required=True, help="Tasks of lm-evaluation-harness.")
@click.option("--chat", is_flag=True, help="Send chats, in the model's template, instead of raw prompts.")
@click.option("--concurrency", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--least", multiple=True, metavar="TASK=SCORE", help="Lowest allowed score of a task.")
@click.option(
    "--before",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of an earlier evaluation, to compare with question by question.",
)
@click.option("--python", default="", help="An interpreter that has lm-evaluation-harness.")
@OUT
@takes("offline", "quiet", "as_json")
def command(
    *,
    url: str,
    model: str,
    least: tuple[str, ...],
    before: Path | None,
    out: Path | None,
    quiet: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Evaluate tasks with the server at --url, by lm-evaluation-harness.

    It runs as a process of its own: in this environment if it is there, by --python in another, else in one
    that is made in the cache. ARGUMENTS after -- are its own, such as -- --limit 100 --include_path FOLDER.
    Tasks that generate text are supported. With --least a score fails if its whole interval is below, and is
    undecided if a part is.
    """
    from sparkwright.cli.verify import evidence_folder, require_libraries, show_results

    require_libraries()
    from sparkwright.engine.client import Endpoint, check_endpoint, open_session
    from sparkwright.engine.deadlines import Deadlines
    from sparkwright.store.paths import default_home
    from sparkwright.verify.eval_scores import read_scores
    from sparkwright.verify.evaluation import EvalRequest, evaluate, evaluation_run
    from sparkwright.verify.options import VerifyOptions
    from sparkwright.verify.results import write_report

    key = os.environ.get("SPARKWRIGHT_API_KEY", "")

    async def served() -> str:
        endpoint = Endpoint(url, model, key)
        async with open_session(endpoint) as session:
            return (await check_endpoint(session, endpoint, Deadlines())).model

    with showing_events(quiet=quiet or as_json):
        limits = dict(map(_score_of, least))
        earlier = read_scores(before) if before is not None else ()
        root = url.rstrip("/").removesuffix("/v1").rstrip("/")
        request = EvalRequest(root, asyncio.run(served()), api_key=key, **asked)
        folder = (out or evidence_folder(f"{VerifyOptions(url=url).title}-eval")).absolute()
        scores = evaluate(request, folder, default_home() / "evaluation")
        results = write_report(evaluation_run(request, scores, limits, earlier), folder)
    show_results(results, as_json=as_json)


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
