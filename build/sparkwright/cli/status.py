"""``sparkwright status``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sparkwright.cli.options import TargetOptions, job_options
from sparkwright.cli.output import print_json
from sparkwright.cli.patchset import told_revision
from sparkwright.cli.session import Session, common_options, run_read_only
from sparkwright.cli.tables import show_table
from sparkwright.cli.terminal import human_size
from sparkwright.merge import OutcomeKind
from sparkwright.pipeline.job import BuildState
from sparkwright.pipeline.steps import Merge, PristineTree, Prove

if TYPE_CHECKING:
    from sparkwright.pipeline import Job


@click.command("status")
@job_options
@common_options
@run_read_only
def command(session: Session, *, wanted: TargetOptions) -> None:
    """Show the pin, the carries with their outcomes and proofs, and what is in dist/.

    Only what is known without work is shown; 'sparkwright merge' finds the rest out.
    """
    job = session.job(wanted)
    carries = _carries(job)
    wheels = sorted(job.options.out.glob("*.whl"))
    release = job.point.lock.release
    if session.as_json:
        print_json(
            {
                "release": release.version,
                "commit": release.commit,
                "torch": release.torch,
                "patchset": wanted.patchset,
                "kernels": job.kernels,
                "arch": job.point.arch,
                "point": job.point.digest,
                "revision": job.point.revision,
                "version": job.version,
                "carries": carries,
                "wheels": [{"path": str(wheel), "size": wheel.stat().st_size} for wheel in wheels],
                "store": str(session.store.home),
            }
        )
        return
    click.echo(f"pin      vllm {release.version}, commit {release.commit[:12]}, torch {release.torch}")
    click.echo(f"point    {job.point.digest[:16]}  →  {job.version}")
    click.echo(f"revision {told_revision(job.point)}")
    told = "upstream's own" if job.point.arch is None else f"native, compiled for {job.point.arch}"
    click.echo(f"kernels  {told}")
    rows = [
        (entry["name"], entry["outcome"], entry["proof"], entry["evidence"], entry["title"])
        for entry in carries
    ]
    show_table(("carry", "outcome", "proof", "evidence", "what it does"), rows)
    for wheel in wheels:
        click.echo(f"wheel    {wheel}  {human_size(wheel.stat().st_size)}")
    click.echo(f"store    {session.store.home}")


def _carries(job: Job) -> list[dict[str, Any]]:
    known = BuildState()
    merged = PristineTree().find(job, known) and Merge().find(job, known)
    described = []
    for carry in job.point.carries:
        outcome = str(known.report.outcome(carry.name).kind) if merged and known.report else "not merged yet"
        proof = "unknown"
        if carry.name in job.point.left_out:
            outcome, proof = str(OutcomeKind.LEFT_OUT), "no proof needed"
        elif merged:
            proof = "holds" if Prove(carry).find(job, known) else "none"
        described.append(
            {
                "name": carry.name,
                "outcome": outcome,
                "proof": proof,
                "evidence": carry.spec.evidence.level,
                "title": carry.spec.title,
            }
        )
    return described
