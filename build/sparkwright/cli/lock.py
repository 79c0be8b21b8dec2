"""``sparkwright lock``: check ``upstream.lock``, or move it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from sparkwright.base.config import to_builtins
from sparkwright.cli.globals import Group, taking
from sparkwright.cli.lock_runtime import command as runtime_command
from sparkwright.cli.options import tree_options
from sparkwright.cli.output import print_json
from sparkwright.cli.session import Session, run_in_clone, run_in_session
from sparkwright.cli.tables import show_table
from sparkwright.lock import Bumped, require_native
from sparkwright.lock.bump import rewrite
from sparkwright.pipeline.checkout import Checkout, new_checkout, require_fit
from sparkwright.pipeline.options import TargetOptions
from sparkwright.pipeline.pins import pin_of
from sparkwright.store import write_atomically
from sparkwright.upstream import Access, gather, gather_commit, gather_cuda, read_settings


@click.group("lock", cls=Group)
def command() -> None:
    """Check upstream.lock against the release itself, or move it to another release or commit."""


command.add_command(runtime_command)


def _access(session: Session) -> Access:
    return Access(session.store, session.repository, read_settings(offline=session.offline))


@command.command("check")
@click.option(
    "--source",
    default="",
    help="Confirm the commit with this too: git, a repository's address, or a clone. By default, with the "
    "tag at the address that the lock names, and with the store.",
)
@taking("series")
@run_in_session
def check_command(session: Session, *, source: str) -> None:
    """Compare every value of upstream.lock with the sdist or the commit, the wheels, the tree, and torch.

    A release contains nine digits of its commit. The others are confirmed by git, or reported as unconfirmed.
    """
    from sparkwright.lock.check import check, flatten, require_agreement, unconfirmed
    from sparkwright.lock.coherence import check_native

    lock, access = session.checkout.lock, _access(session)
    if lock.sdist is None:
        pristine = session.source(source or "git").pristine(lock)
        evidence = gather_commit(access, lock.release.commit, pristine.tree, lock.wheels)
    else:
        confirmed = session.source(source).pristine(lock) if source else session.source("git").known(lock)
        evidence = gather(access, lock, pristine=confirmed)
    findings = [*check(lock, evidence), *check_native(lock, gather_cuda(access, lock))]
    open_ends = unconfirmed(lock, evidence)
    checked = len(flatten(lock)) - len(open_ends)
    if session.as_json:
        print_json(
            {
                "values": checked,
                "unconfirmed": [item._asdict() for item in open_ends],
                "unverified": sorted(lock.native.unverified) if lock.native else [],
                "findings": [finding._asdict() for finding in findings],
            }
        )
    elif not findings:
        native = "; the [native] tables fit it, torch and each other" if lock.native else ""
        name, release = session.checkout.lock_name, lock.release.version
        click.echo(f"{name} agrees with vllm {release}: {checked} values checked{native}")
        for item in open_ends:
            click.echo(
                f"unconfirmed: {item.key} is {item.stated or 'nothing'} by the release's own files; "
                f"the other {len(item.rest)} digits, {item.rest}, were not confirmed by any repository"
            )
            session.show_next("sparkwright lock check --source git, or an address, or a clone")
        for name, ref in (lock.native.unverified if lock.native else {}).items():
            click.echo(f"unverified: native.sources.{name}.tree is of plain files, not compared with {ref}")
    else:
        rows = [
            (item.key, item.locked or "-", item.released or "-", item.because or item.witness)
            for item in findings
        ]
        show_table(("key", "the lock", "the release", "found in"), rows)
    require_agreement(findings)


@command.command("pin")
@click.argument("target")
@click.option("--write", is_flag=True, help="Write upstream.lock; by default, the changes are shown only.")
@click.option(
    "--source",
    default="git",
    show_default=True,
    help="Origin of commits: git, a repository's address, or a clone.",
)
@click.option(
    "--new-series",
    default="",
    metavar="SERIES",
    help="Write the lock of a new series, beside its patchset; this series' lock stays as it is.",
)
@click.option(
    "--platform", "machines", multiple=True, help="Pin the wheel for this machine only; may be repeated."
)
@taking("series")
@run_in_clone
def pin(
    session: Session, *, target: str, write: bool, source: str, new_series: str, machines: tuple[str, ...]
) -> None:
    """Pin TARGET: a release's version, the full id of a commit, or nightly, the newest commit with a wheel.

    Wheels of commits come from upstream's index of wheels by commit, which states no digests: the digest of
    the first download counts from then on. A commit without a wheel takes that of an ancestor with the same
    native inputs.
    """
    old = session.checkout
    checkout = new_checkout(old, new_series) if new_series else old
    lock = pin_of(checkout, _access(session), target, source=source, machines=machines)
    require_fit(lock, checkout.lock_path)
    path = checkout.lock_path
    bumped = rewrite(old.lock_path.read_text(encoding="utf-8"), lock)
    if write:
        write_atomically(path, bumped.text.encode())
    if session.as_json:
        pinned = {key: value for key, value in to_builtins(lock).items() if key not in {"native", "sources"}}
        print_json({"pin": pinned, **_described(bumped), "path": str(path) if write else None})
        return
    _show_changes(bumped)
    click.echo(f"{'wrote' if write else 'would write'}    {path}")
    words = ["sparkwright wheel" if write else f"sparkwright lock pin {target} --write"]
    words += [f"--new-series {new_series}"] if new_series and not write else []
    words += [] if source == "git" or lock.sdist else ["--source", shlex.quote(source)]
    words += [f"--platform {machine}" for machine in machines[: 1 if write else None]]
    session.show_next(" ".join(words), checkout if write else old)


def _described(bumped: Bumped) -> dict[str, Any]:
    return {
        "changes": [change._asdict() for change in bumped.changes],
        "notes": list(bumped.notes),
        "decisions": [decision._asdict() for decision in bumped.decisions],
    }


def _show_changes(bumped: Bumped) -> None:
    show_table(
        ("key", "old", "new"), [(item.key, item.old or "-", item.new or "-") for item in bumped.changes]
    )
    for note in bumped.notes:
        click.echo(f"note     {note}")


@command.command("learn")
@click.option("--dry-run", is_flag=True, help="Show the changes and write nothing.")
@tree_options
@run_in_clone
def learn_command(session: Session, *, dry_run: bool, target: TargetOptions) -> None:
    """Write [native.binaries] and [native.costs] of the lock, from what was compiled for it.

    Run it after `sparkwright wheel --kernels native`, on the machine that compiled: cubins are read from the
    ELF files, costs from the store. Nothing is compiled.
    """
    from sparkwright.pipeline.learning import learn

    checkout, lock = session.checkout, session.checkout.lock
    require_native(lock)
    native, decisions = learn(session.job(replace(target, kernels="native")))
    bumped = rewrite(checkout.lock_path.read_text(encoding="utf-8"), structs.replace(lock, native=native))
    _report(session, replace(bumped, decisions=decisions), checkout, dry_run=dry_run)


@command.command("bump")
@click.argument("version")
@click.option(
    "--copy",
    "copies",
    metavar="NAME=FOLDER",
    multiple=True,
    help="Take the tree of a dependency's source from here: a git repository that has the pinned "
    "commit, or its files; may be repeated.",
)
@click.option(
    "--new-series",
    default="",
    metavar="SERIES",
    help="Write the lock of a new series, beside its patchset; this series' lock stays as it is.",
)
@click.option("--dry-run", is_flag=True, help="Show the changes and write nothing.")
@taking("series")
@run_in_clone
def bump(session: Session, *, version: str, copies: tuple[str, ...], new_series: str, dry_run: bool) -> None:
    """Move the lock to VERSION, [native] included; comments and order stay.

    Toolkit packages follow from torch's own pins, sources and extensions from the release's CMake files.
    What a person has to decide is listed, with the command that shows why. Nothing is written on an error.
    """
    from sparkwright.pipeline.moves import move_lock

    old = session.checkout
    checkout = new_checkout(old, new_series) if new_series else old
    text = old.lock_path.read_text(encoding="utf-8")
    folders = dict(map(_named_folder, copies))
    bumped = move_lock(_access(session), text, version, copies=folders, series=new_series)
    require_fit(bumped.lock, checkout.lock_path)
    _report(session, bumped, checkout, dry_run=dry_run)


def _report(session: Session, bumped: Bumped, checkout: Checkout, *, dry_run: bool) -> None:
    """Write the new lock unless this is a *dry_run*, and show what changed and what is left to decide."""
    if not dry_run:
        write_atomically(checkout.lock_path, bumped.text.encode())
    if session.as_json:
        print_json(_described(bumped))
        return
    _show_changes(bumped)
    for decision in bumped.decisions:
        click.echo(f"decide   {decision.key}: {decision.why}")
        click.echo(f"         {decision.command}")
    click.echo(f"{'would write' if dry_run else 'wrote'}    {checkout.lock_path}")
    session.show_next("sparkwright lock check, then sparkwright merge", checkout)


def _named_folder(text: str) -> tuple[str, Path]:
    name, found, folder = text.partition("=")
    if not found or not Path(folder).is_dir():
        raise click.BadParameter(
            f"{text!r} is not NAME=FOLDER with a folder that exists", param_hint="--copy"
        )
    return name, Path(folder)
