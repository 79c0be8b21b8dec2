"""``sparkwright audit``, and ``sparkwright companion``: FlashInfer's kernels, compiled ahead of time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import AuditError, ConfigError, NotEnoughMemoryError
from sparkwright.base.machine import look
from sparkwright.base.text import human_seconds, human_size
from sparkwright.cli.command import Command, Part, Result, Table, takes, taking
from sparkwright.cli.options import FILE_TYPE, out_option
from sparkwright.cli.session import WORK, Session, run_in_session
from sparkwright.companion.build import CompanionJob, audited, make_companion, split_by_memory
from sparkwright.companion.inspection import CompanionAudit
from sparkwright.companion.model import CompanionSpec, KernelModule, ModuleCost, load_companion
from sparkwright.companion.wheel import is_companion, read_companion
from sparkwright.engine.flashinfer import LISTS, arch_of
from sparkwright.lock.check import require_native
from sparkwright.native.device_code import KernelClass, Tally
from sparkwright.native.model import Target
from sparkwright.native.schedule import gib
from sparkwright.pipeline.expected_record import expectation_of
from sparkwright.pipeline.options import DEFAULT_PLATFORM, TargetOptions
from sparkwright.probe.environment import prepare_environment
from sparkwright.publish.evidence import attach_audit
from sparkwright.publish.index import dist_folder, publish
from sparkwright.recipes.recipe import Recipe, load_recipe
from sparkwright.wheel.audit import AuditReport, audit

_ARCH = re.compile(r"\d{1,2}\.\d[af]?")
_CHECKED = ("check", "verdict", "found")
_OPEN = " (not compiled ahead: its arguments are not known)"
_LARGE = " (its units do not fit this machine)"


@click.command("companion", cls=Command)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show the kernels of each recipe, and what they take to compile; compile nothing.",
)
@click.option("--recipe", "names", multiple=True, help="Only the kernels of this recipe; may be repeated.")
@click.option("--module", "modules", multiple=True, help="This module besides; may be repeated.")
@click.option("--arch", default="", help="The card's architecture, such as 12.1a; the lock's by default.")
@click.option(
    "--platform", default=DEFAULT_PLATFORM, show_default=True, help="The machine that the wheel is for."
)
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Most compilers at once.")
@out_option
@taking("series")
@run_in_session
def companion_command(
    session: Session,
    *,
    dry_run: bool,
    names: tuple[str, ...],
    modules: tuple[str, ...],
    arch: str,
    platform: str,
    jobs: int | None,
    out: Path | None,
) -> Result:
    """Compile FlashInfer's kernels ahead of time into a wheel, so that no request waits for a compiler.

    Without --recipe or --module: those of every recipe. Units that were compiled before come from the store.
    Modules whose units need more memory than is free are left out, and named with the command that compiles
    them on a larger machine. The wheel is audited and listed in the index.
    """
    spec = load_companion(session.checkout.patchsets / LISTS / f"{session.checkout.series}.toml")
    target = _target(spec, platform, arch or require_native(session.checkout.lock).arch)
    served = [load_recipe(name) for name in names]
    chosen = spec.chosen(target.arch, served=served, names=modules, stated=False)
    words = [f"--recipe {name}" for name in names] + [f"--module {name}" for name in modules]
    command = f"sparkwright companion --series {spec.series} --platform {platform} --arch {target.arch}"
    command = " ".join([command, *words])
    if dry_run:
        return _planned(spec, target.arch, served, chosen, command)
    fitting, large = split_by_memory(chosen, look())
    ahead = {name: module for name, module in fitting.items() if module.generator}
    if not ahead:
        raise NotEnoughMemoryError(
            "no kernel can be compiled on this machine now",
            because="; ".join(_too_large(large)),
            next_step=f"on a machine with the memory: {command}",
        )
    job = CompanionJob(
        access=session.access,
        lock=session.checkout.lock,
        spec=spec,
        target=target,
        modules=ahead,
        python=prepare_environment(session.store, offline=session.offline),
        logs=session.checkout.folder / WORK / "companion",
        jobs=jobs,
    )
    folder = dist_folder(session.checkout.folder, out).absolute()
    wheel, passed = make_companion(job, folder)
    attach_audit(folder, passed)
    index = publish(folder)
    left = [name for name in chosen if name not in ahead]
    return Result(
        {
            "path": str(wheel.path),
            "version": wheel.version,
            "sha256": wheel.sha256,
            "size": wheel.size,
            "audit": passed.to_json(),
            "index": index.url,
            "not_ahead": left,
            "next_step": command if large else "",
        },
        [
            *_companion_parts(passed),
            ("wheel", wheel.path),
            ("index", index.url),
            *(("left", f"{name}: {chosen[name].why}{_OPEN}") for name in left if name not in large),
            *(("left", text) for text in _too_large(large)),
            ("next", f"on a machine with the memory, for all of them: {command}")
            if large
            else ("next", "sparkwright serve RECIPE, which installs it with the locked runtime"),
        ],
    )


def _target(spec: CompanionSpec, platform: str, arch: str) -> Target:
    """Return the machine and card to compile for; refuse what no installed FlashInfer would be given."""
    spec.tvm_ffi_for(platform)
    if not _ARCH.fullmatch(arch) or arch_of(arch) != arch:
        raise ConfigError(
            f"{arch!r} is no architecture of a companion",
            because=f"FlashInfer compiles for that card as {arch_of(arch)}"
            if _ARCH.fullmatch(arch)
            else "one is written as 12.1a or 12.0f",
            next_step=f"--arch {arch_of(arch)}" if _ARCH.fullmatch(arch) else "name another with --arch",
        )
    return Target(platform, arch)


def _too_large(modules: Mapping[str, KernelModule]) -> list[str]:
    """Return for each of *modules*, which do not fit, what it takes."""
    costs = [(name, one.cost) for name, one in modules.items() if one.cost is not None]
    return [f"{name}: a unit takes {gib(cost.mib)} GiB, more than is free here" for name, cost in costs]


def _planned(
    spec: CompanionSpec, arch: str, served: Sequence[Recipe], chosen: Mapping[str, KernelModule], command: str
) -> Result:
    """Return what would be compiled: *chosen*, by recipe, with what each module takes."""
    _, large = split_by_memory(chosen, look())
    by_name = {one.name: one for one in served} or spec.served()
    needed = {name: [*spec.needed(arch, recipe)] for name, recipe in by_name.items()}
    listed = {
        name: {
            "recipes": [recipe for recipe, wanted in needed.items() if name in wanted],
            "why": module.why,
            "ahead": bool(module.generator),
            "fits": name not in large,
            "cost": to_builtins(module.cost),
            "minutes": round(module.cost.minutes, 1) if module.cost else None,
        }
        for name, module in chosen.items()
    }
    rows = [
        (
            name,
            *_cost_cells(module.cost),
            module.why + ("" if module.generator else _OPEN) + (_LARGE if name in large else ""),
        )
        for name, module in chosen.items()
    ]
    costs = [module.cost for module in chosen.values() if module.cost]
    minutes = sum(cost.minutes for cost in costs)
    estimated = sum(cost.minutes * (1 - cost.measured / cost.units) for cost in costs)
    known = f", {estimated:.0f} of them estimated from like units" if round(estimated) else ""
    return Result(
        {"flashinfer": spec.version, "arch": arch, "recipes": needed, "modules": listed},
        [
            f"FlashInfer {spec.version}, series {spec.series}, for {arch}",
            Table(("recipe", "modules"), [(name, ", ".join(wanted)) for name, wanted in needed.items()]),
            Table(("module", "units", "measured", "s a unit", "GiB", "called by"), rows),
            ("compiles", f"about {minutes:.0f} minutes of one core{known}, without what the store has"),
            ("next", f"{'on a machine with the memory: ' if large else ''}{command}"),
        ],
    )


def _cost_cells(cost: ModuleCost | None) -> tuple[str, str, str, str]:
    if cost is None:
        return ("", "0", "", "")
    return (str(cost.units), str(cost.measured), f"{cost.seconds:.0f}", gib(cost.mib))


def _audit_by_its_list(session: Session, wheel: Path) -> CompanionAudit:
    """Return the audit of a companion by the list, and the lock, of the series that has its FlashInfer."""
    version = read_companion(wheel)["flashinfer"]["version"]
    for path in sorted((session.checkout.patchsets / LISTS).glob("*.toml")):
        if (spec := load_companion(path)).version == version:
            return audited(session.access, session.checkout.of(path.stem).lock, spec, wheel)
    raise ConfigError(
        f"{wheel.name} cannot be audited",
        because=f"it is for FlashInfer {version}, and no series of this checkout has that",
        next_step="audit it with a checkout whose list has that FlashInfer",
    )


def _companion_parts(report: CompanionAudit) -> Iterator[Part]:
    """Yield the audit of a companion as text."""
    rows = [(name, human_size(size), str(report.cubins[name])) for name, size in report.modules.items()]
    yield Table(("module", "size", "cubins"), rows)
    yield Table(_CHECKED, [(one.name, one.verdict, one.detail) for one in report.checks])
    yield "size", f"{human_size(report.size)} ({report.size} bytes)"
    yield "sha256", report.sha256


@click.command("audit", cls=Command)
@click.argument("wheels", nargs=-1, required=True, type=FILE_TYPE)
@click.option("--source", default="index", show_default=True, help="Origin of upstream's tree.")
@click.option(
    "--allow-skipped",
    is_flag=True,
    help="Accept a wheel of another build spec, or with binaries compiled elsewhere, with checks skipped.",
)
@takes("patchset")
@run_in_session
def command(
    session: Session,
    *,
    wheels: tuple[Path, ...],
    patchset: str,
    source: str,
    allow_skipped: bool,
) -> Result:
    """Compare WHEELS with upstream's and with the merge.

    The merge is repeated, so that no record inside a wheel is trusted: it only says which series' lock the
    wheel is compared with. Upstream's own wheel can be audited too. A wheel of FlashInfer's kernels has to be
    whole, for one machine and one card, and without an undefined symbol.
    """
    options = TargetOptions(patchset=patchset, source=source)
    reports: list[AuditReport | CompanionAudit] = []
    for wheel in wheels:
        if is_companion(wheel.name):
            reports.append(_audit_by_its_list(session, wheel))
        else:
            own = session.of_wheel(wheel)
            expected = expectation_of(wheel, options, own.checkout.lock, own.job)
            reports.append(audit(wheel.absolute(), expected))
    for report in reports:
        attach_audit(dist_folder(session.checkout.folder).absolute(), report)
    failures = (_failure(report, allow_skipped=allow_skipped) for report in reports)
    return Result(
        [report.to_json() for report in reports],
        [part for report in reports for part in _shown(report)],
        next(filter(None, failures), None),
    )


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
        yield from _companion_parts(report)
        return
    if report.binaries:
        yield _binaries(report)
    yield Table(_CHECKED, [(one.name, one.verdict, one.detail) for one in report.checks], report.filename)
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
    return ", ".join(
        f"{tally.count(kind) / tally.total:.1%} {kind}" for kind in KernelClass if tally.count(kind)
    )
