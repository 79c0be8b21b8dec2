"""``sparkwright verify history``."""

from __future__ import annotations

from pathlib import Path

import click

from sparkwright.base.text import clean
from sparkwright.cli.globals import Command, takes
from sparkwright.cli.output import print_json
from sparkwright.verify.history import PastRun

_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command("history", cls=Command)
@click.argument("recipe", default="")
@click.option(
    "--evidence", type=_FOLDER, help="Folder with the runs' folders; dist/evidence/ by default.", default=None
)
@takes("as_json")
def command(*, recipe: str, evidence: Path | None, as_json: bool) -> None:
    """List earlier runs, or those of RECIPE: date, wheel, verdict, and tokens/s at c=1, 16 and 64.

    Throughput with a star was measured on a machine that was slowed or swapped.
    """
    from sparkwright.publish import dist_folder
    from sparkwright.verify.history import past_runs

    place = evidence or dist_folder(Path()) / "evidence"
    runs = past_runs(place, recipe)
    if as_json:
        print_json(
            [
                {
                    "run": one.folder, "started": one.started, "server": one.server, "recipe": one.recipe,
                    "wheel": one.wheel, "profile": one.profile, "verdict": one.verdict,
                    "tokens-per-s": {str(level): round(rate, 2) for level, rate in one.tok_s.items()},
                    "marked": sorted(one.marked),
                }
                for one in runs
            ]
        )  # fmt: skip
        return
    if not runs:
        of = f" of {recipe}" if recipe else ""
        click.echo(f"{place} holds no run{of}")
        return
    _show(runs)


def _show(runs: list[PastRun]) -> None:
    from sparkwright.verify.history import LEVELS

    heads = ("started", "server", "wheel", "profile", "verdict", *(f"c={level}" for level in LEVELS))
    rows = [
        (
            one.started[:16].replace("T", " "),
            clean(one.recipe or one.server, 40),
            clean(one.wheel, 60),
            clean(one.profile, 20),
            clean(one.verdict, 20),
            *(_rate(one, level) for level in LEVELS),
        )
        for one in runs
    ]
    widths = [max(len(row[place]) for row in [heads, *rows]) for place in range(len(heads))]
    for row in (heads, *rows):
        cells = [text.ljust(width) for text, width in zip(row[:5], widths[:5], strict=True)]
        cells += [text.rjust(width) for text, width in zip(row[5:], widths[5:], strict=True)]
        click.echo("  ".join(cells).rstrip())


def _rate(run: PastRun, level: int) -> str:
    from sparkwright.verify.report.text import NOTHING

    rate = run.tok_s.get(level)
    return NOTHING if rate is None else f"{rate:.1f}{'*' if level in run.marked else ''}"
