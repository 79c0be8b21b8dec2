"""The options of ``sparkwright verify`` that say what is verified, and the model that they make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparkwright.base.errors import ConfigError
from sparkwright.cli.options import NAMES, NUMBERS, RATES
from sparkwright.verify.options import VerifyOptions

DEFAULT_RECIPE = "qwen3.6-27b-dflash"


def objective(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    """Return the limits of ``--slo``; refuse empty ones, as a shell variable gives that is not set."""
    if value is not None and not value.strip():
        raise click.BadParameter("it is empty; give limits such as ttft_p95=2s,tpot_p95=100ms")
    return value or ""


MODEL = click.option("--model", default="", help="The model's name there, if it serves several.")
LOG = click.option("--log", default="", help="The file that the server at --url writes its log to.")
OUT = click.option("--out", type=click.Path(path_type=Path), help="Folder; one in dist/evidence/ by default.")
RESUME = click.option(
    "--resume",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Continue the interrupted run in this folder.",
)
UNLOCKED = click.option(
    "--unlocked", is_flag=True, help="Install what the index has today, not the locked runtime."
)
PLAN = click.option(
    "--plan", "only_plan", is_flag=True, help="Show what would be measured, and how long it takes."
)
FAULTS = click.option(
    "--fault", "faults", multiple=True, metavar="NAME[=VALUE][@SETTING=VALUE]", help="Break simulators so."
)
SPEED = click.option(
    "--speed", type=float, default=0.0, hidden=True, help="How fast a simulator's clock runs."
)
SEED = click.option("--seed", type=int, default=0, show_default=True, help="Of salts, documents and orders.")

OPTIONS = (
    click.option("--url", default="", help="Verify the server at this address instead of starting one."),
    click.option(
        "--reference",
        default="",
        metavar="RUN",
        help="Also compare answers with this run's, which recorded them by --checks reference.",
    ),
    MODEL,
    LOG,
    click.option(
        "--recipe", default="", help=f"What to serve, by name or file.  [default: {DEFAULT_RECIPE}]"
    ),
    click.option("--use", default="", help="The use of the recipe that is served, such as many."),
    click.option("--python", default="", help="Serve with this interpreter's vLLM instead of a wheel."),
    UNLOCKED,
    click.option("--demo", is_flag=True, help="A run against the simulator, without any GPU."),
    FAULTS,
    click.option(
        "--profile",
        default="",
        help="How much: quick (20 min, the default), full (hours), cpu, or smoke (tiny models, any GPU).",
    ),
    click.option("--checks", type=NAMES, default=(), help="Run only these, such as boot,sweep."),
    click.option("--levels", type=NUMBERS, default=(), help="Concurrencies of the sweep, such as 1,8,64."),
    click.option("--categories", type=NAMES, default=(), help="Categories of prompts."),
    click.option(
        "--prompts",
        type=click.Path(exists=True, dir_okay=False),
        help="The sweep's prompts: JSON lines with messages or prompt.",
    ),
    click.option("--max-tokens", type=click.IntRange(min=2), help="Output of each request of the sweep."),
    click.option(
        "--rate",
        "rates",
        type=RATES,
        default=(),
        help="Also send the sweep's prompts at these rates a second, such as 0.5,2, whatever has ended.",
    ),
    click.option(
        "--slo", callback=objective, help="Find the highest rate that keeps these limits: ttft_p95=2s."
    ),
    click.option("--thinking", is_flag=True, help="Let the model think before it answers questions."),
    SPEED,
    SEED,
)


def options_of(wheel: Path | None, asked: dict[str, Any]) -> VerifyOptions:
    """Return the options of the command line as one model.

    Raises:
        ConfigError: they contradict each other, or something is missing.
    """
    from sparkwright.base.digests import sha256_file
    from sparkwright.verify.datasets import read_prompts
    from sparkwright.verify.options import VerifyOptions

    demo = asked.pop("demo")
    given = {name: value for name, value in asked.items() if value not in (None, "", ())}
    sources = {
        "--url": bool(asked["url"]),
        "--demo": demo,
        "a wheel or --python": bool(wheel or asked["python"]),
    }
    if sum(sources.values()) != 1:
        named = [name for name, wanted in sources.items() if wanted]
        raise ConfigError(
            "it is not clear which server to verify",
            because=f"{' and '.join(named)} exclude each other" if named else "none was named",
            next_step="give a wheel, --python, --url or --demo",
        )
    given["profile"] = asked["profile"] or ("demo" if demo else "quick")
    if not (asked["url"] or demo):
        given["recipe"] = asked["recipe"] or ("smoke" if asked["profile"] == "smoke" else DEFAULT_RECIPE)
    given |= {
        name: str(Path(given[name]).absolute())
        for name in ("log", "python", "reference", "prompts")
        if name in given
    }
    if "prompts" in given:
        read_prompts(Path(given["prompts"]))  # refused before any server starts
        given["prompts_sha256"] = sha256_file(Path(given["prompts"]))
    if wheel is not None:
        given["wheel"] = str(wheel.absolute())
    return VerifyOptions(**given, simulator=demo)
