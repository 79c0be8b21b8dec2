"""``sparkwright wheel``."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparkwright.base.errors import ConfigError, UnreleasedError
from sparkwright.cli.options import TargetOptions, compile_options, job_options
from sparkwright.cli.output import print_json
from sparkwright.cli.patchset import BUMP, told_revision
from sparkwright.cli.session import Session, common_options, run_in_session
from sparkwright.cli.tables import show_table
from sparkwright.cli.terminal import human_size
from sparkwright.pipeline import apply
from sparkwright.pipeline.binaries import version_of
from sparkwright.pipeline.job import require
from sparkwright.publish import require_plain, wheels_in

if TYPE_CHECKING:
    from sparkwright.pipeline import Job
    from sparkwright.pipeline.job import BuildState, Compiling


@click.command("wheel")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the wheel; dist/ by default.")
@click.option(
    "--allow-unproved",
    multiple=True,
    metavar="NAME",
    help="Take this carry without a proof; the wheel says so.",
)
@click.option(
    "--released", is_flag=True, help="Refuse a working state, which has no revision of the patchset yet."
)
@compile_options
@job_options
@common_options
@run_in_session
def command(
    session: Session,
    *,
    out: Path | None,
    allow_unproved: tuple[str, ...],
    released: bool,
    require_native: bool,
    full: bool,
    compiling: Compiling,
    wanted: TargetOptions,
) -> None:
    """Build the wheel: fetch, merge, prove, assemble, audit, publish.

    What the store holds is not done again, and a run that was stopped goes on where it was.
    """
    job = session.job(
        wanted,
        out=out,
        allow_unproved=allow_unproved,
        require_native=require_native,
        full=full,
        compiling=compiling,
    )
    _require_out(job.options.out)
    if released and not job.point.revision:
        raise UnreleasedError(
            f"this state of {job.point.patchset} has no revision",
            because="the pin or a carry changed since the newest, or none was ever counted",
            next_step=f"{BUMP} {job.point.patchset}, and commit that",
        )
    known = apply(job)
    if session.as_json:
        print_json(_summary(job, known))
    else:
        _show(job, known)


def _require_out(out: Path) -> None:
    """Do nothing if a wheel and its index can be put into *out*, as far as can be told before the work.

    Raises:
        ConfigError: it is no folder, or is below something that is none.
        PublishError: what is named as a wheel in it is no file.
    """
    for place in (out, *out.parents):
        if os.path.lexists(place):
            if not place.is_dir():
                raise ConfigError(
                    f"{out} cannot take a wheel",
                    because=f"{place} is {'a link to nothing' if place.is_symlink() else 'no folder'}",
                    next_step="name a folder, or one that can be made, with --out",
                )
            break
    if out.is_dir():
        require_plain(wheels_in(out))


def _summary(job: Job, known: BuildState) -> dict[str, Any]:
    wheel, report = require(known.wheel), require(known.report)
    return {
        "path": str(require(known.placed)),
        "size": wheel.size,
        "sha256": wheel.sha256,
        "revision": job.point.revision,
        "version": version_of(job, known),
        "platform": job.options.platform,
        "point": job.point.digest,
        "kernels": job.kernels,
        **_kernels(job, known),
        "carries": [
            {
                "name": outcome.carry,
                "outcome": str(outcome.kind),
                "detail": outcome.detail,
                "proof": _proof(known, outcome.carry),
            }
            for outcome in report.outcomes
        ],
        "install": _install_command(known),
    }


def _proof(known: BuildState, carry: str) -> str:
    proof = known.proofs.get(carry)
    if proof is not None:
        return str(proof.verdict)
    return "none, allowed" if require(known.report).outcome(carry).kind.wants_proof else ""


def _install_command(known: BuildState) -> str:
    return f"pip install {shlex.quote(str(require(known.placed)))}"


def _show(job: Job, known: BuildState) -> None:
    wheel, report = require(known.wheel), require(known.report)
    titles = {carry.name: carry.spec.title for carry in job.point.carries}
    rows = [
        (outcome.carry, str(outcome.kind), _proof(known, outcome.carry), titles[outcome.carry])
        for outcome in report.outcomes
    ]
    show_table(("carry", "outcome", "proof", "what it does"), rows)
    click.echo(f"wheel    {require(known.placed)}")
    click.echo(f"size     {human_size(wheel.size)} ({wheel.size} bytes)")
    click.echo(f"sha256   {wheel.sha256}")
    click.echo(f"revision {told_revision(job.point)}")
    if job.point.arch is None:
        click.echo(f"kernels  upstream's own, from {job.stock_wheel.filename} (no native input changed)")
        click.echo("         'make wheel KERNELS=native' compiles them for the card instead")
    else:
        _show_kernels(job, known)
    click.echo(f"index    {job.options.out / 'simple'}")
    click.echo(f"next     {_install_command(known)}")


def _kernels(job: Job, known: BuildState) -> dict[str, Any]:
    """What the summary says of native kernels; nothing where they are upstream's."""
    if known.binaries is None:
        return {}
    return {
        "arch": job.point.arch,
        "compiled": {name: one.key for name, one in known.extensions.items()},
        "from-upstream": known.stock_extensions,
        "left-out": known.binaries.left_out,
    }


def _show_kernels(job: Job, known: BuildState) -> None:
    click.echo(f"kernels  compiled for {job.point.arch}: {', '.join(known.extensions) or 'none'}")
    for name, why in known.stock_extensions.items():
        click.echo(f"         {name} is upstream's own: {why}")
    for member in require(known.binaries).left_out:
        click.echo(f"         {member} left out: nothing in it runs on {job.point.arch}")
