"""``sparkwright verify reference``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from sparkwright.base.events import emit
from sparkwright.cli.globals import Group, takes
from sparkwright.cli.output import print_json
from sparkwright.cli.terminal import showing_events
from sparkwright.cli.verify_options import API_KEY, LOG, MODEL, OUT


@click.group("reference", cls=Group)
def command() -> None:
    """Store answers of a checkpoint, and compare servers of it with them.

    A reference holds prompts, greedy answers and the probabilities of their tokens. It shows what no
    comparison of a server with itself can: wrong weights, wrong positions, coarser quantization.
    """


@command.command("make")
@click.option("--url", required=True, help="A server of the checkpoint that is known to be right.")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="File to write."
)
@click.option(
    "--prompts", type=click.IntRange(min=12), default=32, show_default=True, help="Number of prompts."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of prompts.")
@API_KEY
@MODEL
@LOG
@takes("quiet", "as_json")
def make(
    *,
    url: str,
    output: Path,
    prompts: int,
    seed: int,
    api_key: str,
    model: str,
    log: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Ask the server at --url for a reference, and write it to a file."""
    from sparkwright.cli.verify import require_libraries

    require_libraries()
    from sparkwright.engine.client import Endpoint
    from sparkwright.verify.make_reference import make_reference
    from sparkwright.verify.reference import write_reference

    with showing_events(quiet=quiet or as_json):
        asked = make_reference(Endpoint(url, model, api_key), prompts=prompts, seed=seed, log=log)
        reference = asyncio.run(asked)
        digest = write_reference(reference, output)
        emit("reference.made", path=str(output), digest=digest)
    tokens = sum(len(sample.logprobs) for one in reference.answers for sample in one.samples)
    answers = sum(len(one.samples) for one in reference.answers)
    if as_json:
        print_json({"path": str(output), "digest": digest, "answers": answers, "tokens": tokens})
        return
    click.echo(f"{output}  {answers} answers, {tokens} tokens of {reference.identity.model}")
    click.echo(f"next     sparkwright verify reference use {output} --url URL")


@command.command("use")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--url", required=True, help="The server to compare with the reference.")
@OUT
@API_KEY
@MODEL
@LOG
@takes("quiet", "as_json")
def use(
    *, file: Path, url: str, out: Path | None, api_key: str, model: str, log: str, quiet: bool, as_json: bool
) -> None:
    """Compare the server at --url with the reference in FILE.

    Sends the reference's prompts one at a time and eight at a time, and nothing else.
    """
    from sparkwright.cli.verify import new_folder, require_libraries, showing_run
    from sparkwright.cli.verify_show import show_results

    require_libraries()
    from sparkwright.verify.options import REFERENCE, VerifyOptions
    from sparkwright.verify.plan import plan_of
    from sparkwright.verify.runner import run_verification

    options = VerifyOptions(
        url=url,
        model=model,
        log=str(Path(log).absolute()) if log else "",
        checks=(REFERENCE,),
        reference=str(file.absolute()),
    )
    with showing_run(quiet=quiet or as_json) as keep:
        folder = out or new_folder(options, "-reference")
        keep(folder)
        results = run_verification(plan_of(options), folder.absolute(), (api_key, ""), offline=False)
    show_results(results, as_json=as_json)
