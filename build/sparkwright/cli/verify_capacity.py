"""``sparkwright verify capacity``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparkwright.base.errors import ConfigError
from sparkwright.verify.options import VerifyOptions

_SLO = "ttft_p95=2s,tpot_p95=200ms"


@click.command("capacity")
@click.option("--url", default="", help="The server to load.")
@click.option(
    "--api-key", default="", envvar="SPARKWRIGHT_API_KEY", help="Its key; best by SPARKWRIGHT_API_KEY."
)
@click.option("--model", default="", help="The model's name there, if it serves several.")
@click.option("--demo", is_flag=True, help="Load the simulator.")
@click.option(
    "--slo", default=_SLO, show_default=True, help="Limits of ttft, tpot, e2e at p50, p90, p95, p99."
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="JSON lines with messages or prompt, or ShareGPT's JSON; the shipped prompts by default.",
)
@click.option("--input-tokens", type=click.IntRange(min=120), help="Send documents of about this length.")
@click.option(
    "--max-tokens", type=click.IntRange(min=2), default=128, show_default=True, help="Output of each request."
)
@click.option(
    "--rate",
    "first_rate",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Requests a second of the first step.",
)
@click.option(
    "--most-rate",
    type=click.FloatRange(min=0, min_open=True),
    default=1024.0,
    show_default=True,
    help="Highest rate to try.",
)
@click.option(
    "--requests", type=click.IntRange(min=20), default=200, show_default=True, help="Of a step, at the least."
)
@click.option(
    "--precision",
    type=click.FloatRange(1, 50),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="Half of the interval at which the search ends.",
)
@click.option("--speed", type=float, default=20.0, hidden=True, help="How fast a simulator's clock runs.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of arrivals and prompts.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder; one in dist/evidence/ by default.")
@click.option(
    "--resume",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Continue the interrupted search in this folder.",
)
@click.option("--quiet", "-q", is_flag=True, help="Show warnings and the result only.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    api_key: str,
    out: Path | None,
    resume: Path | None,
    quiet: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Find the highest rate of requests at which a server keeps a service-level objective.

    Requests arrive at random and wait for no other, as those of many users do. A rate holds if so many of
    them keep all limits as the percentile says. --resume continues an interrupted search.
    """
    from sparkwright.cli.verify import (
        new_folder,
        refuse_keys,
        refuse_others,
        require_libraries,
        showing_run,
    )
    from sparkwright.cli.verify_show import show_results

    require_libraries()
    from sparkwright.verify.runner import run_verification

    with showing_run(quiet=quiet or as_json) as log:
        if resume is None:
            options = _options_of(asked)
        else:
            options = _recorded(resume)
            refuse_others(context, resume, options)
            refuse_keys(resume, options, {**asked, "baseline_url": ""}, (api_key, ""))
        folder = resume or out or new_folder(options, "-capacity")
        log(folder)
        results = run_verification(options, folder.absolute(), (api_key, ""), offline=False)
    show_results(results, as_json=as_json)


def _options_of(asked: dict[str, Any]) -> VerifyOptions:
    """Return the options of the command line as those of a verification.

    Raises:
        ConfigError: they contradict each other, or the objective or the prompts cannot be used.
    """
    from sparkwright.base.digests import sha256_file
    from sparkwright.verify.capacity.search import CapacityOptions
    from sparkwright.verify.capacity.slo import parse_slo
    from sparkwright.verify.datasets import read_prompts
    from sparkwright.verify.options import VerifyOptions

    url, demo, prompts = asked["url"], asked["demo"], asked["prompts"]
    if bool(url) is demo:
        raise ConfigError(
            "it is not clear which server to load",
            because="--url and --demo exclude each other" if demo else "none was named",
            next_step="give --url or --demo",
        )
    if prompts and asked["input_tokens"]:
        raise ConfigError(
            "--prompts and --input-tokens exclude each other",
            because="prompts have the lengths that they have",
        )
    parse_slo(asked["slo"])
    own: dict[str, Any] = {}
    if prompts:
        read_prompts(prompts)
        own = {"prompts": str(prompts.absolute()), "prompts_sha256": sha256_file(prompts)}
    names = ("slo", "input_tokens", "max_tokens", "first_rate", "most_rate", "requests", "precision")
    search = CapacityOptions(**{name: asked[name] for name in names if asked[name] is not None}, **own)
    return VerifyOptions(
        url=url,
        model=asked["model"],
        simulator=demo,
        profile="demo" if demo else "full",
        speed=asked["speed"] if demo else 0.0,
        seed=asked["seed"],
        capacity=search,
    )


def _recorded(folder: Path) -> VerifyOptions:
    """Return the options of the search in *folder*.

    Raises:
        ConfigError: it holds another run, or none.
    """
    from sparkwright.verify.journal import read_journal
    from sparkwright.verify.options import VerifyOptions

    options = VerifyOptions.from_options(read_journal(folder).manifest.options)
    if options.capacity is None:
        raise ConfigError(
            f"{folder} holds no search for a capacity",
            because="its journal is of another run",
            next_step="continue that with 'sparkwright verify --resume'",
        )
    return options
