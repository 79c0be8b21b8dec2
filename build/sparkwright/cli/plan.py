"""``sparkwright plan``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from sparkwright.cli.globals import Command
from sparkwright.cli.options import compile_options, job_options, out_option
from sparkwright.cli.output import print_json
from sparkwright.cli.patchset import told_revision
from sparkwright.cli.pin import pin_summary, show_pin
from sparkwright.cli.session import Session, run_read_only
from sparkwright.cli.tables import show_table
from sparkwright.pipeline import plan
from sparkwright.pipeline.options import CompileOptions, TargetOptions
from sparkwright.pipeline.run import unforeseen


@click.command("plan", cls=Command)
@out_option
@compile_options
@job_options
@run_read_only
def command(
    session: Session,
    *,
    out: Path | None,
    require_native: bool,
    full: bool,
    compiling: CompileOptions,
    target: TargetOptions,
) -> None:
    """Show the steps to a wheel, and which results the store already holds.

    Nothing is fetched, made or written. A waiting step gets its key when the steps before it have run.
    """
    job = session.job(target, out=out, require_native=require_native, full=full, compiling=compiling)
    steps = plan(job)
    notice = unforeseen(job, steps)
    if session.as_json:
        print_json(
            {
                "point": job.spec.digest,
                "revision": job.spec.revision,
                "version": job.version,
                "platform": target.platform,
                **pin_summary(job),
                "kernels": job.kernels,
                "arch": job.spec.arch,
                "left-out": job.spec.left_out,
                "notice": notice,
                "steps": [asdict(step) for step in steps],
            }
        )
        return
    kernels = "upstream's kernels" if job.spec.arch is None else f"kernels for {job.spec.arch}"
    click.echo(f"build spec {job.spec.digest[:16]}  →  vllm {job.version} for {target.platform}, {kernels}")
    click.echo(f"revision {told_revision(job.spec)}")
    show_pin(job)
    rows = [(step.name, step.state, step.evidence, (step.key or "")[:16]) for step in steps]
    show_table(("step", "state", "evidence", "key"), rows)
    for step in steps:
        for told in filter(None, (step.detail, step.warning)):
            click.echo(f"{step.name}: {told}")
    if notice:
        click.echo(f"notice: {notice}")
    for name, why in job.spec.left_out.items():
        click.echo(f"left out {name}: {why}")
