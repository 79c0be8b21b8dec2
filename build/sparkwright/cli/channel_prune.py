"""``sparkwright channel prune``."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click

from sparkwright.base.text import human_size
from sparkwright.cli.channel_place import make_publisher, now, signing_options
from sparkwright.cli.globals import Command
from sparkwright.cli.output import print_json
from sparkwright.cli.session import Session, run_read_only
from sparkwright.publish.prune import PruneReport, PruneUnit


@click.command("prune", cls=Command)
@click.option(
    "--grace",
    type=click.IntRange(min=1),
    default=24,
    show_default=True,
    metavar="HOURS",
    help="Time between finding that nothing names a file and removing it.",
)
@signing_options
@run_read_only
def prune(session: Session, *, grace: int, dry_run: bool, **options: Any) -> None:
    """Remove wheels and generations that channels keep no longer, by patchsets/channels.toml.

    What no kept generation names is listed first, and removed by a prune at least HOURS later.
    """
    from sparkwright.publish.policy import POLICY_FILE, load_policies
    from sparkwright.publish.prune import Pruner

    publisher = make_publisher(session.checkout.folder, **options)
    policies = load_policies(session.checkout.patchsets / POLICY_FILE)
    report = Pruner(publisher, policies, now(), timedelta(hours=grace), dry_run).prune()
    if session.as_json:
        print_json(_described(report, dry_run=dry_run))
        return
    _show(report, dry_run=dry_run)


def _described(report: PruneReport, *, dry_run: bool) -> dict[str, Any]:
    """Return *report* as JSON-ready data."""
    return {
        "dry-run": dry_run,
        "generations": report.generations,
        "dropped": report.dropped,
        "condemned": [_described_unit(unit) for unit in report.condemned],
        "removed": [_described_unit(unit) for unit in report.removed],
        "kept": report.kept,
    }


def _described_unit(unit: PruneUnit) -> dict[str, Any]:
    return {**asdict(unit), "size": unit.size}


def _show(report: PruneReport, *, dry_run: bool) -> None:
    """Print *report*: each unit with its size and the reason."""
    for channel, dropped in report.dropped.items():
        made = f", generation {report.generations[channel]}" if channel in report.generations else ""
        click.echo(f"channel  {channel}{made}: {len(dropped)} wheels dropped")
        for name in dropped:
            click.echo(f"dropped  {name}")
    for unit in report.condemned:
        click.echo(f"waits    {unit.path} ({human_size(unit.size)}), since {unit.since}: {unit.why}")
    for unit in report.removed:
        click.echo(f"removed  {unit.path} ({human_size(unit.size)}): {unit.why}")
    freed = human_size(sum(unit.size for unit in report.removed))
    told = f"{len(report.removed)} folders removed ({freed}), {len(report.condemned)} wait"
    dry = "; a dry run: nothing was written" if dry_run else ""
    click.echo(f"pruned   {told}, {report.kept} are kept{dry}")
