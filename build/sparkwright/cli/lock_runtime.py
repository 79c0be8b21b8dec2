"""``sparkwright lock runtime``: lock what a series' wheels run with."""

from __future__ import annotations

import click

from sparkwright.cli.globals import Command, taking
from sparkwright.cli.result import Part, Result, Table
from sparkwright.cli.session import Session, run_in_clone
from sparkwright.lock.runtime import LockedRuntime
from sparkwright.store import write_atomically


@click.command("runtime", cls=Command)
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
def command(
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
    from sparkwright.engine.offered import built_wheel, present_specs
    from sparkwright.engine.runtime import requirements_of, resolve_runtime
    from sparkwright.lock.runtime import format_runtime, joined_requirements, read_runtime, runtime_name
    from sparkwright.publish import dist_folder

    checkout = session.checkout
    dist = dist_folder(checkout.root)
    told = {}
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
        told[path] = (before, runtime)
    parts: list[Part] = []
    for path, (before, runtime) in told.items():
        if before is not None and (changes := _changes(before, runtime)):
            parts.append(Table(("package", "old", "new"), changes))
        parts.append(f"{'would write' if dry_run else 'wrote'}    {path}")
        parts.append(("packages", f"{len(runtime.packages)}, sha256 {runtime.digest}"))
    return Result({str(path): _described(*pair) for path, pair in told.items()}, parts)


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


def _described(before: LockedRuntime | None, after: LockedRuntime) -> dict[str, object]:
    changes = [dict(zip(("name", "old", "new"), change, strict=True)) for change in _changes(before, after)]
    return {"packages": len(after.packages), "sha256": after.digest, "changes": changes}
