"""The record and files that a wheel should have, computed from this checkout and store for the audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkwright.base.errors import ArchiveError, WheelError
from sparkwright.lock.model import Lock
from sparkwright.merge.engine import merge_patchset
from sparkwright.native.build import find_extension
from sparkwright.native.model import Extension
from sparkwright.pipeline.assembly import choose_binaries
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.kernels import gather, prepare, take_extensions
from sparkwright.pipeline.options import TargetOptions
from sparkwright.pipeline.proofs import prove
from sparkwright.pipeline.record import expectation, native_version, version_of, wheel_record
from sparkwright.pipeline.state import BuildState, find_only, require
from sparkwright.wheel.binaries import Expectation
from sparkwright.wheel.kernels import KERNELS, KernelsRecord, kernels_of
from sparkwright.wheel.names import parse_name
from sparkwright.wheel.recorded import POINT


def merged_again(job: Job) -> BuildState:
    """Repeat the merge of *job*, and take what its record tells besides from the store, if it is there."""
    state = BuildState(pristine=job.pristine)
    request = job.merge_request(job.pristine, job.spec.lock.release.version)
    report = state.report = merge_patchset(job.repository, request)
    proofs = (find_only(prove(job, report, carry)) for carry in job.spec.carries)
    state.proofs = {proof.carry: proof for found in proofs for proof in found or ()}
    if job.native is not None:
        state.sources, state.toolchain = find_only(gather(job)), find_only(prepare(job))
        take_extensions(job, state, find_only)
        state.binaries = find_only(choose_binaries(job, state))
    return state


def expected_record(
    job: Job, state: BuildState, version: str, stated: KernelsRecord | None
) -> dict[str, dict[str, Any] | None]:
    """Return the files that the record of a wheel of *job* should have; `None` for one unknown here.

    Where *stated*, the wheel's own record of its kernels, differs from what would be made here, as with
    another toolchain, kernels are unknown here.
    """
    choice = state.binaries
    same = (
        choice is not None
        and stated is not None
        and (version_of(job, state), choice.record["toolchain"]) == (version, stated.toolchain)
    )
    files = wheel_record(job, state if same else replace(state, binaries=None))
    files[POINT]["version"] = version
    return files if same or job.native is None else {**files, KERNELS: None}


def found_compiled(job: Job, stated: KernelsRecord | None) -> dict[str, Extension]:
    """Return the extensions that the store has under the native keys that a wheel states, by member."""
    if job.native is None or stated is None:
        return {}
    names = {spec.member: name for name, spec in job.native.extensions.items()}
    found = {member: find_extension(job.store, one.key) for member, one in stated.compiled.items()}
    return {
        member: one for member, one in found.items() if one is not None and one.target == names.get(member)
    }


def _platform_of(wheel: Path, lock: Lock) -> str:
    """Return the lock's platform that *wheel* is for, by its tags."""
    if (machine := parse_name(wheel.name).machine) in lock.wheels:
        return machine
    raise WheelError(
        f"{wheel.name} cannot be audited",
        because="the lock has no wheel for its platform",
        next_step=f"the lock has wheels for: {', '.join(lock.wheels)}",
    )


def _job_of(
    wheel: Path, target: TargetOptions, open_job: Callable[[TargetOptions], Job]
) -> tuple[Job, str, KernelsRecord | None]:
    """Return the job that may have built *wheel*, the version to expect, and its own record of kernels.

    That record only selects a job of this checkout; no check relies on it.
    """
    try:
        record = kernels_of(wheel)
    except (ArchiveError, WheelError):
        record = None  # the audit reports the damage
    if record is None:
        job = open_job(replace(target, kernels="upstream"))
        return job, job.version, None
    job = open_job(replace(target, kernels="native", arch=record.arch))
    extensions = require(job.native).extensions
    stock = {name for name, spec in extensions.items() if spec.member in record.reasons}
    attested = {name for name, spec in extensions.items() if spec.member in record.attested}
    return job, native_version(job, stock, len(record.compiled), attested), record


def expectation_of(
    wheel: Path, options: TargetOptions, lock: Lock, open_job: Callable[[TargetOptions], Job]
) -> Expectation:
    """Return what *wheel* is compared with: the merge too, if it is of this checkout's build spec.

    The platform is the one that *wheel* is for, whatever *options* say.

    Raises:
        WheelError: the lock has no wheel for its platform.
    """
    target = replace(options, platform=_platform_of(wheel, lock))
    job, version, stated = _job_of(wheel, target, open_job)
    compiled = found_compiled(job, stated)
    if parse_name(wheel.name).version != version:
        return expectation(job, None, compiled=compiled)
    state = merged_again(job)
    record = expected_record(job, state, version, stated)
    report = require(state.report)
    return expectation(
        job,
        job.changes(report),
        version,
        record=record,
        python=job.python(report),
        links=job.links(report),
        compiled=compiled,
    )
