"""``sparkwright triton``."""

from __future__ import annotations

import click

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import ProofError
from sparkwright.cli.globals import Command
from sparkwright.cli.options import source_options
from sparkwright.cli.output import print_json
from sparkwright.cli.session import Session, run_in_session
from sparkwright.cli.tables import show_table
from sparkwright.merge import merge_patchset
from sparkwright.pipeline.options import TargetOptions
from sparkwright.probe.launches import HEAD, KernelReport, KernelSurvey, rows


@click.command("triton", cls=Command)
@click.option("--pristine", is_flag=True, help="Upstream's own tree, without the carries.")
@click.option("--onto", metavar="VERSION", help="Another release of upstream's, instead of the pin.")
@source_options
@run_in_session
def command(session: Session, *, pristine: bool, onto: str | None, target: TargetOptions) -> None:
    """Compile the Triton kernels of the merged tree for a GB10, without one, and show what they take.

    Upstream's own Python launches them, with the shapes of the recipes and of upstream's tests; launches are
    compiled and not run. One that needs more shared memory than the card has is an error. What was compiled
    before is not compiled again.
    """
    job = session.job(target)
    version = onto or job.spec.lock.release.version
    base = job.pristine if onto is None else job.source.release(onto)
    tree = base.tree
    if not pristine:
        merged = merge_patchset(job.repository, job.merge_request(base, version))
        if onto is None:
            merged.require_merged()
        tree = merged.tree
    report = KernelSurvey(job.store, job.repository, offline=session.offline).survey(tree, version)
    faults = report.faults()
    if session.as_json:
        print_json(to_builtins(report) | {"faults": faults, "left": report.left()})
    else:
        _show(report)
    if faults:
        raise ProofError(
            f"{len(faults)} launches of Triton kernels fail on a GB10",
            because="; ".join(faults),
            next_step="carry a change of what is launched, as mla-fp8-stages does",
        )


def _show(report: KernelReport) -> None:
    show_table(HEAD, list(rows(report)))
    left = {why: len(names) for why, names in report.left().items()}
    click.echo(
        f"Triton {report.triton}: {len(report.launches)} launches, {report.fresh} compiled now; "
        f"{len(report.compiled())} of {len(report.functions)} functions compiled"
    )
    for why, count in left.items():
        click.echo(f"  {count} not: {why}")
