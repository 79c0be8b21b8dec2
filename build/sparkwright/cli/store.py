"""``sparkwright store``: show, verify and prune the store."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

import click

from sparkwright.base.errors import FetchError
from sparkwright.base.text import human_size
from sparkwright.cli.globals import Group
from sparkwright.cli.output import print_json
from sparkwright.cli.session import Session, begin_repository_again, run_read_only
from sparkwright.cli.tables import show_table
from sparkwright.store.survey import KindTotal


@click.group("store", cls=Group)
def command() -> None:
    """Show, verify and prune the store."""


@command.command("verify")
@click.option("--remove", is_flag=True, help="Remove damaged entries; they are remade when needed.")
@run_read_only
def verify_command(session: Session, *, remove: bool) -> None:
    """Hash every file, read every record and name, and check git's objects."""
    from sparkwright.git import unsoundness
    from sparkwright.store.verify import StoreFault, remove_faults, require_sound, verify

    files = verify(session.store)
    why = unsoundness(session.repository)
    faults = [*files, *([StoreFault(session.store.git, why)] if why else [])]
    if remove:
        remove_faults(files)
    if remove and why:
        begin_repository_again(session, why)
    if session.as_json:
        damaged = [{"path": str(fault.path), "why": fault.why} for fault in faults]
        print_json({"store": str(session.store.home), "damaged": damaged, "removed": remove})
    elif faults:
        places = [(str(fault.path.relative_to(session.store.home)), fault.why) for fault in faults]
        show_table(("damaged", "why"), places)
        if remove:
            click.echo(f"removed  {len(faults)}; missing entries are fetched or made again")
    else:
        click.echo("the store is sound")
    if not remove:
        require_sound(faults)


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
) -> None:
    """Remove the least recently used entries.

    Entries that a running command has used stay. Removed entries are fetched or made again when
    needed. Git's objects are not removed.
    """
    from sparkwright.store.prune import PruneLimits, prune
    from sparkwright.store.survey import survey, totals

    if older_than is None and keep_size is None:
        raise click.UsageError("Give --older-than, --keep-size, or both.")
    limits = PruneLimits(older_than, None if keep_size is None else int(keep_size * (1 << 30)))
    entries = survey(session.store, session.logs)
    done = prune(session.store, entries, limits, run=session.run, dry=dry_run)
    removed, in_use = totals(done.removed), totals(done.in_use)
    if session.as_json:
        print_json(
            {
                "dry-run": dry_run,
                "removed": _described(removed),
                "in-use": _described(in_use),
                "kept": done.kept,
            }
        )
        return
    if removed:
        rows = [(total.kind, str(total.count), human_size(total.size), _day(total.used)) for total in removed]
        show_table(("would remove" if dry_run else "removed", "count", "size", "last used"), rows)
    else:
        click.echo("nothing to remove")
    if in_use:
        kept = ", ".join(f"{total.count} {total.kind} ({human_size(total.size)})" for total in in_use)
        click.echo(f"in use   {kept}: kept for running commands")
    click.echo(f"kept     {human_size(done.kept)} in {session.store.home}")


@command.command("status")
@run_read_only
def status_command(session: Session) -> None:
    """Show where the store is, what takes how much, and if its remote tier can be read and written.

    A small object is written there and read back. The key is this machine's public one, made on first use,
    for the store.toml of other machines.
    """
    import os

    from sparkwright.store.remote import RemoteTier
    from sparkwright.store.remote.keys import require_key
    from sparkwright.store.remote.settings import key_file
    from sparkwright.store.survey import survey, totals

    settings = session.remote_settings()
    kinds = totals(survey(session.store, session.logs))
    described: dict[str, object] = {
        "store": str(session.store.home),
        "kinds": _described(kinds),
        "key": require_key(key_file(os.environ)).public.text,
        "remote": None,
    }
    if settings is None:
        _show_described(session, described, kinds)
        return
    session.require_network("the remote store's state")
    found = RemoteTier(settings).examine()
    described["remote"] = found
    _show_described(session, described, kinds)
    faults = [state for state in (found["read"], found["write"]) if state not in {"yes", "off"}]
    if faults:
        raise FetchError(
            f"the remote store {settings.url} cannot be used",
            because=str(faults[0]),
            next_step="check its address and your credentials; builds go on without it",
        )


def _show_described(session: Session, described: dict[str, object], kinds: list[KindTotal]) -> None:
    if session.as_json:
        print_json(described)
        return
    sizes = [(total.kind, str(total.count), human_size(total.size), _day(total.used)) for total in kinds]
    sizes.append(("all", str(sum(t.count for t in kinds)), human_size(sum(t.size for t in kinds)), ""))
    show_table(("kind", "count", "size", "last used"), sizes)
    remote = described["remote"]
    rows = [
        ("store", described["store"]),
        ("key", described["key"]),
        ("remote", "none: --store URL, or store.toml, names one"),
    ]
    if isinstance(remote, dict):
        rows[2:] = [(name, value) for name, value in remote.items() if value != ""]
    for name, value in rows:
        click.echo(f"{name:<10} {', '.join(value) if isinstance(value, list) else value}")


def _described(found: list[KindTotal]) -> list[dict[str, object]]:
    return [{**asdict(total), "used": _moment(total.used).isoformat()} for total in found]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=0)


def _day(seconds: float) -> str:
    return _moment(seconds).strftime("%Y-%m-%d %H:%M")
