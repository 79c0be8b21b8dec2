"""Make a candidate: its merged tree, its wheel, or what a rehearsal serves, by what the judge needs.

Every result is taken from the store where it is there. A candidate that cannot be made is untestable; a
failure of the network or the disk is an error, as it says nothing of the candidate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import (
    AbsorptionError,
    ArchiveError,
    BinaryError,
    CarryConflictError,
    CompileError,
    DependencyOrderError,
    LockMismatchError,
    MissingSourceError,
    NativeBuildError,
    NativeInputsError,
    NotInStoreError,
    PatchError,
    UnprovedError,
    WheelError,
)
from sparkwright.base.events import warn
from sparkwright.carries.patchset import BuildSpec, check_order
from sparkwright.git import fetch
from sparkwright.merge import MergeReport, merge_patchset
from sparkwright.pipeline.assembly import Assemble
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.run import apply
from sparkwright.pipeline.state import require
from sparkwright.pipeline.trees import MERGE_RULES
from sparkwright.probe import tree_folder
from sparkwright.search.metric import UntestableError
from sparkwright.search.specs import pinned_lock
from sparkwright.upstream import Pristine
from sparkwright.upstream.releases import upstream_ref

if TYPE_CHECKING:
    from pathlib import Path

    from sparkwright.lock import Lock
    from sparkwright.pipeline.checkout import Checkout
    from sparkwright.pipeline.options import BuildOptions
    from sparkwright.search.axes import Candidate, Difference
    from sparkwright.upstream import Access, UpstreamSource

_KIND = "candidate"
_PACKAGE = "vllm"

# Errors that a candidate causes, and no network, disk or machine.
_OF_THE_CANDIDATE = (
    AbsorptionError, ArchiveError, BinaryError, CarryConflictError, CompileError, DependencyOrderError,
    LockMismatchError, MissingSourceError, NativeBuildError, NativeInputsError, PatchError, UnprovedError,
    WheelError,
)  # fmt: skip


@dataclass(frozen=True)
class Realiser:
    """Makes the candidates between two specs.

    Attributes:
        difference: what lies between them.
        checkout: the clone of the project.
        access: the store, its repository and the network settings.
        source: the origin of upstream's releases.
        options: options of builds; the architecture is each candidate's own.
        upstream: address or folder of a repository with upstream's commits; empty for the lock's.
    """

    difference: Difference
    checkout: Checkout
    access: Access
    source: UpstreamSource
    options: BuildOptions
    upstream: str = ""

    def candidate(self, applied: frozenset[str]) -> Candidate:
        """Return the candidate with the changes *applied*."""
        return self.difference.candidate(applied)

    def merged(self, candidate: Candidate) -> MergeReport:
        """Return the merge of *candidate*; nothing is fetched but upstream's tree, and nothing is built.

        Raises:
            UntestableError: a carry conflicts or is refused; the text says which, and why.
        """
        report = self.outcomes(candidate)
        if report.failed:
            failures = "; ".join(f"{one.carry}: {one.kind} ({one.detail})" for one in report.failed)
            raise UntestableError(f"the carries do not merge: {failures}")
        return report

    def outcomes(self, candidate: Candidate) -> MergeReport:
        """Return the merge of *candidate* with the outcome of every carry, the failed ones too.

        Raises:
            UntestableError: upstream's tree or a patch is damaged.
        """
        store, git = self.access.store, self.access.repository
        try:
            pristine = self._pristine(candidate)
            key = digest_of(
                {
                    "rules": MERGE_RULES,
                    "candidate": candidate.digest,
                    "pristine": pristine.tree,
                    "carries": [to_builtins(carry.spec) for carry in candidate.carries],
                }
            )
            found = store.find_record_as(MergeReport, _KIND, key)
            if found is not None and git.has(found.commit):
                return found
            check_order(candidate.carries, {carry.name: carry for carry in candidate.carries})
            job = self._job(candidate, candidate.lock or self.checkout.lock)
            report = merge_patchset(git, job.merge_request(pristine, candidate.point.version))
        except _OF_THE_CANDIDATE as error:
            raise UntestableError(str(error)) from error
        git.keep(f"refs/sparkwright/candidates/{key}", report.commit)
        store.put_record(_KIND, key, to_builtins(report))
        return report

    def tree(self, candidate: Candidate) -> Path:
        """Return a read-only folder of the store with the package of the merged tree; see `merged`."""
        report = self.merged(candidate)
        return tree_folder(
            self.access.store, self.access.repository, report.tree, under=_PACKAGE, like=report.pristine
        )

    def exact_job(self, candidate: Candidate) -> Job:
        """Return the job of building *candidate*, with a pin that names every input by digest.

        Raises:
            UntestableError: upstream has no wheel there.
        """
        point = candidate.point
        try:
            lock = candidate.lock or pinned_lock(self.checkout, self.access, point.commit or point.version)
            _ = lock.wheel(self.options.platform)
        except _OF_THE_CANDIDATE as error:
            raise UntestableError(str(error)) from error
        return self._job(candidate, lock)

    def wheel(self, candidate: Candidate) -> Path:
        """Return the wheel of *candidate* in the store; carries go in without proofs where they have none.

        Raises:
            UntestableError: it cannot be merged, compiled or assembled.
        """
        job = self.exact_job(candidate)
        try:
            wheel = require(apply(job, until=lambda step: isinstance(step, Assemble)).wheel)
        except _OF_THE_CANDIDATE as error:
            raise UntestableError(str(error)) from error
        return self.access.store.named_file(wheel.sha256, wheel.filename)

    def require_as_recorded(self) -> None:
        """Warn if an end that is a wheel does not merge into the tree that the wheel states."""
        everything = frozenset(change.id for change in self.difference.changes)
        ends = [(self.difference.start, frozenset[str]())]
        if not self.difference.left_out:
            ends.append((self.difference.end, everything))
        for spec, applied in ends:
            if spec.merged and (made := self.merged(self.candidate(applied)).tree) != spec.merged:
                warn(
                    f"{spec.text} states the merged tree {spec.merged[:12]}, and its carries merge into "
                    f"{made[:12]} here: what is judged is not quite what that wheel contains"
                )

    def _job(self, candidate: Candidate, lock: Lock) -> Job:
        names = frozenset(carry.name for carry in candidate.carries)
        return Job(
            checkout=self.checkout,
            spec=BuildSpec(lock, candidate.patchset or "none", candidate.carries, candidate.arch),
            options=replace(self.options, allow_unproved=names, arch=candidate.arch or ""),
            store=self.access.store,
            repository=self.access.repository,
            source=self.source,
        )

    def _pristine(self, candidate: Candidate) -> Pristine:
        point, lock = candidate.point, candidate.lock
        if point.commit:
            return self._of_commit(point.commit)
        own = self.checkout.lock
        if point.version == own.release.version and (lock is None or lock == own):
            return self.source.pristine(own)
        sdist = lock.sdist.sha256 if lock is not None and lock.sdist is not None else None
        return self.source.release(point.version, sha256=sdist)

    def _of_commit(self, commit: str) -> Pristine:
        git = self.access.repository
        address = self.upstream or self.checkout.lock.release.git
        if not git.has(commit):
            if self.access.settings.offline and not self.upstream:
                raise NotInStoreError(
                    f"commit {commit[:12]} is not in the store",
                    because="the network is off",
                    next_step="run once without --offline, or name a repository: --upstream FOLDER",
                )
            fetch(git, address, [commit])
            git.keep(upstream_ref(commit), commit)
        return Pristine(git.tree_of(commit), commit, f"commit {commit[:12]} of {address}", verified=True)
