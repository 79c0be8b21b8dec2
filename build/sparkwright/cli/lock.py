"""``sparkwright lock``: check ``upstream.lock``, or move it."""

from __future__ import annotations

import click

from sparkwright.cli.session import Session, common_options, print_json, run_in_session
from sparkwright.cli.tables import show_table
from sparkwright.plan.checkout import LOCK_NAME
from sparkwright.store import write_atomically
from sparkwright.upstream import Access, gather, gather_cuda, propose, read_settings

__all__ = ["command"]


@click.group("lock")
def command() -> None:
    """Check upstream.lock against the release itself, or move it to another release."""


def _access(session: Session) -> Access:
    return Access(session.store, session.repository, read_settings(offline=session.offline))


@command.command("check")
@common_options
@run_in_session
def check_command(session: Session) -> None:
    """Hold every value of upstream.lock against the sdist, the wheels, the tree, and torch."""
    from sparkwright.lock.check import check, flatten, require_agreement
    from sparkwright.lock.coherence import check_native

    lock, access = session.checkout.lock, _access(session)
    findings = [*check(lock, gather(access, lock)), *check_native(lock, gather_cuda(access, lock))]
    values = flatten(lock)
    if session.as_json:
        print_json({"values": len(values), "findings": [finding._asdict() for finding in findings]})
    elif not findings:
        native = "; the [native] tables fit it, torch and each other" if lock.native else ""
        said = f"upstream.lock says what vllm {lock.release.version} says: {len(values)} values checked"
        click.echo(said + native)
    else:
        rows = [(item.key, item.locked or "-", item.released or "-", item.witness) for item in findings]
        show_table(("key", "the lock", "the release", "says"), rows)
    require_agreement(findings)


@command.command("bump")
@click.argument("version")
@click.option("--dry-run", is_flag=True, help="Show the changes and write nothing.")
@common_options
@run_in_session
def bump(session: Session, *, version: str, dry_run: bool) -> None:
    """Move upstream.lock to VERSION, from what that release says; comments and order stay."""
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
