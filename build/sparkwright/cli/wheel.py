"""``sparkwright wheel``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sparkwright.base.errors import ConfigError
from sparkwright.base.text import human_size
from sparkwright.cli.globals import Command
from sparkwright.cli.options import compile_options, job_options, out_option
from sparkwright.cli.patchset import BUMP, told_revision
from sparkwright.cli.result import Part, Result, Table
from sparkwright.cli.session import Session, run_in_session
from sparkwright.lock.bump import bump_command
from sparkwright.lock.check import require_native
from sparkwright.pipeline.build import apply, plan, unforeseen
from sparkwright.pipeline.checkout import Checkout, with_series
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.kernels import foreign_extensions
from sparkwright.pipeline.options import CompileOptions, TargetOptions
from sparkwright.pipeline.record import version_of
from sparkwright.pipeline.state import BuildState, require
from sparkwright.publish.evidence import install_command
from sparkwright.publish.index import require_plain, wheels_in


@click.command("wheel", cls=Command)
@click.option("--plan", "only_plan", is_flag=True, help="Show the steps, and which the store holds; do none.")
@click.option(
    "--allow-unproved",
    multiple=True,
    metavar="NAME",
    help="Accept this carry without a proof; the wheel records that.",
)
@click.option(
    "--released", is_flag=True, help="Refuse a working state, which has no revision of the patchset yet."
)
@out_option
@compile_options
@job_options
@run_in_session
def command(
    session: Session,
    *,
    only_plan: bool,
    out: Path | None,
    allow_unproved: tuple[str, ...],
    released: bool,
    require_native: bool,
    compiling: CompileOptions,
    target: TargetOptions,
) -> Result:
    """Build the wheel: fetch, merge, prove, assemble, audit, publish.

    A step whose result the store holds is not run again, so an interrupted build continues where it stopped.
    With --plan nothing is fetched, made or written; a waiting step gets its key when those before have run.
    """
    job = session.job(
        target,
        out=out,
        allow_unproved=allow_unproved,
        require_native=require_native,
        compiling=compiling,
    )
    if only_plan:
        return _plan(job)
    _require_out(job.out)
    if released and not job.spec.revision:
        raise ConfigError(
            f"this state of {job.spec.file} has no revision",
            because="the pin or a carry changed since the newest, or the patchset never had one",
            next_step=f"{BUMP} --patchset {job.spec.file}, and commit that",
        )
    state = apply(job)
    summary = _summary(job, state)
    return Result(summary, list(_shown(job, state, summary)))


def _plan(job: Job) -> Result:
    steps, spec, platform = plan(job), job.spec, job.options.platform
    notice = unforeseen(job, steps)
    kernels = "upstream's kernels" if spec.arch is None else f"kernels for {spec.arch}"
    rows = [(step.name, step.state, step.evidence, (step.key or "")[:16]) for step in steps]
    return Result(
        {
            "point": spec.digest,
            "revision": spec.revision,
            "version": job.version,
            "platform": platform,
            **_pin(job),
            "kernels": job.kernels,
            "arch": spec.arch,
            "left-out": spec.left_out,
            "notice": notice,
            "steps": [asdict(step) for step in steps],
        },
        [
            f"build spec {spec.digest[:16]}  →  vllm {job.version} for {platform}, {kernels}",
            ("revision", told_revision(spec)),
            ("pin", _told_pin(job)),
            Table(("step", "state", "evidence", "key"), rows),
            *(f"{one.name}: {told}" for one in steps for told in (one.detail, one.warning) if told),
            *([f"notice: {notice}"] if notice else []),
            *(f"left out {name}: {why}" for name, why in spec.left_out.items()),
        ],
    )


def _require_out(out: Path) -> None:
    """Refuse an *out* that cannot take a wheel and its index, before any work.

    Raises:
        ConfigError: it is no folder, or is below something that is none.
        PublishError: it contains something else than a file with the name of a wheel.
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


