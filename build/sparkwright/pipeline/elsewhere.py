"""A checkout on the machine of a worker: its files and upstream's trees, for tasks that need a job."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkwright.base.config import Model
from sparkwright.cluster.sharing import packed_tree, packed_trees
from sparkwright.git import FileEntry, check_out, import_files, open_repository
from sparkwright.lock.model import LOCK_NAME, PATCHSETS
from sparkwright.pipeline.checkout import open_checkout
from sparkwright.pipeline.job import Job, make_job
from sparkwright.pipeline.options import BuildOptions, Kernels, TargetOptions
from sparkwright.upstream.given import GivenSource, GivenTree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from sparkwright.cluster.messages import PackedTree, TaskInputs
    from sparkwright.cluster.serving import Serving
    from sparkwright.pipeline.checkout import Checkout

_PARTS = (LOCK_NAME, PATCHSETS, "carries")


class JobInputs(Model, frozen=True):
    """A checkout and upstream's trees.

    Attributes:
        checkout: git id of the tree with lock, patchsets and carries.
        given: upstream's trees.
    """

    checkout: str
    given: tuple[GivenTree, ...]


class JobAsked(Model, frozen=True):
    """The build spec that a task is about, as `TargetOptions` has it, and if it may use the network."""

    series: str
    patchset: str
    platform: str
    kernels: Kernels
    arch: str
    offline: bool


def asked_of(job: Job) -> JobAsked:
    """Return the words for *job*; its source is what `share_job` gives."""
    chosen = {name: getattr(job.options, name) for name in ("patchset", "platform", "kernels", "arch")}
    return JobAsked(series=job.checkout.series, offline=job.options.offline, **chosen)


def share_jobs(jobs: Sequence[Job], versions: Iterable[str]) -> tuple[JobInputs, tuple[PackedTree, ...]]:
    """Return what merges of *jobs*, all of one checkout, onto *versions* need, and packs of all trees.

    Upstream's trees are fetched here where the store lacks them.
    """
    first, wanted = jobs[0], tuple(versions)
    given = dict.fromkeys(one for job in jobs for one in _given(job, wanted))
    checkout = _import_checkout(first)
    sources = [tree for job in jobs for tree in job.available_sources.values()]
    trees = [one.tree for one in given]
    packed = packed_trees(first.store, first.repository, trees)
    others = [
        packed_tree(first.store, first.repository, tree) for tree in (*dict.fromkeys(sources), checkout)
    ]
    return JobInputs(checkout=checkout, given=tuple(given)), (*packed, *others)


def _given(job: Job, versions: Sequence[str]) -> Iterator[GivenTree]:
    lock, pinned = job.spec.lock, job.pristine
    yield GivenTree(
        version=lock.release.version, tree=pinned.tree, pinned=True, origin=pinned.origin,
        verified=pinned.verified,
    )  # fmt: skip
    asked: dict[tuple[str, str], None] = dict.fromkeys((version, "") for version in versions)
    if lock.sdist is not None and not pinned.verified:
        asked[lock.release.version, lock.sdist.sha256] = None
    for carry in job.spec.carries:
        for one in carry.spec.revision:
            if lock.sdist is None or one.sdist_sha256 != lock.sdist.sha256:
                asked[one.release, one.sdist_sha256 or ""] = None
    for version, sha256 in asked:
        found = job.source.release(version, sha256=sha256 or None)
        yield GivenTree(
            version=version, tree=found.tree, sha256=sha256, origin=found.origin, verified=found.verified
        )


def _import_checkout(job: Job) -> str:
    root = job.checkout.root
    paths = [path for part in _PARTS for path in (root / part, *sorted((root / part).rglob("*")))]
    files = [
        (path.relative_to(root).as_posix(), FileEntry("100644", path.read_bytes()))
        for path in paths
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return import_files(job.repository, files)


@dataclass(frozen=True)
class LaidCheckout:
    """A checkout on a worker.

    Attributes:
        serving: the worker.
        root: the folder.
        given: upstream's trees.
    """

    serving: Serving
    root: Path
    given: tuple[GivenTree, ...]

    def checkout(self, series: str, patchset: str) -> Checkout:
        """Return the checkout by a series."""
        return open_checkout(self.root, series, patchset)

    @contextlib.contextmanager
    def job(self, asked: JobAsked) -> Iterator[Job]:
        """Yield the job of a task, with a repository of its own: tasks run in threads."""
        target = TargetOptions(
            asked.series, asked.patchset, asked.platform, "index", asked.kernels, asked.arch
        )
        options = BuildOptions(**vars(target), offline=asked.offline)
        store = self.serving.access.store
        with contextlib.closing(open_repository(store.git)) as repository:
            job = make_job(self.checkout(asked.series, asked.patchset), store, repository, options)
            yield replace(job, source=GivenSource(self.given, job.source))


def lay_out_checkout(
    serving: Serving, inputs: JobInputs, given: TaskInputs, stack: contextlib.ExitStack
) -> LaidCheckout:
    """Write a checkout's files to a folder that goes when *stack* is closed."""
    del given
    access = serving.access
    root = stack.enter_context(access.store.scratch()) / "checkout"
    check_out(access.repository, inputs.checkout, root)
    return LaidCheckout(serving, root, inputs.given)
