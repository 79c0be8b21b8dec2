"""``sparkwright plan``."""

from __future__ import annotations

from dataclasses import asdict

import click

from sparkwright.cli.session import Session, common_options, job_options, print_json, run_looking_only
from sparkwright.cli.tables import show_table
from sparkwright.plan import plan

__all__ = ["command"]


@click.command("plan")
@job_options
@common_options
@run_looking_only
def command(session: Session, *, patchset: str, platform: str, source: str) -> None:
    """Show the steps to a wheel, and which results the store already holds.

    Nothing is fetched, made or written. A step that waits gets its key when the steps
    before it have run.
    """
    job = session.job(patchset=patchset, platform=platform, source=source)
    steps = plan(job)
    if session.as_json:
        print_json(
            {
                "point": job.point.digest,
                "version": job.version,
                "platform": platform,
                "steps": [asdict(step) for step in steps],
            }
        )
        return
    click.echo(f"point {job.point.digest[:16]}  →  vllm {job.version} for {platform}")
    rows = [(step.name, step.state, (step.key or "")[:16]) for step in steps]
    show_table(("step", "state", "key"), rows)
