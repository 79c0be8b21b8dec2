"""Work out again, from this checkout and this store, the record of a wheel that is audited."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkwright.merge import merge_patchset
from sparkwright.native.extensions import find_extension
from sparkwright.pipeline.binaries import binary_steps, version_of
from sparkwright.pipeline.job import BuildState, require
from sparkwright.pipeline.kernels import compile_steps, source_steps
from sparkwright.pipeline.record import wheel_record
from sparkwright.pipeline.steps import Prove
from sparkwright.probe.proof import read_proof
from sparkwright.wheel.checks import CARRIES, POINT
from sparkwright.wheel.kernels import KERNELS

if TYPE_CHECKING:
    from sparkwright.carries import Carry
    from sparkwright.native.model import Extension
    from sparkwright.pipeline.job import Job
    from sparkwright.wheel.kernels import KernelsRecord


def merged_again(job: Job) -> BuildState:
    """Do the merge of *job* again and take all else from the store, as far as it is there."""
    known = BuildState(pristine=job.pristine)
    for step in source_steps(job):
        step.find(job, known)
    request = job.merge_request(require(known.pristine), job.point.lock.release.version)
    known.report = merge_patchset(job.repository, request)
    for step in [*map(Prove, job.point.deciding), *compile_steps(job), *binary_steps(job)]:
        if step.key(job, known) is not None:
            step.find(job, known)
    return known


def expected_record(
    job: Job, known: BuildState, version: str, stated: KernelsRecord | None
) -> dict[str, dict[str, Any] | None]:
    """Return the files that the record of a wheel of *job* should have; `None` for one unknown here.

    Args:
        job: what the wheel is made from.
        known: what is known of that; see `merged_again`.
        version: the wheel's version.
        stated: what the wheel says of its kernels. Where they are not those that would be made here,
            such as with another toolchain, nothing is known of them.
    """
    choice = known.binaries
    same = (
        choice is not None
        and stated is not None
        and (version_of(job, known), choice.record["toolchain"]) == (version, stated.toolchain)
    )
    files = wheel_record(job, known if same else replace(known, binaries=None))
    files[POINT]["version"] = version
    recorded = {carry.name for carry in job.point.deciding if _is_recorded(carry, known)}
    for carry in files[CARRIES]["carries"]:
        if "proof" in carry and carry["name"] not in recorded:
            del carry["proof"]["environment"]  # another machine makes its proofs with other packages
    return files if same or job.native is None else {**files, KERNELS: None}


def _is_recorded(carry: Carry, known: BuildState) -> bool:
    """Tell if the proof of *carry* is the one beside it, which is the same in every checkout."""
    return read_proof(carry.folder) == known.proofs.get(carry.name)


def found_compiled(job: Job, stated: KernelsRecord | None) -> dict[str, Extension]:
    """Return the extensions that the store has under the native keys that a wheel states, by member."""
    if job.native is None or stated is None:
        return {}
    names = {spec.member: name for name, spec in job.native.extensions.items()}
    found = {member: find_extension(job.store, one.key) for member, one in stated.compiled.items()}
    return {
        member: one for member, one in found.items() if one is not None and one.target == names.get(member)
    }
