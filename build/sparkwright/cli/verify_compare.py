"""``sparkwright verify compare``."""

from __future__ import annotations

from pathlib import Path

import click

from sparkwright.cli.output import unforeseen
from sparkwright.cli.terminal import showing_events
from sparkwright.cli.verify_options import JSON, OUT, QUIET

_RUN = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command("compare")
@click.argument("before", type=_RUN)
@click.argument("after", type=_RUN)
@click.option("--also-before", multiple=True, type=_RUN, metavar="RUN", help="Another run before it.")
@click.option("--also-after", multiple=True, type=_RUN, metavar="RUN", help="Another run after it.")
@click.option(
    "--start-spread",
    "spread",
    type=click.FloatRange(0, 50),
    default=2.5,
    show_default=True,
    metavar="PERCENT",
    help="Assumed standard deviation between starts, where a side has one run.",
)
@click.option(
    "--allow",
    "allowed",
    type=click.FloatRange(0, 90),
    default=10.0,
    show_default=True,
    metavar="PERCENT",
    help="Largest slowdown within the interval of a server that passes.",
)
@OUT
@QUIET
@JSON
def command(
    *,
    before: Path,
    after: Path,
    also_before: tuple[Path, ...],
    also_after: tuple[Path, ...],
    spread: float,
    allowed: float,
    out: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Compare the finished run AFTER an upgrade with the one BEFORE it.

    Both are folders of 'sparkwright verify', with the same profile and seed. Answers, tasks, failures, the KV
    cache, and at each concurrency throughput, time to the first token, step time and acceptance are judged.
    """
    from sparkwright.cli.verify import evidence_folder, require_libraries
    from sparkwright.cli.verify_show import show_results

    require_libraries()
    folder = (out or evidence_folder("compare")).absolute()
    with showing_events(quiet=quiet or as_json):
        try:
            from sparkwright.verify.upgrade import Limits, write_comparison

            limits = Limits(spread=spread / 100, allowed=allowed / 100)
            results = write_comparison((before, *also_before), (after, *also_after), folder, limits)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise unforeseen(error, folder) from error
    show_results(results, as_json=as_json)
