"""``sparkwright lock``: check ``upstream.lock``, or move it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import click
from msgspec import structs

from sparkwright.base.config import to_builtins
from sparkwright.cli.command import Group, Part, Result, Table, taking
from sparkwright.cli.session import Session, run_in_clone, run_in_session
from sparkwright.engine.offered import built_wheel, present_specs
from sparkwright.engine.runtime import requirements_of, resolve_runtime
from sparkwright.lock.bump import rewrite
from sparkwright.lock.check import check, check_native, disagreement, flatten, require_native, unconfirmed
from sparkwright.lock.runtime import (
    LockedRuntime,
    format_runtime,
    joined_requirements,
    read_runtime,
    runtime_name,
)
from sparkwright.pipeline.checkout import new_checkout, require_fit
from sparkwright.pipeline.moves import learn, move_lock
from sparkwright.pipeline.options import DEFAULT_PLATFORM, TargetOptions
from sparkwright.pipeline.pins import is_release, pin_of
from sparkwright.publish.index import dist_folder
from sparkwright.store.disk import write_atomically
from sparkwright.upstream.commits import gather_commit
from sparkwright.upstream.evidence import gather, gather_cuda


@click.group("lock", cls=Group)
def command() -> None:
    """Check upstream.lock against the release itself, or move it to another release or commit."""


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
    lock, access = session.checkout.lock, session.access
    if lock.sdist is None:
        pristine = session.source(source or "git").pristine(lock)
        evidence = gather_commit(access, lock.release.commit, pristine.tree, lock.wheels)
    else:
        confirmed = session.source(source).pristine(lock) if source else session.source("git").known(lock)
        evidence = gather(access, lock, pristine=confirmed)
    findings = [*check(lock, evidence), *check_native(lock, gather_cuda(access, lock))]
    rest = unconfirmed(lock, evidence)
    checked = len(flatten(lock)) - bool(rest)
    described = {
        "values": checked,
        "unconfirmed": rest,
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
    if rest:
        stated = lock.release.commit.removesuffix(rest)
        parts.append(
            f"unconfirmed: release.commit is {stated or 'nothing'} by the release's own files; the other "
            f"{len(rest)} digits, {rest}, were not confirmed by any repository"
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


@command.command("runtime")
@click.option(
    "--platform",
    "machines",
    multiple=True,
    help="Lock for this machine only; may be repeated. By default for every machine that the lock has.",
)
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="REQUIREMENT",
    help="Count this instead of what any package requires of the same project. It is recorded, and "
    "counts the next time too, until its line is removed from the file.",
)
@click.option(
    "--with",
    "extras",
    multiple=True,
    metavar="REQUIREMENT",
    help="Lock this on top of what the wheel requires, for models that need it. It is recorded likewise.",
)
@click.option("--dry-run", is_flag=True, help="Show the changes and write nothing.")
@taking("series")
@run_in_clone
def runtime(
    session: Session,
    *,
    machines: tuple[str, ...],
    overrides: tuple[str, ...],
    extras: tuple[str, ...],
    dry_run: bool,
) -> Result:
    """Resolve what the series' wheels in dist/ require, and write every package by version and digests.

    One file for each machine, beside the series' patchset, in pip's format and without the name of any index.
    'sparkwright publish' puts it beside each wheel, and 'sparkwright serve' installs by it. uv resolves
    it, for any machine and without downloading packages.
    """
    checkout = session.checkout
    dist = dist_folder(checkout.root)
    described: dict[str, object] = {}
    parts: list[Part] = []
    for machine in machines or tuple(sorted(checkout.lock.wheels)):
        specs = present_specs(checkout.root, machine)
        wheel = built_wheel(dist, machine, (checkout.series,), specs).wheel
        path = checkout.patchsets / runtime_name(checkout.series, machine)
        before = read_runtime(path) if path.is_file() else None
        runtime = resolve_runtime(
            requirements_of(wheel),
            machine,
            offline=session.offline,
            overrides=joined_requirements(before.overrides if before else (), overrides),
            extras=joined_requirements(before.extras if before else (), extras),
        )
        if not dry_run:
            text = format_runtime(runtime, release=checkout.lock.release.version, machine=machine)
            write_atomically(path, text.encode())
        changes, columns = _changes(before, runtime), ("name", "old", "new")
        described[str(path)] = {
            "packages": len(runtime.packages),
            "sha256": runtime.digest,
            "changes": [dict(zip(columns, change, strict=True)) for change in changes],
        }
        if before is not None and changes:
            parts.append(Table(columns, changes))
        parts.append(f"{'would write' if dry_run else 'wrote'}    {path}")
        parts.append(("packages", f"{len(runtime.packages)}, sha256 {runtime.digest}"))
    return Result(described, parts)


def _versions(runtime: LockedRuntime | None) -> dict[str, str]:
    """Return the versions of each package, joined where markers choose between several."""
    found: dict[str, str] = {}
    for package in runtime.packages if runtime is not None else ():
        found[package.name] = ", ".join(filter(None, (found.get(package.name), package.version)))
    return found


def _changes(before: LockedRuntime | None, after: LockedRuntime) -> list[tuple[str, str, str]]:
    old, new = _versions(before), _versions(after)
    return [
        (name, old.get(name, "-"), new.get(name, "-"))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
