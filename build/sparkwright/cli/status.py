"""``sparkwright status``."""

from __future__ import annotations

from typing import Any

import click

from sparkwright.base.text import human_size
from sparkwright.cli.globals import Command
from sparkwright.cli.options import job_options
from sparkwright.cli.output import print_json
from sparkwright.cli.patchset import told_revision
from sparkwright.cli.session import Session, run_read_only
from sparkwright.cli.tables import show_table
from sparkwright.merge import OutcomeKind
from sparkwright.pipeline import Job
from sparkwright.pipeline.options import TargetOptions
from sparkwright.pipeline.proofs import Prove
from sparkwright.pipeline.state import BuildState
from sparkwright.pipeline.trees import Merge, PristineTree


@click.command("status", cls=Command)
@job_options
@run_read_only
def command(session: Session, *, target: TargetOptions) -> None:
    """Show the pin, the carries with their outcomes and proofs, and the wheels in dist/.

    Only results in the store are shown; 'sparkwright merge' makes the others.
    """
    job = session.job(target)
    carries = _carries(job)
    wheels = sorted(job.out.glob("*.whl"))
    release = job.spec.lock.release
    if session.as_json:
        print_json(
            {
                "release": release.version,
                "commit": release.commit,
                "torch": release.torch,
                "series": session.checkout.series,
                "patchset": job.spec.file,
                "kernels": job.kernels,
                "arch": job.spec.arch,
                "point": job.spec.digest,
                "revision": job.spec.revision,
                "version": job.version,
                "patch-lines": sum(entry["lines"] for entry in carries),
                "carries": carries,
                "wheels": [{"path": str(wheel), "size": wheel.stat().st_size} for wheel in wheels],
                "store": str(session.store.home),
            }
        )
        return
    click.echo(f"series   {session.checkout.series}, patchset {job.spec.file}")
    click.echo(f"pin      vllm {release.version}, commit {release.commit[:12]}, torch {release.torch}")
    click.echo(f"spec     {job.spec.digest[:16]}  →  {job.version}")
    click.echo(f"revision {told_revision(job.spec)}")
    kernels = "upstream's" if job.spec.arch is None else f"native, compiled for {job.spec.arch}"
    click.echo(f"kernels  {kernels}")
    rows = [
        (entry["name"], entry["outcome"], entry["proof"], entry["evidence"], entry["title"])
        for entry in carries
    ]
    show_table(("carry", "outcome", "proof", "evidence", "what it does"), rows)
    click.echo(f"patch    {sum(entry['lines'] for entry in carries)} lines in {len(carries)} carries")
    for wheel in wheels:
        click.echo(f"wheel    {wheel}  {human_size(wheel.stat().st_size)}")
    click.echo(f"store    {session.store.home}")


def _carries(job: Job) -> list[dict[str, Any]]:
    state = BuildState()
    merged = PristineTree().find(job, state) and Merge().find(job, state)
    described = []
    for carry in job.spec.carries:
        outcome = str(state.report.outcome(carry.name).kind) if merged and state.report else "not merged yet"
        proof = "unknown"
        if carry.name in job.spec.left_out:
            outcome, proof = str(OutcomeKind.LEFT_OUT), "no proof needed"
        elif merged:
            proof = "holds" if Prove(carry).find(job, state) else "none"
        described.append(
            {
                "name": carry.name,
                "outcome": outcome,
                "proof": proof,
                "evidence": carry.spec.evidence.level,
                "lines": carry.lines(job.spec.lock.release.version),
                "title": carry.spec.title,
            }
        )
    return described
