"""``sparkwright companion``: FlashInfer's kernels, compiled ahead of time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparkwright.base.errors import CompanionError
from sparkwright.base.text import human_size
from sparkwright.cli.globals import Group, taking
from sparkwright.cli.options import out_option
from sparkwright.cli.output import print_json
from sparkwright.cli.session import WORK, Session, run_in_session, run_read_only
from sparkwright.cli.tables import show_table
from sparkwright.companion.inspection import CompanionAudit
from sparkwright.companion.make import MadeCompanion
from sparkwright.companion.model import CompanionSpec, load_companion
from sparkwright.engine.companions import LISTS
from sparkwright.lock import require_native
from sparkwright.native.model import Target
from sparkwright.pipeline.options import DEFAULT_PLATFORM
from sparkwright.publish import dist_folder, publish, wheels_in

_CHOICE = (
    click.option(
        "--recipe", "recipes", multiple=True, help="Only the kernels of this recipe; may be repeated."
    ),
    click.option("--module", "modules", multiple=True, help="This module besides; may be repeated."),
    click.option("--arch", default="", help="The card's architecture, such as 12.1a; the lock's by default."),
)


def _choice(function: Any) -> Any:
    for option in reversed(_CHOICE):
        function = option(function)
    return function


_OPEN = " (not compiled ahead: its arguments are not known)"


@click.group("companion", cls=Group)
def command() -> None:
    """Compile FlashInfer's kernels ahead of time, so that no request waits for a compiler."""


@command.command("build")
@_choice
@click.option(
    "--platform", default=DEFAULT_PLATFORM, show_default=True, help="The machine that the wheel is for."
)
@click.option(
    "--python",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Interpreter with torch, for FlashInfer's generators; the environment for probes by default.",
)
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Most compilers at once.")
@click.option("--keep-going", "-k", is_flag=True, help="Compile the other units when one fails.")
@click.option(
    "--cuda",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar="SPARKWRIGHT_CUDA",
    help="An installed CUDA toolkit, instead of the lock's packages.",
)
@out_option
@taking("series")
@run_in_session
def build(
    session: Session,
    *,
    recipes: tuple[str, ...],
    modules: tuple[str, ...],
    arch: str,
    platform: str,
    python: Path | None,
    jobs: int | None,
    keep_going: bool,
    cuda: Path | None,
    out: Path | None,
) -> None:
    """Compile the kernels that recipes need into a wheel, audit it, and list it in the index.

    Without --recipe or --module: those of every recipe. Units that were compiled before come from the store.
    """
    from sparkwright.companion.build import CompanionJob
    from sparkwright.companion.make import make_companion

    spec = _spec(session)
    target = _target(session, platform, arch)
    chosen = _chosen(spec, target.arch, recipes, modules)
    job = CompanionJob(
        access=session.access,
        lock=session.checkout.lock,
        spec=spec,
        target=target,
        modules=chosen,
        python=python.absolute() if python else _generators(session),
        logs=session.checkout.folder / WORK / "companion",
        jobs=jobs,
        keep_going=keep_going,
        cuda=cuda,
    )
    folder = dist_folder(session.checkout.folder, out).absolute()
    made = make_companion(job, folder)
    _attach(folder, made.audit)
    index = publish(wheels_in(folder), folder)
    left = [name for name in _chosen(spec, target.arch, recipes, modules, stated=False) if name not in chosen]
    if session.as_json:
        print_json(_summary(made) | {"index": index.url, "not_ahead": left})
        return
    _show_audit(made.audit)
    click.echo(f"wheel    {made.wheel.path}")
    click.echo(f"index    {index.url}")
    for name in left:
        click.echo(f"left     {name}: {spec.modules[name].why}{_OPEN}")
    click.echo("next     sparkwright serve RECIPE, which installs it with the locked runtime")


@command.command("list")
@_choice
@taking("series")
@run_read_only
def list_(session: Session, *, recipes: tuple[str, ...], modules: tuple[str, ...], arch: str) -> None:
    """Show the kernels of the series, what calls them, and the recipes that need them."""
    spec = _spec(session)
    target = _target(session, DEFAULT_PLATFORM, arch)
    chosen = _chosen(spec, target.arch, recipes, modules, stated=False)
    users = {name: [one for one, wanted in spec.recipes.items() if name in wanted] for name in chosen}
    ahead = {name: bool(spec.modules[name].generator) for name in chosen}
    if session.as_json:
        listed = {
            name: {"recipes": users[name], "why": spec.modules[name].why, "ahead": ahead[name]}
            for name in chosen
        }
        print_json({"flashinfer": spec.version, "modules": listed})
        return
    click.echo(f"FlashInfer {spec.version}, series {session.checkout.series}")
    rows = [
        (name, ", ".join(users[name]) or "none", spec.modules[name].why + ("" if ahead[name] else _OPEN))
        for name in chosen
    ]
    show_table(("module", "recipes", "called by"), rows)


