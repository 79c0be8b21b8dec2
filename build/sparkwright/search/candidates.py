"""Make a candidate: its merged tree, its wheel, or what a rehearsal serves, by what the judge needs.

Every result is taken from the store where it is there. A candidate that cannot be made is untestable; a
failure of the network or the disk is an error, as it says nothing of the candidate.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from sparkwright.base.errors import (
    ArchiveError,
    BinaryError,
    CarryConflictError,
    CompileError,
    DependencyOrderError,
    LockMismatchError,
    MissingSourceError,
    NativeBuildError,
    NativeInputsError,
    PatchError,
    UnprovedError,
    WheelError,
)
from sparkwright.carries.patchset import BuildSpec, check_order
from sparkwright.lock.model import Lock
from sparkwright.merge.engine import merge_patchset
from sparkwright.merge.prepare import BaseFinder
from sparkwright.merge.report import MergeReport
from sparkwright.pipeline.build import assemble, in_turn, make
from sparkwright.pipeline.checkout import Checkout
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.options import BuildOptions
from sparkwright.pipeline.state import require
from sparkwright.probe.environment import share_bytecode, tree_folder
from sparkwright.search.changes import SpecDifference
from sparkwright.search.model import UntestableError
from sparkwright.search.specs import ResolvedSpec, pinned_lock
from sparkwright.upstream.releases import Access, Pristine, open_source

_PACKAGE = "vllm"

# Errors that a candidate causes, and no network, disk or machine.
_CAUSED_BY_CANDIDATES = (
    ArchiveError, BinaryError, CarryConflictError, CompileError, DependencyOrderError,
    LockMismatchError, MissingSourceError, NativeBuildError, NativeInputsError, PatchError, UnprovedError,
    WheelError,
)  # fmt: skip


@contextlib.contextmanager
def _of_the_candidate() -> Iterator[None]:
    """Turn errors that a candidate causes into `UntestableError`."""
    try:
        yield
    except _CAUSED_BY_CANDIDATES as error:
        raise UntestableError(str(error)) from error


@dataclass(frozen=True)
class Realiser:
    """Makes the candidates between two specs.

    Attributes:
        options: options of builds; the architecture is each candidate's own.
        commits: the origin of upstream's commits, as for `open_source`.
    """

    difference: SpecDifference
    checkout: Checkout
    access: Access
    options: BuildOptions
    commits: str = "git"

    def candidate(self, applied: frozenset[str]) -> ResolvedSpec:
        """Return the candidate with the changes *applied*."""
        return self.difference.candidate(applied)

    def merged(self, candidate: ResolvedSpec) -> MergeReport:
        """Return the merge of *candidate*; nothing is fetched but upstream's tree, and nothing is built."""
        report = self.outcomes(candidate)
        if report.failed:
            failures = "; ".join(f"{one.carry}: {one.kind} ({one.detail})" for one in report.failed)
            raise UntestableError(f"the carries do not merge: {failures}")
        return report

    def outcomes(self, candidate: ResolvedSpec) -> MergeReport:
        """Return the merge of *candidate* with the outcome of every carry, the failed ones too.

        Raises:
            UntestableError: upstream's tree or a patch is damaged.
        """
        with _of_the_candidate():
            check_order(candidate.carries, {carry.name: carry for carry in candidate.carries})
            job = self._job(candidate, candidate.lock or self.checkout.lock)
            request = job.merge_request(self._pristine(candidate), candidate.point.version)
            return merge_patchset(self.access.repository, replace(request, find_base=self._find_base))

    def tree(self, candidate: ResolvedSpec) -> Path:
        """Return a read-only folder of the store with the package of the merged tree; see `merged`."""
        report, (store, repository) = self.merged(candidate), (self.access.store, self.access.repository)
        folder = tree_folder(store, repository, report.tree, under=_PACKAGE)
        share_bytecode(store, repository, (report.pristine, report.tree), under=_PACKAGE)
        return folder

    def exact_job(self, candidate: ResolvedSpec) -> Job:
        """Return the job of building *candidate*, with a pin that names every input by digest.

        Raises:
            UntestableError: upstream has no wheel there.
        """
        target = candidate.point.commit or candidate.point.version
        with _of_the_candidate():
            lock = candidate.lock or pinned_lock(self.checkout, self.access, target, source=self.commits)
            _ = lock.wheel(self.options.platform)
        return self._job(candidate, lock)

    def wheel(self, candidate: ResolvedSpec) -> Path:
        """Return the wheel of *candidate* in the store; carries go in without proofs where they have none.

        Raises:
            UntestableError: it cannot be merged, compiled or assembled.
        """
        job = self.exact_job(candidate)
        with _of_the_candidate(), in_turn(job):
            wheel = require(assemble(job, make).wheel)
        return self.access.store.named_file(wheel.sha256, wheel.filename)

    def _job(self, candidate: ResolvedSpec, lock: Lock) -> Job:
        names = frozenset(carry.name for carry in candidate.carries)
        own = self.checkout.lock.rehearsal
        rehearsal = lock.rehearsal or own  # an older lock may have none
        if rehearsal is not None and own is not None:
            rehearsal = structs.replace(rehearsal, model=own.model)  # all candidates serve one model
        return Job(
            checkout=self.checkout,
            spec=BuildSpec(
                structs.replace(lock, rehearsal=rehearsal),
                candidate.patchset or "none",
                candidate.carries,
                candidate.arch,
            ),
            options=replace(self.options, allow_unproved=names, arch=candidate.arch or ""),
            store=self.access.store,
            repository=self.access.repository,
            source=open_source(self.options.source, self.access),
        )

    @functools.cached_property
    def _find_base(self) -> BaseFinder:
        """Finds the tree that a revision was written against, once for all candidates."""
        return functools.cache(self._job(self.candidate(frozenset()), self.checkout.lock).find_base)

    def _pristine(self, candidate: ResolvedSpec) -> Pristine:
        """Return upstream's tree, without its history: a merge is then decided by contents alone."""
        source = open_source(self.options.source, self.access)
        point, lock, own = candidate.point, candidate.lock, self.checkout.lock
        if point.tree:
            return Pristine(point.tree, point.commit, f"commit {point.commit[:12]}")
        if point.commit:
            found = open_source(self.commits, self.access).commit(point.commit, own.release.git)
        elif lock is not None:
            found = source.pristine(lock)
        elif point.version == own.release.version:
            found = source.pristine(own)
        else:
            found = source.release(point.version)
        return replace(found, history=False)
