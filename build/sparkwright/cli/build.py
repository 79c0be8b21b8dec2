"""The commands that build: ``merge``, ``wheel``, ``publish``, ``patchset`` and ``status``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import CarryConflictError, ConfigError, PublishError
from sparkwright.base.text import human_size
from sparkwright.carries.edited import write_tree
from sparkwright.carries.patchset import BuildSpec, with_next_revision
from sparkwright.cli.command import Command, Group, Part, Result, Table, takes, taking
from sparkwright.cli.options import PATH_TYPE, compile_options, job_options, out_option
from sparkwright.cli.session import Session, run_in_clone, run_in_session, run_read_only
from sparkwright.companion.wheel import is_companion
from sparkwright.lock.bump import bump_command
from sparkwright.lock.check import require_native
from sparkwright.merge.engine import merge_patchset
from sparkwright.merge.report import MergeReport, OutcomeKind
from sparkwright.pipeline.build import apply, merge_carries, plan, pristine_tree
from sparkwright.pipeline.checkout import Checkout, with_series
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.kernels import foreign_extensions
from sparkwright.pipeline.options import CompileOptions, TargetOptions
from sparkwright.pipeline.proofs import evidence_of, prove
from sparkwright.pipeline.record import version_of
from sparkwright.pipeline.state import BuildState, find_only, require
from sparkwright.publish.evidence import install_command
from sparkwright.publish.index import dist_folder, publish, require_plain, runtimes_in, wheels_in
from sparkwright.store.disk import write_atomically

_HAZARDS = {
    "both-sides": "both sides changed {}",
    "doubled": "{} is defined twice, with one value",
    "signature": "it calls {} as it was before the other side changed what that takes",
    "removed": "it uses {}, which the other side removed",
    "mode": "the carry makes it {}, and the wheel does not",
}


@click.command("merge", cls=Command)
@click.option("--onto", metavar="VERSION", help="Another release of upstream's, instead of the pin.")
@click.option("--check-out", type=PATH_TYPE, metavar="FOLDER", help="Write the merged tree here.")
@job_options
@run_in_session
def merge_command(
    session: Session, *, onto: str | None, check_out: Path | None, target: TargetOptions
) -> Result:
    """Merge the patchset onto the pin, or onto another release, and report each carry.

    No probe is run: 'carry prove' and 'wheel' do that. The evidence of an outcome is a proof that is recorded
    or in the store: 'proved', or 'not needed' where the probe passes without the carry. Without one, a carry
    that was merged or seems to be in upstream is 'unproved', and one that is called superseded is 'declared'.

    Onto the pin, a carry that does not merge is an error. Onto another release the result
    is the report, and the exit status is 0 whatever the outcomes are.
    """
    job = session.job(target)
    if onto is None:
        version, pristine = job.spec.lock.release.version, job.pristine
    else:
        version, pristine = onto, job.source.release(onto)
    report = merge_patchset(job.repository, job.merge_request(pristine, version))
    if any(outcome.kind is OutcomeKind.REFUSED for outcome in report.failed):
        session.require_sound_repository()  # before any of it is reported
    known = {carry.name: carry for carry in job.spec.carries}
    evidence: dict[str, str] = {name: evidence_of(job, report, carry) for name, carry in known.items()}
    unproved = [
        one.carry
        for one in report.outcomes
        if one.kind is OutcomeKind.ABSORBED and evidence[one.carry] != "proved"
    ]
    if check_out is not None:
        write_tree(job.repository, report.tree, check_out)
    failure = None
    if report.failed and onto is None:
        first = report.failed[0]
        refreshed = first.kind is OutcomeKind.CONFLICT or known[first.carry].spec.pull is not None
        failure = CarryConflictError(
            f"{len(report.failed)} of {len(report.outcomes)} carries do not merge",
            because=", ".join(f"{outcome.carry} ({outcome.kind})" for outcome in report.failed),
            next_step=f"sparkwright carry refresh {first.carry}"
            if refreshed
            else f"change {first.carry} as the table says",
        )
    described = {**to_builtins(report), "unproved": unproved, "evidence": evidence}
    return Result(described, list(_merged_parts(report, unproved, evidence)), failure)


def _merged_parts(
    report: MergeReport, unproved: Sequence[str], evidence: Mapping[str, str]
) -> Iterator[Part]:
    rows = [
        (
            outcome.carry,
            f"{outcome.kind} (unproved)" if outcome.carry in unproved else str(outcome.kind),
            evidence[outcome.carry],
            ", ".join(outcome.named_paths) or outcome.detail,
        )
        for outcome in report.outcomes
    ]
    yield Table(("carry", "outcome", "evidence", "files, or why"), rows, title=f"onto vllm {report.version}")
    for outcome in report.outcomes:
        for hazard in outcome.hazards:
            told = _HAZARDS[hazard.kind].format(hazard.name)
            yield f"look at {hazard.path}: {told} ({outcome.carry})"
    yield f"merged tree {report.tree}"
    for source in report.sources:
        yield f"source tree {source.tree} of {source.name}"


BUMP = "sparkwright patchset bump"


@click.group("patchset", cls=Group)
def patchset_command() -> None:
    """Count a patchset's revisions, which order the wheels of one release."""


