"""``sparkwright store``: show, verify and prune the store."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import UTC, datetime

import click

from sparkwright.base.errors import FetchError
from sparkwright.base.text import human_size
from sparkwright.cli.command import Group, Part, Result, Table
from sparkwright.cli.session import Session, run_read_only
from sparkwright.git.soundness import begin_again, unsoundness
from sparkwright.store.remote.client import key_file
from sparkwright.store.remote.entries import public_of, require_key
from sparkwright.store.remote.tier import open_tier
from sparkwright.store.upkeep import (
    KindTotal,
    StoreFault,
    prune,
    remove_faults,
    survey,
    totals,
    unsound,
    verify,
)

_COLUMNS = ("count", "size", "last used")


@click.group("store", cls=Group)
def command() -> None:
    """Show, verify and prune the store."""


@command.command("verify")
@click.option("--remove", is_flag=True, help="Remove damaged entries; they are remade when needed.")
@run_read_only
def verify_command(session: Session, *, remove: bool) -> Result:
    """Hash every file, read every record and name, and check git's objects."""
    files = verify(session.store)
    why = unsoundness(session.repository)
    faults = [*files, *([StoreFault(session.store.git, why)] if why else [])]
    if remove:
        remove_faults(files)
    if remove and why:
        begin_again(session.store, session.repository, session.run, why)
    damaged = [{"path": str(fault.path), "why": fault.why} for fault in faults]
    rows = [(str(fault.path.relative_to(session.store.home)), fault.why) for fault in faults]
    parts: list[Part] = [Table(("damaged", "why"), rows)] if faults else ["the store is sound"]
    if remove and faults:
        parts.append(("removed", f"{len(faults)}; missing entries are fetched or made again"))
    described = {"store": str(session.store.home), "damaged": damaged, "removed": remove}
    return Result(described, parts, None if remove else unsound(faults))


@command.command("prune")
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="Remove entries, and event logs, that were not used for so many days.",
)
@click.option(
    "--keep-size",
    type=click.FloatRange(min=0),
    metavar="GB",
    help="Remove the least recently used entries until the store has so many GiB.",
)
@click.option("--dry-run", is_flag=True, help="Show the entries to remove, and remove nothing.")
@run_read_only
def prune_command(
    session: Session, *, older_than: float | None, keep_size: float | None, dry_run: bool
) -> Result:
    """Remove the least recently used entries.

    Entries that a running command has used stay. Removed entries are fetched or made again when
    needed. Git's objects are not removed.
    """
    if older_than is None and keep_size is None:
        raise click.UsageError("Give --older-than, --keep-size, or both.")
    size = None if keep_size is None else int(keep_size * (1 << 30))
    entries = survey(session.store, session.logs)
    done = prune(session.store, entries, days=older_than, size=size, run=session.run, dry=dry_run)
    removed, in_use = totals(done.removed), totals(done.in_use)
    parts: list[Part] = ["nothing to remove"]
    if removed:
        parts = [Table(("would remove" if dry_run else "removed", *_COLUMNS), list(map(_row, removed)))]
    if in_use:
        kept = ", ".join(f"{total.count} {total.kind} ({human_size(total.size)})" for total in in_use)
        parts.append(("in use", f"{kept}: kept for running commands"))
    parts.append(("kept", f"{human_size(done.kept)} in {session.store.home}"))
    described = {"removed": _described(removed), "in-use": _described(in_use), "kept": done.kept}
    return Result({"dry-run": dry_run, **described}, parts)


@command.command("status")
@run_read_only
def status_command(session: Session) -> Result:
    """Show where the store is, what takes how much, and if its remote tier can be read and written.

    A small object is written there and read back. The key is this machine's public one, made on first use,
    for the store.toml of other machines.
    """
    kinds = totals(survey(session.store, session.logs))
    sizes = [*map(_row, kinds)]
    sizes.append(("all", str(sum(t.count for t in kinds)), human_size(sum(t.size for t in kinds)), ""))
    key, failure, remote = public_of(require_key(key_file(os.environ))).text, None, None
    tier = open_tier(session.store_url)
    rows: list[tuple[str, object]] = [("remote", "none: --store URL, or store.toml, names one")]
    if tier is not None:
        session.require_network("the remote store's state")
        remote = tier.examine()
        rows = [
            (name, ", ".join(value) if isinstance(value, list) else value) for name, value in remote.items()
        ]
        if faults := [state for state in (remote["read"], remote["write"]) if state not in {"yes", "off"}]:
            failure = FetchError(
                f"the remote store {tier.settings.url} cannot be used",
                because=str(faults[0]),
                next_step="check its address and your credentials; builds go on without it",
            )
    return Result(
        {"store": str(session.store.home), "kinds": _described(kinds), "key": key, "remote": remote},
        [Table(("kind", *_COLUMNS), sizes), ("store", session.store.home), ("key", key), *rows],
        failure,
    )


def _row(total: KindTotal) -> tuple[str, str, str, str]:
    used = _moment(total.used).strftime("%Y-%m-%d %H:%M")
    return total.kind, str(total.count), human_size(total.size), used


def _described(found: list[KindTotal]) -> list[dict[str, object]]:
    return [{**asdict(total), "used": _moment(total.used).isoformat()} for total in found]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=0)
