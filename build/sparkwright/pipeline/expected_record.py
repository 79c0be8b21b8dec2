"""The provenance record that an audited wheel should contain, computed from this checkout and this store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sparkwright.merge import merge_patchset
from sparkwright.native.extensions import find_extension
from sparkwright.native.model import Extension
from sparkwright.pipeline.binaries import ChooseBinaries
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.kernels import CompileExtension, GatherSources, PrepareToolchain
from sparkwright.pipeline.proofs import Prove
from sparkwright.pipeline.record import wheel_record
from sparkwright.pipeline.state import BuildState, require
from sparkwright.pipeline.steps import steps_for
from sparkwright.pipeline.trees import Merge
from sparkwright.pipeline.version import version_of
from sparkwright.wheel.kernels import KERNELS, KernelsRecord
from sparkwright.wheel.recorded import POINT

# Their results are part of the record.
_RECORDED = (GatherSources, Prove, PrepareToolchain, CompileExtension, ChooseBinaries)


def merged_again(job: Job) -> BuildState:
    """Repeat the merge of *job*, and take every other result from the store, if it is there."""
    state = BuildState(pristine=job.pristine)
    for step in steps_for(job):
        if isinstance(step, Merge):
            request = job.merge_request(require(state.pristine), job.spec.lock.release.version)
            state.report = merge_patchset(job.repository, request)
        elif isinstance(step, _RECORDED) and step.key(job, state) is not None:
            step.find(job, state)
    return state


def expected_record(
    job: Job, state: BuildState, version: str, stated: KernelsRecord | None
) -> dict[str, dict[str, Any] | None]:
    """Return the files that the record of a wheel of *job* should have; `None` for one unknown here.

    Args:
        job: the job that makes the wheel.
        state: its results; see `merged_again`.
        version: the wheel's version.
        stated: the wheel's own record of its kernels. If they differ from those that would be made here, as
            with another toolchain, they are unknown here.
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