@patchset_command.command("bump")
@taking("series")
@takes("patchset")
@run_in_clone
def bump(session: Session, *, patchset: str) -> Result:
    """Give the patchset its next revision, if the pin or a carry changed; comments stay."""
    path, name = session.checkout.patchset_path(patchset), patchset or session.checkout.patchset_path().stem
    old = session.checkout.build_spec(name)
    text = path.read_text(encoding="utf-8")
    written = with_next_revision(text, old)
    if written != text:
        write_atomically(path, written.encode())
    new = session.checkout.build_spec(name)
    described = {"patchset": name, "revision": new.revision, "digest": new.content, "was": old.revision}
    if old.revision:
        return Result(described, [f"nothing changed since revision {old.revision} of {name}"])
    own = f" --patchset {patchset}" if new.file != session.checkout.series else ""
    told = f"revision {new.revision} of {name}, written to {path}"
    return Result(described, [told, session.hint(f"sparkwright wheel{own}")])


def told_revision(spec: BuildSpec) -> str:
    """Return the revision as text, with the next step if there is none."""
    if spec.revision:
        return str(spec.revision)
    changed = (
        f"the pin or a carry changed since {spec.released.revision}" if spec.released else "there was none"
    )
    return f"none yet ({changed}): '{BUMP} --patchset {spec.file}' gives it the next, until then it is 0"


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
def wheel_command(
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
        target, out=out, allow_unproved=allow_unproved, require_native=require_native, compiling=compiling
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
    return Result(summary, list(_wheel_parts(job, state, summary)))


def _plan(job: Job) -> Result:
    steps, spec, platform = plan(job), job.spec, job.options.platform
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
            "steps": [asdict(step) for step in steps],
        },
        [
            f"build spec {spec.digest[:16]}  →  vllm {job.version} for {platform}, {kernels}",
            ("revision", told_revision(spec)),
            ("pin", _told_pin(job)),
            Table(("step", "state", "evidence", "key"), rows),
            *(f"{one.name}: {told}" for one in steps for told in (one.detail, one.warning) if told),
            *(f"left out {name}: {why}" for name, why in spec.left_out.items()),
        ],
    )


def _require_out(out: Path) -> None:
    """Refuse an *out* that cannot take a wheel and its index, before any work."""
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
                "proof": str(state.proofs[outcome.carry].verdict)
                if outcome.carry in state.proofs
                else ("none, allowed" if outcome.kind.wants_proof else ""),
            }
            for outcome in report.outcomes
        ],
        "install": install_command(require(state.placed)),
    }


