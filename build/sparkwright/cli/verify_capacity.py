"""``sparkwright verify capacity``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparkwright.base.errors import ConfigError
from sparkwright.cli.globals import Command, takes
from sparkwright.cli.verify_options import API_KEY, MODEL, OUT, RESUME, digest_of_prompts
from sparkwright.verify.options import VerifyOptions

_SLO = "ttft_p95=2s,tpot_p95=200ms"


@click.command("capacity", cls=Command)
@click.option("--url", default="", help="The server to load.")
@API_KEY
@MODEL
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
@OUT
@RESUME
@takes("quiet", "as_json")
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
    from sparkwright.cli.verify import new_folder, recorded_options, require_libraries, showing_run
    from sparkwright.cli.verify_show import show_results

    require_libraries()
    from sparkwright.verify.plan import plan_of
    from sparkwright.verify.runner import run_verification

    keys = (api_key, "")
    with showing_run(quiet=quiet or as_json) as log:
        if resume is None:
            options = _options_of(asked)
        else:
            options = recorded_options(context, resume, {**asked, "baseline_url": ""}, keys)
            if options.capacity is None:
                raise ConfigError(
                    f"{resume} holds no search for a capacity",
                    because="its journal is of another run",
                    next_step="continue that with 'sparkwright verify --resume'",
                )
        folder = resume or out or new_folder(options, "-capacity")
        log(folder)
        results = run_verification(plan_of(options), folder.absolute(), keys)
    show_results(results, as_json=as_json)


def _options_of(asked: dict[str, Any]) -> VerifyOptions:
    """Return the options of the command line as those of a verification.

    Raises:
        ConfigError: they contradict each other, or the objective or the prompts cannot be used.
    """
    from sparkwright.verify.capacity.search import CapacityOptions
    from sparkwright.verify.capacity.slo import parse_slo
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
        own = {"prompts": str(prompts.absolute()), "prompts_sha256": digest_of_prompts(prompts)}
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
