"""``sparkwright audit``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from sparkwright.base.errors import AuditError
from sparkwright.base.text import human_seconds, human_size
from sparkwright.cli.companion import audit_by_its_list, companion_parts
from sparkwright.cli.globals import Command, takes
from sparkwright.cli.result import Part, Result, Table
from sparkwright.cli.session import Session, run_in_session
from sparkwright.companion.inspection import CompanionAudit
from sparkwright.companion.wheel import is_companion
from sparkwright.native.device_code import KernelClass, Tally
from sparkwright.pipeline.expected_record import expectation_of
from sparkwright.pipeline.options import TargetOptions
from sparkwright.publish.evidence import attach_audit
from sparkwright.publish.index import dist_folder
from sparkwright.wheel.audit import AuditReport, audit


@click.command("audit", cls=Command)
@click.argument(
    "wheels", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False)
)
@click.option("--source", default="index", show_default=True, help="Origin of upstream's tree.")
@click.option(
    "--allow-skipped",
    is_flag=True,
    help="Accept a wheel of another build spec, or with binaries compiled elsewhere, with checks skipped.",
)
@click.option("--arch", default="", help="Judge kernels for this card, such as 12.1a; the lock's by default.")
@takes("patchset")
@run_in_session
def command(
    session: Session,
    *,
    wheels: tuple[Path, ...],
    patchset: str,
    source: str,
    allow_skipped: bool,
    arch: str,
) -> Result:
    """Compare WHEELS with upstream's and with the merge.

    The merge is repeated, so that no record inside a wheel is trusted: it only says which series' lock the
    wheel is compared with. Upstream's own wheel can be audited too. A wheel of FlashInfer's kernels has to be
    whole, for one machine and one card, and without an undefined symbol.
    """
    options = TargetOptions(patchset=patchset, source=source, arch=arch)
    reports = [_audited(session, wheel, options) for wheel in wheels]
    for report in reports:
        attach_audit(dist_folder(session.checkout.folder).absolute(), report)
    failures = (_failure(report, allow_skipped=allow_skipped) for report in reports)
    return Result(
        [report.to_json() for report in reports],
        [part for report in reports for part in _shown(report)],
        next(filter(None, failures), None),
    )


def _audited(session: Session, wheel: Path, options: TargetOptions) -> AuditReport | CompanionAudit:
    if is_companion(wheel.name):
        return audit_by_its_list(session, wheel)
    own = session.of_wheel(wheel)
    return audit(wheel.absolute(), expectation_of(wheel, options, own.checkout.lock, own.job))


def _failure(report: AuditReport | CompanionAudit, *, allow_skipped: bool) -> AuditError | None:
    try:
        report.require()
    except AuditError as error:
        return error
    if isinstance(report, AuditReport) and report.unchecked and not allow_skipped:
        return _unchecked(report)
    return None


def _unchecked(report: AuditReport) -> AuditError:
    """Return the error for a wheel that failed no check, but skipped some."""
    skipped = [check.name for check in report.checks if check.verdict == "skipped"]
    because = [f"{check.name} is unverified: {check.detail}" for check in report.unverified]
    if names := [name for name in report.unchecked if name in skipped]:
        because.append(
            f"{', '.join(names)} could not run: they need the merge that it was made from, and this checkout "
            "describes another build spec, or tools that the lock does not name"
        )
    return AuditError(
        f"{report.filename} was not checked in full",
        because="; ".join(because),
        next_step="check out the commit that it was built from and audit it where its kernels were compiled, "
        "or accept that with --allow-skipped",
    )


def _shown(report: AuditReport | CompanionAudit) -> Iterator[Part]:
    if isinstance(report, CompanionAudit):
        yield from companion_parts(report)
        return
    if report.binaries:
        yield _binaries(report)
    rows = [(check.name, check.verdict, check.detail) for check in report.checks]
    yield Table(("check", "verdict", "found"), rows, title=report.filename)
    verdict = "passed" if report.passed else "FAILED" if report.failures else "NOT VERIFIED"
    yield f"{verdict} in {human_seconds(report.seconds)}: {human_size(report.size)}, sha256 {report.sha256}"


def _binaries(report: AuditReport) -> Table:
    """Return the kernels of each binary by what the card can run."""
    headings = ("binary", "size", "packed", *KernelClass, "cubins and PTX")
    rows = [
        (
            one.member,
            human_size(one.size),
            human_size(one.packed),
            *_counts(one.kernels),
            ", ".join(f"{count} {arch}" for arch, count in {**one.cubins, **one.ptx}.items())
            or "host code only",
        )
        for one in report.binaries
    ]
    packed = sum(one.packed for one in report.binaries)
    total = sum(one.size for one in report.binaries)
    rows.append(
        ("all", human_size(total), human_size(packed), *_counts(report.kernels), _shares(report.kernels))
    )
    return Table(headings, rows, title=f"kernels of {report.filename} on {report.arch}")


def _counts(tally: Tally) -> list[str]:
    return [str(tally.count(kind)) if tally.total else "" for kind in KernelClass]


def _shares(tally: Tally) -> str:
    return ", ".join(f"{tally.share(kind):.1%} {kind}" for kind in KernelClass if tally.count(kind))
