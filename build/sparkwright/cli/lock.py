"""``sparkwright lock``: check ``upstream.lock``, or move it."""

from __future__ import annotations

import click

from sparkwright.cli.output import print_json
from sparkwright.cli.session import Session, common_options, run_in_session
from sparkwright.cli.tables import show_table
from sparkwright.pipeline.checkout import LOCK_NAME
from sparkwright.store import write_atomically
from sparkwright.upstream import Access, gather, gather_cuda, propose, read_settings


@click.group("lock")
def command() -> None:
    """Check upstream.lock against the release itself, or move it to another release."""


def _access(session: Session) -> Access:
    return Access(session.store, session.repository, read_settings(offline=session.offline))


@command.command("check")
@click.option(
    "--source",
    default="",
    help="Confirm the commit with this too: git, a repository's address, or a clone. By default, with the "
    "tag at the address that the lock names, and with the store.",
)
@common_options
@run_in_session
def check_command(session: Session, *, source: str) -> None:
    """Compare every value of upstream.lock with the sdist, the wheels, the tree, and torch.

    A release contains nine digits of its commit. The others are confirmed by git, or reported as unconfirmed.
    """
    from sparkwright.lock.check import check, flatten, require_agreement, unconfirmed
    from sparkwright.lock.coherence import check_native

    lock, access = session.checkout.lock, _access(session)
    pristine = session.source(source).pristine(lock) if source else session.source("git").known(lock)
    evidence = gather(access, lock, pristine=pristine)
    findings = [*check(lock, evidence), *check_native(lock, gather_cuda(access, lock))]
    open_ends = unconfirmed(lock, evidence)
    checked = len(flatten(lock)) - len(open_ends)
    if session.as_json:
        print_json(
            {
                "values": checked,
                "unconfirmed": [item._asdict() for item in open_ends],
                "findings": [finding._asdict() for finding in findings],
            }
        )
    elif not findings:
        native = "; the [native] tables fit it, torch and each other" if lock.native else ""
        click.echo(f"upstream.lock agrees with vllm {lock.release.version}: {checked} values checked{native}")
        for item in open_ends:
            click.echo(
                f"unconfirmed: {item.key} is {item.stated or 'nothing'} by the release's own files; "
                f"the other {len(item.rest)} digits, {item.rest}, were not confirmed by any repository"
            )
            click.echo("next     sparkwright lock check --source git, or an address, or a clone")
    else:
        rows = [
            (item.key, item.locked or "-", item.released or "-", item.because or item.witness)
            for item in findings
        ]
        show_table(("key", "the lock", "the release", "found in"), rows)
    require_agreement(findings)


@command.command("bump")
@click.argument("version")
@click.option("--dry-run", is_flag=True, help="Show the changes and write nothing.")
@common_options
@run_in_session
def bump(session: Session, *, version: str, dry_run: bool) -> None:
    """Move upstream.lock to VERSION, with the values of that release; comments and order stay."""
    path = session.checkout.root / LOCK_NAME
    bumped = propose(_access(session), path.read_text(encoding="utf-8"), version)
    if not dry_run:
        write_atomically(path, bumped.text.encode())
    if session.as_json:
        print_json({"changes": [change._asdict() for change in bumped.changes], "notes": list(bumped.notes)})
        return
    show_table(
        ("key", "old", "new"), [(item.key, item.old or "-", item.new or "-") for item in bumped.changes]
    )
    for note in bumped.notes:
        click.echo(f"note     {note}")
    click.echo(f"{'would write' if dry_run else 'wrote'}    {path}")
    click.echo("next     sparkwright lock check, then sparkwright merge")
