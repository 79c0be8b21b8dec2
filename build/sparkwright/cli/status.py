"""``sparkwright status``: the pin, the carries with their outcomes and proofs, and the wheels in dist/."""

from __future__ import annotations

from typing import Any

import click

from sparkwright.base.text import human_size
from sparkwright.cli.build import told_revision
from sparkwright.cli.command import Command, Result, Table
from sparkwright.cli.options import job_options
from sparkwright.cli.session import Session, run_read_only
from sparkwright.merge.report import OutcomeKind
from sparkwright.pipeline.build import merge_carries, pristine_tree
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.options import TargetOptions
from sparkwright.pipeline.proofs import prove
from sparkwright.pipeline.state import find_only


@click.command("status", cls=Command)
@job_options
@run_read_only
def command(session: Session, *, target: TargetOptions) -> Result:
    """Show the pin, the carries with their outcomes and proofs, and the wheels in dist/.

    Only results in the store are shown; 'sparkwright merge' makes the others.
    """
    job = session.job(target)
    carries, spec = _carries(job), job.spec
    wheels, release = sorted(job.out.glob("*.whl")), spec.lock.release
    lines = sum(entry["lines"] for entry in carries)
    kernels = "upstream's" if spec.arch is None else f"native, compiled for {spec.arch}"
    columns = {
        "carry": "name", "outcome": "outcome", "proof": "proof", "evidence": "evidence",
        "what it does": "title",
    }  # fmt: skip
    return Result(
        {
            "release": release.version,
            "commit": release.commit,
            "torch": release.torch,
            "series": session.checkout.series,
            "patchset": spec.file,
            "kernels": job.kernels,
            "arch": spec.arch,
            "point": spec.digest,
            "revision": spec.revision,
            "version": job.version,
            "patch-lines": lines,
            "carries": carries,
            "wheels": [{"path": str(wheel), "size": wheel.stat().st_size} for wheel in wheels],
            "store": str(session.store.home),
        },
        [
            ("series", f"{session.checkout.series}, patchset {spec.file}"),
            ("pin", f"vllm {release.version}, commit {release.commit[:12]}, torch {release.torch}"),
            ("spec", f"{spec.digest[:16]}  →  {job.version}"),
            ("revision", told_revision(spec)),
            ("kernels", kernels),
            Table.of(carries, columns),
            ("patch", f"{lines} lines in {len(carries)} carries"),
            *(("wheel", f"{wheel}  {human_size(wheel.stat().st_size)}") for wheel in wheels),
            ("store", session.store.home),
        ],
    )


def _carries(job: Job) -> list[dict[str, Any]]:
    report = find_only(merge_carries(job, find_only(pristine_tree(job))))
    described = []
    for carry in job.spec.carries:
        outcome = str(report.outcome(carry.name).kind) if report else "not merged yet"
        proof = "unknown"
        if carry.name in job.spec.left_out:
            outcome, proof = str(OutcomeKind.LEFT_OUT), "no proof needed"
        elif report:
            proof = "none" if find_only(prove(job, report, carry)) is None else "holds"
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
