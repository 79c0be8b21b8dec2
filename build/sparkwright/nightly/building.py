"""The wheel of one target with the carries that are good there, audited and rehearsed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec.structs import replace as with_fields

from sparkwright.base.errors import (
    BusyError,
    FetchError,
    NativeInputsError,
    NotInStoreError,
    RehearsalError,
    SparkwrightError,
    StorageError,
)
from sparkwright.base.events import task
from sparkwright.base.text import few
from sparkwright.engine.outcomes import Verifier
from sparkwright.lock.bump import rewrite
from sparkwright.lock.model import Lock
from sparkwright.merge.report import MergeReport
from sparkwright.nightly.model import CarryNight, Judgement, NightBuild, NightCheck, Standing, UpstreamTarget
from sparkwright.pipeline.build import apply
from sparkwright.pipeline.job import Job, make_job
from sparkwright.pipeline.pins import pin_of
from sparkwright.pipeline.state import require
from sparkwright.probe.launches import KernelSurvey
from sparkwright.rehearsal import run as rehearsal
from sparkwright.rehearsal.model import RehearsalOptions
from sparkwright.store.disk import write_atomically
from sparkwright.upstream.evidence import propose_lock

_NAMED = 5  # faults of kernels in one reason
# These are not about one target: the next one would meet them too.
_FATAL = (BusyError, StorageError)


@dataclass(frozen=True)
class Built:
    """A build, and what a rehearsal takes of it; both `None` unless it was built."""

    night: NightBuild
    job: Job | None = None
    report: MergeReport | None = None


def build(
    job: Job, target: UpstreamTarget, carries: Sequence[CarryNight], folder: Path, *, history: str = ""
) -> Built:
    """Build the wheel of *target* with those of *carries* that are good there, and audit it.

    Compiled code is upstream's own unless *job* is to compile it. A failure is a result, not an error: the
    night goes on with the next target.

    *history* is the repository that has the commit, if it is one; by default the lock's.
    """
    if target.wheel is None and target.kind == "commit":
        return Built(NightBuild(status="skipped", reason=f"no wheel of {target.label} could be looked for"))
    if target.wheel is False and target.kind == "release":
        return Built(NightBuild(status="skipped", reason=f"upstream has no wheel of {target.label}"))
    chosen = _closed(job, {carry.name for carry in carries if carry.standing is Standing.GOOD})
    left_out = tuple(carry.name for carry in carries if carry.name not in chosen)
    failed = NightBuild(status="failed", carries=chosen, left_out=left_out)
    try:
        with task(f"build {target.label}"):
            lock, text = lock_of(job, target, history=history)
            # What is declared superseded changes nothing, and a night says that it is only declared.
            declared = frozenset(one.name for one in carries if one.judgement is Judgement.DECLARED)
            options = replace(
                job.options,
                out=folder / "wheels",
                source=history or "git" if lock.sdist is None else job.options.source,
                allow_unproved=job.options.allow_unproved | (declared & set(chosen)),
            )
            made = make_job(replace(job.checkout, lock=lock), job.store, job.repository, options)
            listed = tuple(carry for carry in made.spec.carries if carry.name in chosen)
            ready = replace(made, spec=replace(made.spec, carries=listed), pool=job.pool)
            state = apply(ready)
    except _FATAL:
        raise
    except NativeInputsError as error:  # only a compiler could build it
        return Built(with_fields(failed, status="skipped", reason=str(error)))
    except SparkwrightError as error:
        return Built(with_fields(failed, reason=str(error)))
    wheel = require(state.wheel)
    path = folder / "locks" / f"{target.label}.lock"
    write_atomically(path, text.encode())
    found = NightBuild(
        status="built",
        path=str(ready.out / wheel.filename),
        version=ready.version,
        sha256=wheel.sha256,
        size=job.store.file_path(wheel.sha256).stat().st_size,
        audited=bool(state.audit),
        carries=chosen,
        left_out=left_out,
        lock=str(path),
    )
    return Built(found, ready, state.report)


def _closed(job: Job, good: set[str]) -> tuple[str, ...]:
    """Return the names of *good* carries, in order, without those that require one that is not good."""
    chosen: list[str] = []
    for carry in job.spec.carries:
        if carry.name in good and set(carry.spec.requires) <= set(chosen):
            chosen.append(carry.name)
    return tuple(chosen)


def lock_of(job: Job, target: UpstreamTarget, *, history: str = "") -> tuple[Lock, str]:
    """Return the lock that pins *target*, and its text, made from the present one.

    The lock of a commit has the wheels of the present one's machines, or of the job's platform alone where
    upstream has no others.

    Raises:
        FetchError, NotInStoreError, LockMismatchError: upstream's files of it cannot be had or disagree.
    """
    text = job.checkout.lock_path.read_text(encoding="utf-8")
    if target.kind == "release":
        if target.version == job.spec.lock.release.version:
            return job.spec.lock, text
        lock = propose_lock(job.access, job.spec.lock, target.version)
        return lock, rewrite(text, lock).text
    pinned = functools.partial(pin_of, job.checkout, job.access, target.commit, source=history or "git")
    try:
        lock = pinned()
    except (FetchError, NativeInputsError):
        # Upstream's index may have the commit's wheel for one machine days before that for another.
        lock = pinned(machines=(job.options.platform,))
    return lock, rewrite(text, lock).text


def rehearse(built: Built, label: str, folder: Path, verifier: Verifier) -> NightCheck:
    """Return the rehearsal of what was *built*; skipped where there is nothing to rehearse with.

    What is undecided counts as failed: a person has to look at it.
    """
    if built.job is None or built.report is None:
        return NightCheck(status="skipped", reason=built.night.reason or "no wheel was built")
    try:
        found = rehearsal.rehearse(
            built.job, built.report, verifier, RehearsalOptions(out=folder / "rehearsal" / label)
        )
    except _FATAL:
        raise
    except (RehearsalError, NotInStoreError) as error:  # its wheel, model or environment cannot be had
        return NightCheck(status="skipped", reason=str(error))
    except SparkwrightError as error:
        return NightCheck(status="failed", reason=str(error))
    told = [f"{one.name}: {one.detail}" for one in found.checks if one.verdict in {"failed", "undecided"}]
    return NightCheck(
        status="passed" if found.verdict == "passed" else "failed",
        reason="; ".join(told) or " ".join(found.statements),
        report=found.report,
    )


def survey_kernels(job: Job, target: UpstreamTarget, tree: str) -> NightCheck:
    """Return what the Triton kernels of *tree*, *target* with the carries, take on a GB10."""
    try:
        report = KernelSurvey(job.store, job.repository, offline=job.options.offline).survey(
            tree, target.version
        )
    except _FATAL:
        raise
    except SparkwrightError as error:
        return NightCheck(status="failed", reason=str(error))
    told = few(report.faults(), _NAMED, sep="; ", more="; and {} more")
    compiled = f"{len(report.compiled())} of {len(report.functions)} functions"
    reason = told or f"{len(report.launches)} launches, {compiled}"
    return NightCheck(status="failed" if told else "passed", reason=reason)
