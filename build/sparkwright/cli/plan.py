"""``sparkwright plan``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from sparkwright.cli.options import TargetOptions, compile_options, job_options
from sparkwright.cli.output import print_json
from sparkwright.cli.patchset import told_revision
from sparkwright.cli.session import Session, common_options, run_read_only
from sparkwright.cli.tables import show_table
from sparkwright.pipeline import plan

if TYPE_CHECKING:
    from sparkwright.pipeline.job import Compiling


@click.command("plan")
@compile_options
@job_options
@common_options
@run_read_only
def command(
    session: Session, *, require_native: bool, full: bool, compiling: Compiling, wanted: TargetOptions
) -> None:
    """Show the steps to a wheel, and which results the store already holds.

    Nothing is fetched, made or written. A step that waits gets its key when the steps
    before it have run.
    """
    job = session.job(wanted, require_native=require_native, full=full, compiling=compiling)
    steps = plan(job)
    if session.as_json:
        print_json(
            {
                "point": job.point.digest,
                "revision": job.point.revision,
                "version": job.version,
                "platform": wanted.platform,
                "kernels": job.kernels,
                "arch": job.point.arch,
                "left-out": job.point.left_out,
                "steps": [asdict(step) for step in steps],
            }
        )
        return
    kernels = "upstream's kernels" if job.point.arch is None else f"kernels for {job.point.arch}"
    click.echo(f"point {job.point.digest[:16]}  →  vllm {job.version} for {wanted.platform}, {kernels}")
    click.echo(f"revision {told_revision(job.point)}")
    rows = [(step.name, step.state, (step.key or "")[:16]) for step in steps]
    show_table(("step", "state", "key"), rows)
    for step in steps:
        if step.detail:
            click.echo(f"{step.name}: {step.detail}")
    for name, why in job.point.left_out.items():
        click.echo(f"left out {name}: {why}")
