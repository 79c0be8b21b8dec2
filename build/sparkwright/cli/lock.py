"""``sparkwright lock``: check ``upstream.lock``, or move it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import click
from msgspec import structs

from sparkwright.base.config import to_builtins
from sparkwright.cli.globals import Group, taking
from sparkwright.cli.lock_runtime import command as runtime_command
from sparkwright.cli.result import Part, Result, Table
from sparkwright.cli.session import Session, run_in_clone, run_in_session
from sparkwright.lock.bump import rewrite
from sparkwright.lock.check import require_native
from sparkwright.pipeline.checkout import new_checkout, require_fit
from sparkwright.pipeline.options import DEFAULT_PLATFORM, TargetOptions
from sparkwright.pipeline.pins import is_release, pin_of
from sparkwright.store import write_atomically
from sparkwright.upstream.commits import gather_commit
from sparkwright.upstream.evidence import gather, gather_cuda


@click.group("lock", cls=Group)
def command() -> None:
    """Check upstream.lock against the release itself, or move it to another release or commit."""


command.add_command(runtime_command)


@command.command("check")
@click.option(
    "--source",
    default="",
    help="Confirm the commit with this too: git, a repository's address, or a clone. By default, with the "
    "tag at the address that the lock names, and with the store.",
)
@taking("series")
@run_in_session
def check_command(session: Session, *, source: str) -> Result:
    """Compare every value of upstream.lock with the sdist or the commit, the wheels, the tree, and torch.

    A release contains nine digits of its commit. The others are confirmed by git, or reported as unconfirmed.
    """
    from sparkwright.lock.check import check, check_native, disagreement, flatten, unconfirmed

    lock, access = session.checkout.lock, session.access
    if lock.sdist is None:
        pristine = session.source(source or "git").pristine(lock)
        evidence = gather_commit(access, lock.release.commit, pristine.tree, lock.wheels)
    else:
        confirmed = session.source(source).pristine(lock) if source else session.source("git").known(lock)
        evidence = gather(access, lock, pristine=confirmed)
    findings = [*check(lock, evidence), *check_native(lock, gather_cuda(access, lock))]
    open_ends = unconfirmed(lock, evidence)
    checked = len(flatten(lock)) - len(open_ends)
    described = {
        "values": checked,
        "unconfirmed": [item._asdict() for item in open_ends],
        "findings": [finding._asdict() for finding in findings],
    }
    if findings:
        rows = [
            (one.key, one.locked or "-", one.released or "-", one.because or one.witness) for one in findings
        ]
        table = Table(("key", "the lock", "the release", "found in"), rows)
        return Result(described, [table], disagreement(findings))
    native = "; the [native] tables fit it, torch and each other" if lock.native else ""
    name, release = session.checkout.lock_name, lock.release.version
    parts: list[Part] = [f"{name} agrees with vllm {release}: {checked} values checked{native}"]
    for item in open_ends:
        parts.append(
            f"unconfirmed: {item.key} is {item.stated or 'nothing'} by the release's own files; "
            f"the other {len(item.rest)} digits, {item.rest}, were not confirmed by any repository"
        )
        parts.append(session.hint("sparkwright lock check --source git, or an address, or a clone"))
    return Result(described, parts)


@command.command("bump")
@click.argument("target", required=False, default="")
@click.option(
    "--keep-native", is_flag=True, help="Of a release: leave the [native] tables as they are, of the old one."
)
@click.option(
    "--copy",
    "copies",
    metavar="NAME=FOLDER",
    multiple=True,
    help="Take the tree of a dependency's source from this git repository, which has the pinned commit; may "
    "be repeated.",
)
@click.option(
    "--source",
    default="git",
    show_default=True,
    help="Origin of commits: git, a repository's address, or a clone.",
)
@click.option(
    "--platform", "machines", multiple=True, help="Pin the wheel for this machine only; may be repeated."
)
@click.option(
    "--new-series",
    default="",
    metavar="SERIES",
    help="Write the lock of a new series, beside its patchset; this series' lock stays as it is.",
)
@click.option(
    "--measure", is_flag=True, help="Without TARGET: write cubins and costs of what was compiled here."
)
@click.option("--dry-run", is_flag=True, help="Show the changes and write nothing.")
@taking("series")
@run_in_clone
def bump(
    session: Session,
    *,
    target: str,
    keep_native: bool,
    copies: tuple[str, ...],
    source: str,
    machines: tuple[str, ...],
    new_series: str,
    measure: bool,
    dry_run: bool,
) -> Result:
    """Move the lock to TARGET: a release's version, a commit's full id, or nightly; comments stay.

    Of a release, toolkit packages follow from torch's own pins, sources and extensions from its CMake files.
    What a person has to decide is listed, with the command that shows why. nightly is the newest commit with
    a wheel; the digest of its first download counts from then on.

    With --measure, [native.binaries] and [native.costs] are written from the ELF files and the store, after
    'sparkwright wheel --kernels native' on this machine. Nothing is written on an error.
    """
    from sparkwright.pipeline.moves import learn, move_lock

    if measure == bool(target):
        raise click.UsageError("Give a TARGET, or --measure.")
    old = session.checkout
    checkout = new_checkout(old, new_series) if new_series else old
    text = old.lock_path.read_text(encoding="utf-8")
    if measure:
        require_native(old.lock)
        options = TargetOptions(platform=next(iter(machines), DEFAULT_PLATFORM), kernels="native")
        native, decisions = learn(session.job(options))
        bumped = replace(rewrite(text, structs.replace(old.lock, native=native)), decisions=decisions)
    elif is_release(target) and not keep_native:
        folders = dict(map(_named_folder, copies))
        bumped = move_lock(session.access, text, target, copies=folders, series=new_series, machines=machines)
    else:
        lock = pin_of(checkout, session.access, target, source=source, machines=machines)
        bumped = rewrite(text, lock)
    require_fit(bumped.lock, checkout.lock_path)
    if not dry_run:
        write_atomically(checkout.lock_path, bumped.text.encode())
    again = "" if source == "git" or bumped.lock.sdist else f" --source {shlex.quote(source)}"
    pinned, changes = to_builtins(bumped.lock), [change._asdict() for change in bumped.changes]
    return Result(
        {
            "pin": {key: value for key, value in pinned.items() if key not in {"native", "sources"}},
            "changes": changes,
            "notes": list(bumped.notes),
            "decisions": [decision._asdict() for decision in bumped.decisions],
            "path": str(checkout.lock_path),
        },
        [
            Table.of(changes, {"key": "key", "old": "old", "new": "new"}),
            *(("note", note) for note in bumped.notes),
            *(
                part
                for one in bumped.decisions
                for part in (("decide", f"{one.key}: {one.why}"), ("", one.command))
            ),
            f"{'would write' if dry_run else 'wrote'}    {checkout.lock_path}",
            session.hint(f"sparkwright lock check{again}, then sparkwright merge{again}", checkout),
        ],
    )


def _named_folder(text: str) -> tuple[str, Path]:
    name, found, folder = text.partition("=")
    if not found or not Path(folder).is_dir():
        raise click.BadParameter(
            f"{text!r} is not NAME=FOLDER with a folder that exists", param_hint="--copy"
        )
    return name, Path(folder)