def _wheel_parts(job: Job, state: BuildState, summary: Mapping[str, Any]) -> Iterator[Part]:
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


@click.command("publish", cls=Command)
@click.argument("folder", type=PATH_TYPE, required=False)
@run_in_session
def publish_command(session: Session, *, folder: Path | None) -> Result:
    """Write a static package index over the wheels in FOLDER.

    FOLDER is SPARKWRIGHT_DIST, or dist/ in the checkout, by default.
    The index is plain files in FOLDER/simple: copy FOLDER to any web server, or use it in place.
    """
    where = dist_folder(session.checkout.folder, folder).absolute()
    wheels = wheels_in(where) if where.is_dir() else ()
    if not wheels:
        raise PublishError(
            f"there is nothing to publish in {where}",
            because="it holds no wheel",
            next_step="sparkwright wheel",
        )
    index = publish(where, runtimes=runtimes_in(session.checkout.patchsets))
    # An index that is pip's only one would decide on every package that it is asked for.
    newest = [file for file in index.files if not is_companion(file.filename)][-1:]
    return Result(
        {"index": index.url, "files": [file.filename for file in index.files]},
        [
            *(("wheel", file.filename) for file in index.files),
            ("index", index.url),
            *(("next", install_command(index.folder / file.filename)) for file in newest),
        ],
    )


@click.command("status", cls=Command)
@job_options
@run_read_only
def status_command(session: Session, *, target: TargetOptions) -> Result:
    """Show the pin, the carries with their outcomes and proofs, and the wheels in dist/.

    Only results in the store are shown; 'sparkwright wheel' makes the others.
    """
    job = session.job(target)
    carries, spec = _carries(job), job.spec
    wheels, release = sorted(job.out.glob("*.whl")), spec.lock.release
    lines = sum(entry["lines"] for entry in carries)
    kernels = "upstream's" if spec.arch is None else f"native, compiled for {spec.arch}"
    columns = {
        "carry": "name", "outcome": "outcome", "proof": "proof", "evidence": "evidence",
        "what it does": "title",
    }  # fmt: skip
    return Result(
        {
            "release": release.version,
            "commit": release.commit,
            "torch": release.torch,
            "series": session.checkout.series,
            "patchset": spec.file,
            "kernels": job.kernels,
            "arch": spec.arch,
            "point": spec.digest,
            "revision": spec.revision,
            "version": job.version,
            "patch-lines": lines,
            "carries": carries,
            "wheels": [{"path": str(wheel), "size": wheel.stat().st_size} for wheel in wheels],
            "store": str(session.store.home),
        },
        [
            ("series", f"{session.checkout.series}, patchset {spec.file}"),
            ("pin", f"vllm {release.version}, commit {release.commit[:12]}, torch {release.torch}"),
            ("spec", f"{spec.digest[:16]}  →  {job.version}"),
            ("revision", told_revision(spec)),
            ("kernels", kernels),
            Table.of(carries, columns),
            ("patch", f"{lines} lines in {len(carries)} carries"),
            *(("wheel", f"{wheel}  {human_size(wheel.stat().st_size)}") for wheel in wheels),
            ("store", session.store.home),
        ],
    )


def _carries(job: Job) -> list[dict[str, Any]]:
    report = find_only(merge_carries(job, find_only(pristine_tree(job))))
    described = []
    for carry in job.spec.carries:
        outcome = str(report.outcome(carry.name).kind) if report else "not merged yet"
        proof = "unknown"
        if carry.name in job.spec.left_out:
            outcome, proof = str(OutcomeKind.LEFT_OUT), "no proof needed"
        elif report:
            proof = "none" if find_only(prove(job, report, carry)) is None else "holds"
        described.append(
            {
                "name": carry.name,
                "outcome": outcome,
                "proof": proof,
                "evidence": carry.spec.evidence.level,
                "lines": carry.lines(job.spec.lock.release.version),
                "title": carry.spec.title,
            }
        )
    return described