def _summary(job: Job, state: BuildState) -> dict[str, Any]:
    wheel, report = require(state.wheel), require(state.report)
    return {
        "path": str(require(state.placed)),
        "size": wheel.size,
        "sha256": wheel.sha256,
        "revision": job.spec.revision,
        "version": version_of(job, state),
        "platform": job.options.platform,
        **_pin(job),
        "point": job.spec.digest,
        "kernels": job.kernels,
        **_kernels(job, state),
        "carries": [
            {
                "name": outcome.carry,
                "outcome": str(outcome.kind),
                "detail": outcome.detail,
                "proof": _proof(state, outcome.carry),
            }
            for outcome in report.outcomes
        ],
        "install": install_command(require(state.placed)),
    }


def _proof(state: BuildState, carry: str) -> str:
    proof = state.proofs.get(carry)
    if proof is not None:
        return str(proof.verdict)
    return "none, allowed" if require(state.report).outcome(carry).kind.wants_proof else ""


def _shown(job: Job, state: BuildState, summary: Mapping[str, Any]) -> Iterator[Part]:
    titles = {carry.name: carry.spec.title for carry in job.spec.carries}
    carries = [{**entry, "title": titles[entry["name"]]} for entry in summary["carries"]]
    columns = {"carry": "name", "outcome": "outcome", "proof": "proof", "what it does": "title"}
    yield Table.of(carries, columns)
    yield "wheel", summary["path"]
    yield "size", f"{human_size(summary['size'])} ({summary['size']} bytes)"
    yield "sha256", summary["sha256"]
    yield "revision", told_revision(job.spec)
    yield "pin", _told_pin(job)
    if job.spec.arch is None:
        yield "kernels", f"upstream's, from {job.stock_wheel.filename} (no native input changed)"
        yield "", native_hint(job.checkout)
    else:
        yield from _shown_kernels(job, state)
    yield "index", job.out / "simple"
    yield "next", summary["install"]


def native_hint(checkout: Checkout) -> str:
    """Return the way to native kernels; empty where the lock does not say what they are compiled with."""
    if checkout.lock.native is None:
        return ""
    return with_series("'make wheel KERNELS=native' compiles them for the card instead", checkout)


def _pin(job: Job) -> dict[str, Any]:
    """Return the commit and the wheel that *job* starts from, and the origin of the wheel's digest."""
    commit, wheel = job.spec.lock.release.commit, job.stock_wheel
    of = wheel.commit or commit
    return {"pin": {"commit": commit, "wheel": wheel.filename, "wheel-of": of, "trust": wheel.trust}}


def _told_pin(job: Job) -> str:
    """Return the pin, if the digest of upstream's wheel is that of a first download."""
    commit, wheel = job.spec.lock.release.commit, job.stock_wheel
    if wheel.commit is None:
        return ""
    of = "" if wheel.commit == commit else f" of commit {wheel.commit[:12]}, with equal native inputs,"
    return f"commit {commit[:12]}; upstream's wheel{of} is known by its first download alone"


def _kernels(job: Job, state: BuildState) -> dict[str, Any]:
    """Return the part of the summary about native kernels; empty for upstream's."""
    if state.binaries is None:
        return {}
    return {
        "arch": job.spec.arch,
        "compiled": {name: one.key for name, one in state.extensions.items()},
        "attested": state.attested,
        "from-upstream": state.stock_extensions,
        "left-out": state.binaries.left_out,
        "not-native": foreign_extensions(state.extensions, job.target.arch),
    }


def _shown_kernels(job: Job, state: BuildState) -> Iterator[Part]:
    arch, native = job.spec.arch, require_native(job.spec.lock)
    yield "kernels", f"compiled for {arch}: {', '.join(state.extensions) or 'none'}"
    for name, why in (foreign_extensions(state.extensions, job.target.arch) | state.attested).items():
        yield "", f"{name}: {why}"
    for name, why in state.stock_extensions.items():
        yield "", f"{name} is from upstream's wheel: {why}"
    if unknown := native.unreached:
        yield "", f"for these: {bump_command(job.spec.lock, unknown)}"
    for member in require(state.binaries).left_out:
        yield "", f"{member} left out: nothing in it runs on {arch}"
