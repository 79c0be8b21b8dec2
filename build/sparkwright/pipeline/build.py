"""The whole build as one script: from a build spec to a published wheel.

`build` takes the steps in order, by a function that it is given: `apply` makes what the store does not hold,
`plan` only looks. What decides a step, and how it is made, stands in `assembly`, `kernels` and `proofs`, and
here for the merged tree.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.events import emit, task
from sparkwright.carries.model import CarrySpec
from sparkwright.merge.engine import merge_patchset
from sparkwright.merge.report import MergeReport
from sparkwright.pipeline.assembly import (
    assemble_wheel,
    audit_wheel,
    choose_binaries,
    fetch_stock_wheel,
    place_wheel,
    publish_index,
)
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.kernels import gather, prepare, take_extensions
from sparkwright.pipeline.proofs import Evidence, prove
from sparkwright.pipeline.state import BuildState, Step, Take, require
from sparkwright.upstream.releases import Pristine

T = TypeVar("T")


def build(job: Job, take: Take) -> BuildState:
    """Take every step from the pin to the wheel in the user's folder and its index."""
    state = assemble(job, take)
    state.audit = take(audit_wheel(job, state))
    state.placed = take(place_wheel(job, state.wheel))
    take(publish_index(job, state.placed))
    return state


def assemble(job: Job, take: Take) -> BuildState:
    """Take the steps to a wheel in the store."""
    state = merge(job, take)
    for carry in job.spec.carries:
        for proof in take(prove(job, state.report, carry)) or ():
            state.proofs[carry.name] = proof
    if job.native is not None:
        state.toolchain = take(prepare(job))
        take_extensions(job, state, take)
    take(fetch_stock_wheel(job))
    if job.native is not None:
        state.binaries = take(choose_binaries(job, state))
    state.wheel = take(assemble_wheel(job, state))
    return state


def merge(job: Job, take: Take) -> BuildState:
    """Take the steps to the merged tree, and to the sources of kernels if these are compiled."""
    state = BuildState(pristine=take(pristine_tree(job)))
    if job.native is not None:
        state.sources = take(gather(job))  # carries change these too
    state.report = take(merge_carries(job, state.pristine))
    return state


# The merged tree ----------------------------------------------------------------------------------

# Part of the key: raised when merging gives another result for the same inputs.
_MERGE_RULES = 3


def pristine_tree(job: Job) -> Step[Pristine]:
    """Put upstream's tree at the pin into the object store, verified against the lock."""
    lock = job.spec.lock
    files = lock.release.tree if lock.sdist is None else lock.sdist.sha256
    key = digest_of([job.options.source, lock.release.commit, files])
    return Step("pristine tree", key, lambda: job.source.known(lock), lambda: job.pristine)


def merge_carries(job: Job, pristine: Pristine | None) -> Step[MergeReport]:
    """Merge every carry, each with its outcome."""
    spec, store, repository = job.spec, job.store, job.repository
    key = None
    if pristine is not None:
        # None of these for upstream's kernels without carries that are left out.
        further = {"left-out": sorted(spec.left_out), "sources": job.available_sources}
        key = digest_of(
            {
                "rules": _MERGE_RULES,
                "pristine": pristine.tree,
                "history": pristine.commit if pristine.history else None,
                "point": spec.describe(),
                "carries": [_merge_inputs(carry.spec) for carry in spec.carries],
                **{name: value for name, value in further.items() if value},
            }
        )

    def find() -> MergeReport | None:
        if any(carry.spec.pull is not None for carry in spec.deciding):
            return None  # a pull request's head is requested every time; the merge itself is quick
        report = store.find_record_as(MergeReport, "merge", key or "")
        if report is None:
            return None
        trees = [report.commit, *(source.tree for source in report.sources)]
        return report if all(map(repository.has, trees)) else None

    def make() -> MergeReport:
        version = spec.lock.release.version
        for carry in spec.deciding:
            if (revision := carry.revision_for(version)) is not None:
                carry.patch(revision)  # a malformed patch is an error here, not an outcome of a merge
        with task(f"merge {len(spec.deciding)} carries onto {version}"):
            report = merge_patchset(repository, job.merge_request(require(pristine), version))
        report.require_merged()
        repository.keep(f"refs/sparkwright/points/{spec.digest}", report.commit)
        for source in report.sources:
            commit = repository.commit(source.tree, message=f"{source.name} with the point's carries")
            repository.keep(f"refs/sparkwright/merged-sources/{spec.digest}/{source.name}", commit)
        store.put_record("merge", key or "", to_builtins(report))
        return report

    return Step("merge", key, find, make)


def _merge_inputs(spec: CarrySpec) -> dict[str, object]:
    """Return what a merge reads from a carry besides its content: the title goes into its commit."""
    described = to_builtins(spec)
    return {name: described[name] for name in ("name", "title", "requires", "superseded", "upstream")}


# Making -------------------------------------------------------------------------------------------


def make(step: Step[T]) -> T:
    """Return the result of *step*, made if the store does not have it."""
    started = time.monotonic()
    found = step.find()
    result = step.make() if found is None else found
    emit(
        "step.made" if found is None else "step.found",
        step=step.name,
        key=step.key,
        seconds=round(time.monotonic() - started, 3),
    )
    return result


def apply(job: Job) -> BuildState:
    """Make every step that has no result in the store."""
    with in_turn(job):
        state = build(job, make)
        _attach_audit(job, state)
    return state


def in_turn(job: Job) -> AbstractContextManager[None]:
    """Wait for another run of this build spec, so that the second finds the first one's results."""
    return job.store.lock(f"point-{job.spec.digest[:16]}-{job.options.platform}", "this build spec")


def _attach_audit(job: Job, state: BuildState) -> None:
    """Attach the audit of the wheel in the user's folder to its digest there, unless one is attached."""
    from sparkwright.publish.evidence import FOLDER, attach, audit_detail

    digest = require(state.wheel).sha256
    if not (job.out / FOLDER / digest / "audit.json").exists():
        attach(job.out, "audit", digest, audit_detail(require(state.audit)))


# Planning -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedStep:
    """A step as a plan shows it.

    Attributes:
        key: digest of its inputs; `None` while these depend on steps that have yet to run.
        state: ``in store``, ``to do``, or ``waits`` for an earlier step.
        detail: the work that is left, as far as earlier builds allow an estimate; mostly empty.
        evidence: of a step that proves a carry, what stands behind its outcome; see `evidence_of`.
        code: of such a step, the number of units by device code; `None` while that is unknown.
        warning: how the card runs an extension that gets no code for the card itself; mostly empty.
    """

    name: str
    key: str | None
    state: Literal["in store", "to do", "waits"]
    detail: str = ""
    evidence: Evidence = ""
    code: dict[str, int] | None = None
    warning: str = ""


def plan(job: Job) -> list[PlannedStep]:
    """Return what `apply` would do; fetch, make and write nothing."""
    planned: list[PlannedStep] = []

    def look(step: Step[T]) -> T | None:
        found, state = None, "waits"
        if step.key is not None:
            found = step.find()
            state = "to do" if found is None else "in store"
        told: dict[str, Any] = {"state": state, **step.about(found)}
        planned.append(PlannedStep(step.name, step.key, **told))
        return found

    build(job, look)
    return planned
