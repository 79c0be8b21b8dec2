"""``sparkwright merge``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import CarryConflictError
from sparkwright.carries.edited import write_tree
from sparkwright.cli.globals import Command
from sparkwright.cli.options import job_options
from sparkwright.cli.result import Part, Result, Table
from sparkwright.cli.session import Session, run_in_session
from sparkwright.merge.engine import merge_patchset
from sparkwright.merge.report import MergeReport, OutcomeKind
from sparkwright.pipeline.options import TargetOptions
from sparkwright.pipeline.proofs import evidence_of

_HAZARDS = {
    "both-sides": "both sides changed {}",
    "doubled": "{} is defined twice, with one value",
    "signature": "it calls {} as it was before the other side changed what that takes",
    "removed": "it calls {}, which the other side removed",
    "mode": "the carry makes it {}, and the wheel does not",
}


@click.command("merge", cls=Command)
@click.option("--onto", metavar="VERSION", help="Another release of upstream's, instead of the pin.")
@click.option(
    "--check-out", type=click.Path(path_type=Path), metavar="FOLDER", help="Write the merged tree here."
)
@job_options
@run_in_session
def command(session: Session, *, onto: str | None, check_out: Path | None, target: TargetOptions) -> Result:
    """Merge the patchset onto the pin, or onto another release, and report each carry.

    No probe is run: 'carry prove' and 'wheel' do that. The evidence of an outcome is a proof that is recorded
    or in the store: 'proved', or 'not needed' where the probe passes without the carry. Without one, a carry
    that was merged or seems to be in upstream is 'unproved', and one that is called superseded is 'declared'.

    Onto the pin, a carry that does not merge is an error. Onto another release the result
    is the report, and the exit status is 0 whatever the outcomes are.
    """
    job = session.job(target)
    if onto is None:
        version, pristine = job.spec.lock.release.version, job.pristine
    else:
        version, pristine = onto, job.source.release(onto)
    report = merge_patchset(job.repository, job.merge_request(pristine, version))
    if any(outcome.kind is OutcomeKind.REFUSED for outcome in report.failed):
        session.require_sound_repository()  # before any of it is reported
    known = {carry.name: carry for carry in job.spec.carries}
    evidence: dict[str, str] = {name: evidence_of(job, report, carry) for name, carry in known.items()}
    unproved = [
        one.carry
        for one in report.outcomes
        if one.kind is OutcomeKind.ABSORBED and evidence[one.carry] != "proved"
    ]
    if check_out is not None:
        write_tree(job.repository, report.tree, check_out)
    failure = None
    if report.failed and onto is None:
        first = report.failed[0]
        refreshed = first.kind is OutcomeKind.CONFLICT or known[first.carry].spec.pull is not None
        failure = CarryConflictError(
            f"{len(report.failed)} of {len(report.outcomes)} carries do not merge",
            because=", ".join(f"{outcome.carry} ({outcome.kind})" for outcome in report.failed),
            next_step=f"sparkwright carry refresh {first.carry}"
            if refreshed
            else f"change {first.carry} as the table says",
        )
    described = {**to_builtins(report), "unproved": unproved, "evidence": evidence}
    return Result(described, list(_shown(report, unproved, evidence)), failure)


def _shown(report: MergeReport, unproved: Sequence[str], evidence: Mapping[str, str]) -> Iterator[Part]:
    rows = [
        (
            outcome.carry,
            f"{outcome.kind} (unproved)" if outcome.carry in unproved else str(outcome.kind),
            evidence[outcome.carry],
            ", ".join(outcome.named_paths) or outcome.detail,
        )
        for outcome in report.outcomes
    ]
    yield Table(("carry", "outcome", "evidence", "files, or why"), rows, title=f"onto vllm {report.version}")
    for outcome in report.outcomes:
        for hazard in outcome.hazards:
            told = _HAZARDS[hazard.kind].format(hazard.name)
            yield f"look at {hazard.path}: {told} ({outcome.carry})"
    yield f"merged tree {report.tree}"
    for source in report.sources:
        yield f"source tree {source.tree} of {source.name}"