@command.command("audit")
@click.argument("wheel", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@taking("series")
@run_in_session
def audit(session: Session, *, wheel: Path) -> None:
    """Check that WHEEL is whole, for one machine and one card, and without an undefined symbol.

    What passed is attached to its digest, as evidence for 'sparkwright channel promote'.
    """
    from sparkwright.companion.make import audited

    spec = _spec(session)
    _require_series(session, spec, wheel)
    report = audited(session.access, session.checkout.lock, spec, wheel)
    if session.as_json:
        print_json(_audit_summary(report))
    else:
        _show_audit(report)
    report.require()
    _attach(dist_folder(session.checkout.folder).absolute(), report)


def _chosen(
    spec: CompanionSpec, arch: str, recipes: tuple[str, ...], modules: tuple[str, ...], *, stated: bool = True
) -> list[str]:
    """Return the modules of *recipes*, names or files, and *modules*; see `CompanionSpec.chosen`.

    Raises:
        UnknownNameError: there is no such recipe or module.
    """
    from sparkwright.recipes import load_recipe

    names = [load_recipe(recipe).name for recipe in recipes]
    return spec.chosen(arch, recipes=names, modules=modules, stated=stated)


def _require_series(session: Session, spec: CompanionSpec, wheel: Path) -> None:
    """Refuse a companion of another series: it would be compared with libraries that it is not used with.

    Raises:
        ArchiveError, WheelError: see `read_companion`.
        CompanionError: it is for another FlashInfer than that of the list.
    """
    from sparkwright.companion.wheel import read_companion

    version = str(read_companion(wheel)["flashinfer"].get("version"))
    if version == spec.version:
        return
    lists = sorted((session.checkout.patchsets / LISTS).glob("*.toml"))
    own = next((path.stem for path in lists if load_companion(path).version == version), "")
    raise CompanionError(
        f"{wheel.name} is not a companion of series {session.checkout.series}",
        because=f"it is for FlashInfer {version}, and the series has {spec.version}",
        next_step=f"sparkwright companion audit {wheel} --series {own}"
        if own
        else "audit it with a checkout whose list has that FlashInfer",
    )


def _attach(dist: Path, report: CompanionAudit) -> None:
    from sparkwright.publish.evidence import attach

    detail = {"checks": {one.name: one.verdict for one in report.checks}, "unchecked": []}
    attach(dist, "audit", report.sha256, detail)


def _spec(session: Session) -> CompanionSpec:
    return load_companion(session.checkout.patchsets / LISTS / f"{session.checkout.series}.toml")


def _target(session: Session, platform: str, arch: str) -> Target:
    from sparkwright.native.model import Target

    return Target(platform, arch or require_native(session.checkout.lock).arch)


def _generators(session: Session) -> Path:
    """Return an interpreter with torch: that of the environment for probes, made if it is missing."""
    from sparkwright.probe.environment import prepare_environment

    return prepare_environment(session.store, offline=session.offline)


def _summary(made: MadeCompanion) -> dict[str, Any]:
    return {
        "path": str(made.wheel.path),
        "version": made.wheel.version,
        "sha256": made.wheel.sha256,
        "size": made.wheel.size,
        "audit": _audit_summary(made.audit),
    }


def _audit_summary(report: CompanionAudit) -> dict[str, Any]:
    return {
        "machine": report.target.machine,
        "arch": report.target.arch,
        "modules": {
            name: {"size": size, "cubins": report.cubins[name]} for name, size in report.modules.items()
        },
        "checks": {one.name: [one.verdict, one.detail] for one in report.checks},
    }


def _show_audit(report: CompanionAudit) -> None:
    rows = [(name, human_size(size), str(report.cubins[name])) for name, size in report.modules.items()]
    show_table(("module", "size", "cubins"), rows)
    show_table(("check", "verdict", "found"), [(one.name, one.verdict, one.detail) for one in report.checks])
    click.echo(f"size     {human_size(report.size)} ({report.size} bytes)")
    click.echo(f"sha256   {report.sha256}")
