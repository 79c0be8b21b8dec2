"""A rehearsal on another machine: a task of a cluster, whose results come back as files of the store.

The machine that asks merges, and names the wheel for the CPU by its digest. The other one lays the merged
Python over that wheel, serves it and verifies the server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import EnvironmentSetupError, FetchError, NotInStoreError
from sparkwright.base.events import emit
from sparkwright.carries.patchset import BuildSpec
from sparkwright.cluster.capabilities import machine_need
from sparkwright.cluster.kinds import Nothing, TaskKind, UnfitError
from sparkwright.cluster.messages import StoredFile
from sparkwright.cluster.sharing import bring_files, packed_trees
from sparkwright.git import Repository
from sparkwright.lock import Lock, RehearsalPin
from sparkwright.merge import MergeReport
from sparkwright.native.model import Cost
from sparkwright.pipeline import BuildOptions, Checkout, Job
from sparkwright.pipeline.state import require
from sparkwright.rehearsal.model import CheckOutcome, RehearsalOptions, RehearsalResult, worst
from sparkwright.rehearsal.report import PAGE, write_report
from sparkwright.rehearsal.run import folder_of, onto_served, rehearse_changes, require_checks
from sparkwright.rehearsal.stock import machine, pin_of, require_wheel
from sparkwright.rehearsal.tree import PACKAGE, release_tree
from sparkwright.upstream import fetch_artifact, open_source
from sparkwright.upstream.given import GivenSource, GivenTree

if TYPE_CHECKING:
    import contextlib
    from pathlib import Path

    from sparkwright.cluster.kinds import Place
    from sparkwright.cluster.messages import TaskDone, TaskInputs
    from sparkwright.cluster.pool import Pool
    from sparkwright.cluster.running import Cluster, TaskRequest
    from sparkwright.cluster.serving import Serving

KIND = "rehearsal"
_EXPECTED = Cost(seconds=180.0, mib=6144)


class RehearsalTask(Model, frozen=True):
    """A merge to serve and to verify.

    Attributes:
        lock: the pin; its wheel for the CPU is the one to lay the merge over.
        report: the merge.
        before: git id of the tree that upstream's wheel is of.
        released: git id of the tree of the release.
        wanted: the release that was to be rehearsed.
        checks: names of the checks.
        seed: of prompts.
        against_pristine: compare answers with those of the unpatched wheel.
    """

    lock: Lock
    report: MergeReport
    before: str
    released: str
    wanted: str
    checks: tuple[str, ...]
    seed: int
    against_pristine: bool


class Rehearsed(Model, frozen=True):
    """The result of a rehearsal; see `RehearsalResult`."""

    checks: tuple[CheckOutcome, ...]
    statements: tuple[str, ...]
    seconds: float


def rehearse_elsewhere(
    cluster: Cluster, job: Job, report: MergeReport, options: RehearsalOptions, pool: Pool | None = None
) -> RehearsalResult:
    """Rehearse the merge *report* on another machine; the results are written here, as a rehearsal here does.

    Args:
        cluster: the machines.
        job: the build spec, with store, repository and network settings.
        report: its merge.
        options: the user's choices.
        pool: workers that are open already.

    Raises:
        RehearsalError: wheel, model or environment cannot be had.
        UnknownNameError: there is no such check.
        ClusterError: no machine of this kind can be had, several were lost, or the result did not arrive.
    """
    from sparkwright.cluster.running import Batch, TaskRequest

    require_checks(options)
    wanted = report.version
    report = onto_served(job, report)
    asked = _asked(job, report, options, wanted)
    folder = folder_of(job, options, f"{report.version}-{digest_of(to_builtins(asked))[:12]}")
    found: list[RehearsalResult] = []

    def take(request: TaskRequest, made: Rehearsed, reply: TaskDone) -> bool:
        del request
        names = {check.name for check in made.checks}
        if not names or not names <= set(options.checks):
            return False
        if not bring_files(cluster.store, reply.files, folder):
            return False
        result = RehearsalResult(
            verdict=worst(made.checks),
            checks=made.checks,
            version=report.version,
            exact=report.version == wanted,
            report=folder / PAGE,
            seconds=made.seconds,
            statements=made.statements,
        )
        found.append(write_report(result, folder))
        emit("rehearsal.finished", version=report.version, machine=reply.machine, verdict=result.verdict)
        return True

    trees = packed_trees(cluster.store, job.repository, [asked.released, asked.before, report.tree])
    request = TaskRequest(f"rehearsal-{report.tree[:12]}", asked, _EXPECTED, (machine_need(),))
    title = "" if pool is not None else "rehearse"
    batch = Batch(
        KIND, [request], Rehearsed, take, trees=trees, files=_files(job, asked.lock), title=title,
        unit="rehearsals",
    )  # fmt: skip
    cluster.run(batch, pool)
    return found[0]


def _asked(job: Job, report: MergeReport, options: RehearsalOptions, wanted: str) -> RehearsalTask:
    pin = RehearsalPin(
        release=report.version,
        wheels={machine(): require_wheel(job, report.version)},
        model=pin_of(job).model,
    )
    return RehearsalTask(
        lock=structs.replace(job.spec.lock, rehearsal=pin),
        report=report,
        before=job.tree_of_wheel(report.pristine),
        released=release_tree(job, report.version),
        wanted=wanted,
        checks=options.checks,
        seed=options.seed,
        against_pristine=options.against_pristine,
    )


def _files(job: Job, lock: Lock) -> list[StoredFile]:
    """Fetch the wheel for the CPU and the model if the store lacks them: others take them from there."""
    pin = require(lock.rehearsal)
    access = job.access
    wanted = (pin.wheels[machine()], pin.model)
    for artifact in wanted:
        fetch_artifact(access.store, artifact, access.settings)
    return [StoredFile(path=one.filename, sha256=one.sha256, size=one.size) for one in wanted]


@dataclass(frozen=True)
class LaidRehearsals:
    """The store of a worker that rehearses."""

    serving: Serving
    folder: Path

    def run(self, asked: RehearsalTask, place: Place) -> Rehearsed:
        """Serve a merge and verify it.

        Raises:
            UnfitError: this machine cannot have the environment, the wheel or the model.
        """
        access = self.serving.access
        repository = Repository(access.repository.path)  # git's readers of objects serve one thread each
        try:
            access = replace(access, repository=repository)
            given = tuple(
                GivenTree(version=asked.report.version, tree=asked.released, pinned=pinned)
                for pinned in (False, True)
            )
            job = Job(
                checkout=Checkout(self.folder, asked.lock),
                spec=BuildSpec(asked.lock, "none", (), None),
                options=BuildOptions(),
                store=access.store,
                repository=repository,
                source=GivenSource(given, open_source("index", access)),
            )
            options = RehearsalOptions(
                checks=asked.checks, out=place.out, against_pristine=asked.against_pristine, seed=asked.seed
            )
            result = rehearse_changes(
                job, self._changes(repository, asked), asked.report, options, wanted=asked.wanted
            )
        except (EnvironmentSetupError, FetchError, NotInStoreError) as error:
            raise UnfitError(f"{error.what}: {error.because}", error.next_step) from error
        finally:
            repository.close()
        return Rehearsed(checks=result.checks, statements=result.statements, seconds=result.seconds)

    def _changes(self, repository: Repository, asked: RehearsalTask) -> dict[str, bytes | None]:
        changed = repository.changed(asked.before, asked.report.tree)
        return {
            path: None if new is None else repository.blob(new.blob)
            for path, (_, new) in changed.items()
            if path.startswith(PACKAGE)
        }


def _lay_out(
    serving: Serving, inputs: Nothing, given: TaskInputs, stack: contextlib.ExitStack
) -> LaidRehearsals:
    del inputs, given
    return LaidRehearsals(serving, stack.enter_context(serving.access.store.scratch()))


def rehearsal_kind() -> TaskKind:
    """Return the kind of task that serves a merge on the CPU and verifies it."""
    return TaskKind(Nothing, RehearsalTask, _lay_out)
