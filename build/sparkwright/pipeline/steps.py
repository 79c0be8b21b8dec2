"""The steps from a build spec to a published wheel, in order; those up to `Merge` lead to the merged tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.events import task
from sparkwright.carries.model import CarrySpec
from sparkwright.merge.engine import merge_patchset
from sparkwright.merge.report import MergeReport
from sparkwright.pipeline.assembly import Assemble, Audit, ChooseBinaries, FetchStockWheel, Place, Publish
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.kernels import CompileExtension, GatherSources, PrepareToolchain
from sparkwright.pipeline.proofs import Prove
from sparkwright.pipeline.state import BuildState, require


class Step(Protocol):
    """A step: `find` takes its result from the store, `make` makes it; both must decide alike."""

    @property
    def name(self) -> str:
        """Name in plans and logs."""

    def key(self, job: Job, state: BuildState) -> str | None:
        """Return the digest of what the result depends on, or `None` while that is incomplete."""

    def find(self, job: Job, state: BuildState) -> bool:
        """Take the result from the store into *state*; return if it was there."""

    def make(self, job: Job, state: BuildState) -> None:
        """Make the result and put it into the store and *state*."""


def steps_for(job: Job) -> list[Step]:
    """Return the steps of *job*, in order; *native* ones only if kernels are compiled."""
    native = job.native is not None
    extensions = job.native.extensions if job.native is not None else {}
    steps: list[Step | None] = [
        PristineTree(),  # put upstream's tree at the pin into the object store, verified against the lock
        GatherSources() if native else None,  # fetch the sources that upstream's CMake project would download
        Merge(),  # merge every carry onto the pristine tree, and onto those sources
        *(Prove(carry) for carry in job.spec.carries),  # show that each carry is needed and works
        PrepareToolchain() if native else None,  # lay out compilers, headers and libraries
        *(CompileExtension(name) for name in extensions),  # compile and link
        FetchStockWheel(),  # fetch upstream's wheel, the origin of unchanged files and binaries
        ChooseBinaries() if native else None,  # decide which binaries are compiled, upstream's or left out
        Assemble(),  # write the wheel into the store
        Audit(),  # compare it with upstream's wheel and with the merge
        Place(),  # copy it into the user's folder
        Publish(),  # index every wheel in that folder
    ]
    return [step for step in steps if step is not None]


# Part of the key: raised when merging gives another result for the same inputs.
_MERGE_RULES = 3


@dataclass(frozen=True)
class PristineTree:
    """Upstream's tree in the object store, verified against the lock."""

    name: ClassVar[str] = "pristine tree"

    def key(self, job: Job, state: BuildState) -> str | None:
        del state
        lock = job.spec.lock
        files = lock.release.tree if lock.sdist is None else lock.sdist.sha256
        return digest_of([job.options.source, lock.release.commit, files])

    def find(self, job: Job, state: BuildState) -> bool:
        state.pristine = job.source.known(job.spec.lock)
        return state.pristine is not None

    def make(self, job: Job, state: BuildState) -> None:
        state.pristine = job.pristine


@dataclass(frozen=True)
class Merge:
    """Every carry merged, each with its outcome."""

    name: ClassVar[str] = "merge"

    def key(self, job: Job, state: BuildState) -> str | None:
        if state.pristine is None:
            return None
        return digest_of(
            {
                "rules": _MERGE_RULES,
                "pristine": state.pristine.tree,
                "history": state.pristine.commit if state.pristine.history else None,
                "point": job.spec.describe(),
                "carries": [_merge_inputs(carry.spec) for carry in job.spec.carries],
                **_left_out_and_sources(job),
            }
        )

    def find(self, job: Job, state: BuildState) -> bool:
        if any(carry.spec.pull is not None for carry in job.spec.deciding):
            return False  # a pull request's head is requested every time; the merge itself is quick
        report = job.store.find_record_as(MergeReport, "merge", self.key(job, state) or "")
        if report is None:
            return False
        if not all(map(job.repository.has, [report.commit, *(source.tree for source in report.sources)])):
            return False
        state.report = report
        return True

    def make(self, job: Job, state: BuildState) -> None:
        version = job.spec.lock.release.version
        for carry in job.spec.deciding:
            if (revision := carry.revision_for(version)) is not None:
                carry.patch(revision)  # a malformed patch is an error here, not an outcome of a merge
        with task(f"merge {len(job.spec.deciding)} carries onto {version}"):
            report = merge_patchset(job.repository, job.merge_request(require(state.pristine), version))
        report.require_merged()
        job.repository.keep(f"refs/sparkwright/points/{job.spec.digest}", report.commit)
        for source in report.sources:
            commit = job.repository.commit(source.tree, message=f"{source.name} with the point's carries")
            job.repository.keep(f"refs/sparkwright/merged-sources/{job.spec.digest}/{source.name}", commit)
        job.store.put_record("merge", self.key(job, state) or "", to_builtins(report))
        state.report = report


def _left_out_and_sources(job: Job) -> dict[str, object]:
    """Return further inputs of a merge; none for upstream's kernels without carries that are left out."""
    found = {"left-out": sorted(job.spec.left_out), "sources": job.available_sources}
    return {name: value for name, value in found.items() if value}


def _merge_inputs(spec: CarrySpec) -> dict[str, object]:
    """Return what a merge reads from a carry besides its content: the title goes into its commit."""
    wanted = ("name", "title", "requires", "superseded", "upstream")
    described = to_builtins(spec)
    return {name: described[name] for name in wanted}
