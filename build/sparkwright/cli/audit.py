"""``sparkwright audit``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparkwright.cli.options import DEFAULT_PATCHSET, Wanted
from sparkwright.cli.session import Session, common_options, print_json, run_in_session
from sparkwright.cli.tables import show_table
from sparkwright.cli.terminal import human_seconds, human_size
from sparkwright.errors import AuditError, WheelError
from sparkwright.merge import merge_patchset
from sparkwright.wheel import parse_name
from sparkwright.wheel.audit import audit

if TYPE_CHECKING:
    from sparkwright.plan import Job
    from sparkwright.wheel.audit import AuditReport

__all__ = ["command"]


@click.command("audit")
@click.argument(
    "wheels", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False)
)
@click.option("--patchset", default=DEFAULT_PATCHSET, show_default=True, help="What the wheel was made from.")
@click.option("--source", default="index", show_default=True, help="Where upstream's tree comes from.")
@click.option("--arch", default="", help="What its kernels were compiled for; the lock's by default.")
@click.option(
    "--allow-skipped", is_flag=True, help="Accept a wheel of another point, checked as far as it goes."
)
@common_options
@run_in_session
def command(
    session: Session, *, wheels: tuple[Path, ...], patchset: str, source: str, arch: str, allow_skipped: bool
) -> None:
    """Check WHEELS against upstream's own and against what was merged.

    The merge is done again, so nothing that a wheel says of itself is taken on trust. Upstream's own
    wheel can be audited too.
    """
    reports = []
    for wheel in wheels:
        wanted = Wanted(patchset=patchset, platform=_platform(session, wheel), source=source, arch=arch)
        job = _job(session, wanted, wheel)
        report = audit(wheel.absolute(), job.expectation(_changes(job, wheel)))
        reports.append(report)
        if not session.as_json:
            _show(report)
    if session.as_json:
        print_json([report.to_json() for report in reports])
    for report in reports:
        report.require()
        skipped = [check.name for check in report.checks if check.verdict == "skipped"]
        if skipped and report.kind != "upstream" and not allow_skipped:
            raise AuditError(
                f"{report.filename} was not checked in full",
                because=f"{', '.join(skipped)} need the merge that it was made from, "
                "and this checkout describes another point",
                next_step="check out the commit that it was built from, or accept that with --allow-skipped",
            )


def _platform(session: Session, wheel: Path) -> str:
    """The lock's platform that *wheel* is for, by its tags."""
    tags = ".".join(parse_name(wheel.name).tags)
    for platform in session.checkout.lock.wheels:
        if tags.endswith(platform):
            return platform
    raise WheelError(
        f"{wheel.name} cannot be audited",
        because="upstream.lock has no wheel for its platform",
        next_step=f"the lock knows: {', '.join(session.checkout.lock.wheels)}",
    )


def _job(session: Session, wanted: Wanted, wheel: Path) -> Job:
    """The job of the point that *wheel* says it is of, with upstream's kernels or with native ones."""
    job = session.job(replace(wanted, kernels="upstream", arch=""))
    if session.checkout.lock.native is None or parse_name(wheel.name).version == job.version:
        return job
    native = session.job(replace(wanted, kernels="native"))
    return native if parse_name(wheel.name).version == native.version else job


def _changes(job: Job, wheel: Path) -> dict[str, bytes | None] | None:
    """What the merge changed, if *wheel* is of the point that the checkout describes."""
    if parse_name(wheel.name).version != job.version:
        return None
    return job.changes(
        merge_patchset(job.repository, job.merge_request(job.pristine, job.point.lock.release.version))
    )


def _show(report: AuditReport) -> None:
    rows = [(check.name, check.verdict, check.detail) for check in report.checks]
    show_table(("check", "verdict", "found"), rows, title=report.filename)
    verdict = "passed" if report.passed else "FAILED"
    click.echo(
        f"{verdict} in {human_seconds(report.seconds)}: {human_size(report.size)}, sha256 {report.sha256}"
    )
