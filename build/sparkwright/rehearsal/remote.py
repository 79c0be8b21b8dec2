"""A rehearsal on another machine: its results come back as files of the store.

The machine that asks merges, and names the wheel for the CPU by its digest. The other one lays the merged
Python over that wheel, serves it and verifies the server.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from sparkwright.base.config import Model, convert, to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.base.events import emit
from sparkwright.carries.patchset import BuildSpec
from sparkwright.distributed import Done, StoredFile, Task, bring_files, share_json
from sparkwright.distributed.cluster import Cluster, Workers
from sparkwright.distributed.inputs import shared
from sparkwright.distributed.tasks import OUT
from sparkwright.engine.verifier import Verifier
from sparkwright.lock import Lock, RehearsalPin
from sparkwright.merge import MergeReport
from sparkwright.pipeline import BuildOptions, Checkout, Job
from sparkwright.pipeline.packs import packed
from sparkwright.rehearsal.model import PACKAGE, RehearsalOptions, RehearsalResult, worst
from sparkwright.rehearsal.report import PAGE, write_report
from sparkwright.rehearsal.run import folder_of, onto_served, rehearse_changes, require_checks
from sparkwright.rehearsal.stock import machine, pin_of, require_wheel
from sparkwright.rehearsal.tree import release_tree
from sparkwright.upstream import Access, fetch_artifact, open_source
from sparkwright.upstream.given import GivenSource, GivenTree

_EXPECTED_S, _EXPECTED_MIB = 180.0, 6144


class RehearsalRequest(Model, frozen=True):
    """A merge to serve and to verify.

    Attributes:
        lock: the pin; its wheel for the CPU is the one to lay the merge over.
        before: git id of the tree that upstream's wheel is of.
        released: git id of the tree of the release.
        wanted: the release that was to be rehearsed.
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


def rehearse_remotely(
    cluster: Cluster,
    job: Job,
    report: MergeReport,
    options: RehearsalOptions,
    workers: Workers | None = None,
) -> RehearsalResult:
    """Rehearse the merge *report* on another machine; the results are written here, as a rehearsal here does.

    Args:
        cluster: the machines.
        job: the build spec, with store, repository and network settings.
        report: its merge.
        options: the user's choices.
        workers: workers that are open already.

    Raises:
        RehearsalError: wheel, model or environment cannot be had.
        UnknownNameError: there is no such check.
        ClusterError: no machine of this kind can be had, several were lost, or the result did not arrive.
    """
    require_checks(options)
    wanted = report.version
    report = onto_served(job, report)
    request = _request(job, report, options, wanted)
    folder = folder_of(job, options, f"{report.version}-{digest_of(to_builtins(request))[:12]}")
    found: list[RehearsalResult] = []

    def take(done: Done) -> bool:
        result = convert(done.value, RehearsalResult)
        names = {check.name for check in result.checks}
        if not names or not names <= set(options.checks):
            return False
        if not bring_files(cluster.store, done.files, folder):
            return False
        result = structs.replace(
            result, verdict=worst(result.checks), version=report.version, exact=report.version == wanted,
            report=str(folder / PAGE),
        )  # fmt: skip
        found.append(write_report(result, folder))
        emit("rehearsal.finished", version=report.version, machine=done.machine, verdict=result.verdict)
        return True

    packs = packed(cluster.store, job.repository, [request.released, request.before, report.tree])
    asked = Task(
        name=f"rehearsal-{report.tree[:12]}",
        words=("task", "rehearsal"),
        files=(share_json(cluster.store, request), *packs, *_files(job, request.lock)),
        needs=(f"machine-{machine()}",),
        seconds=_EXPECTED_S,
        mib=_EXPECTED_MIB,
    )
    title = "" if workers is not None else "rehearse"
    cluster.run([asked], take, title=title, unit="rehearsals", workers=workers)
    return found[0]


def _request(job: Job, report: MergeReport, options: RehearsalOptions, wanted: str) -> RehearsalRequest:
    pin = RehearsalPin(
        release=report.version,
        wheels={machine(): require_wheel(job, report.version)},
        model=pin_of(job).model,
    )
    return RehearsalRequest(
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
    pin, access = lock.rehearsal, job.access
    if pin is None:
        raise ValueError("the request has no pin")
    wanted = (pin.wheels[machine()], pin.model)
    for artifact in wanted:
        fetch_artifact(access.store, artifact, access.settings)
    return [shared(access.store, f"files/{one.filename}", one.sha256, one.size) for one in wanted]


def rehearse_here(request: RehearsalRequest, access: Access, verifier: Verifier) -> RehearsalResult:
    """Serve the merge of *request* on this machine and have it verified; what goes back is left in `OUT`."""
    given = tuple(
        GivenTree(version=request.report.version, tree=request.released, pinned=pinned)
        for pinned in (False, True)
    )
    job = Job(
        checkout=Checkout(Path.cwd(), request.lock),
        spec=BuildSpec(request.lock, "none", (), None),
        options=BuildOptions(),
        store=access.store,
        repository=access.repository,
        source=GivenSource(given, open_source("index", access)),
    )
    options = RehearsalOptions(
        checks=request.checks,
        out=Path(OUT).absolute(),
        against_pristine=request.against_pristine,
        seed=request.seed,
    )
    changed = access.repository.changed(request.before, request.report.tree)
    changes = {
        path: None if new is None else access.repository.blob(new.blob)
        for path, (_, new) in changed.items()
        if path.startswith(PACKAGE)
    }
    return rehearse_changes(job, changes, request.report, verifier, options, wanted=request.wanted)
