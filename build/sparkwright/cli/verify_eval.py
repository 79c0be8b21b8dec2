"""``sparkwright verify eval``."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import click

from sparkwright.cli.globals import Command, takes
from sparkwright.cli.options import NAMES, require_libraries
from sparkwright.cli.result import Result
from sparkwright.cli.terminal import showing_events
from sparkwright.cli.verify import MODEL, OUT, report_folder, shown
from sparkwright.engine.cell import Deadlines
from sparkwright.engine.client.endpoint import Endpoint, check_endpoint, open_session
from sparkwright.store.paths import default_home
from sparkwright.verify.evaluation import EvalRequest, evaluate, evaluation_run, read_scores
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.results import write_report


@click.command("eval", cls=Command)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--url", required=True, help="The server to evaluate.")
@MODEL
@click.option("--tasks", type=NAMES, required=True, help="Tasks of lm-evaluation-harness.")
@click.option("--chat", is_flag=True, help="Send chats, in the model's template, instead of raw prompts.")
@click.option("--concurrency", type=click.IntRange(min=1), default=8, show_default=True)
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
    before: Path | None,
    out: Path | None,
    quiet: bool,
    as_json: bool,
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

    with showing_events(quiet=quiet or as_json):
        earlier = read_scores(before) if before is not None else ()
        root = url.rstrip("/").removesuffix("/v1").rstrip("/")
        request = EvalRequest(root, asyncio.run(served()), api_key=key, **asked)
        folder = report_folder(out, f"{VerifyOptions(url=url).title}-eval")
        scores = evaluate(request, folder, default_home() / "evaluation")
        results = write_report(evaluation_run(request, scores, earlier), folder)
    return shown(results)
