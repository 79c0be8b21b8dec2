"""The outcome of every carry of a patchset on a release of upstream's, here or on other machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.base.config import Model
from sparkwright.base.events import emit
from sparkwright.cluster.kinds import TaskKind
from sparkwright.merge import merge_patchset
from sparkwright.native.model import Cost
from sparkwright.pipeline.elsewhere import (
    JobAsked,
    JobInputs,
    LaidCheckout,
    asked_of,
    lay_out_checkout,
    share_jobs,
)
from sparkwright.pipeline.trial import evidence_of

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Mapping, Sequence

    from sparkwright.cluster.address import ClusterAddress
    from sparkwright.cluster.kinds import Place
    from sparkwright.cluster.messages import TaskDone, TaskInputs
    from sparkwright.cluster.running import TaskRequest
    from sparkwright.cluster.serving import Serving
    from sparkwright.pipeline.job import Job

KIND = "release"
_EXPECTED = Cost(seconds=10.0, mib=1024)


class ReleaseTask(Model, frozen=True):
    """A patchset to merge onto a release."""

    job: JobAsked
    release: str


class ReleaseOutcomes(Model, frozen=True):
    """The outcomes of a patchset on a release.

    Attributes:
        kinds: the kind of outcome of each carry, in order.
        evidence: what stands behind it, of proofs beside the carries alone; see `evidence_of`.
        lacking: carries whose dependency's source the store does not have.
        rests: of a superseded carry the one that does what upstream's answer leaves out.
    """

    kinds: dict[str, str]
    evidence: dict[str, str]
    lacking: tuple[str, ...] = ()
    rests: dict[str, str] = {}  # noqa: RUF012 - a frozen model's


def outcomes_on(job: Job, release: str) -> ReleaseOutcomes:
    """Merge the patchset of *job* onto *release*; no probe is run."""
    report = merge_patchset(job.repository, job.merge_request(job.source.release(release), release))
    carries = job.spec.carries
    sources = {None, *job.available_sources}
    entries = {carry.name: carry.superseded_in(release) for carry in carries}
    return ReleaseOutcomes(
        kinds={carry.name: str(report.outcome(carry.name).kind) for carry in carries},
        evidence={carry.name: evidence_of(job, report, carry, recorded=True) for carry in carries},
        lacking=tuple(carry.name for carry in carries if carry.spec.source not in sources),
        rests={name: entry.rest for name, entry in entries.items() if entry is not None and entry.rest},
    )


def outcomes_elsewhere(
    address: ClusterAddress, jobs: Sequence[Job], releases: Sequence[str]
) -> dict[str, dict[str, ReleaseOutcomes]]:
    """Return `outcomes_on` of *jobs*, all of one checkout and store, by series and release.

    Each release of each job is a task of its own.

    Raises:
        ClusterError: no machine can be had, several were lost over one task, or a result did not arrive.
    """
    from sparkwright.cluster.running import Batch, Cluster, TaskRequest

    wanted = {f"{job.checkout.series}-{one}": (job, one) for job in jobs for one in releases}
    found: dict[str, dict[str, ReleaseOutcomes]] = {job.checkout.series: {} for job in jobs}

    def take(request: TaskRequest, made: ReleaseOutcomes, reply: TaskDone) -> bool:
        job, release = wanted[request.name]
        names = [carry.name for carry in job.spec.carries]
        if list(made.kinds) != names or list(made.evidence) != names:
            return False
        found[job.checkout.series][release] = made
        emit("release.finished", release=release, series=job.checkout.series, machine=reply.machine)
        return True

    shared, trees = share_jobs(jobs, releases)
    requests = [
        TaskRequest(name, ReleaseTask(job=asked_of(job), release=release), _EXPECTED)
        for name, (job, release) in wanted.items()
    ]
    batch = Batch(
        KIND, requests, ReleaseOutcomes, take, trees=trees, shared=shared, title="merge", unit="releases"
    )
    Cluster(address=address, store=jobs[0].store).run(batch)
    return {series: {release: made[release] for release in releases} for series, made in found.items()}


@dataclass(frozen=True)
class LaidReleases:
    """A checkout whose patchsets are merged onto releases."""

    laid: LaidCheckout

    def run(self, asked: ReleaseTask, place: Place) -> ReleaseOutcomes:
        """Merge a patchset onto a release."""
        del place
        with self.laid.job(asked.job) as job:
            return outcomes_on(job, asked.release)


def _lay_out(
    serving: Serving, inputs: JobInputs, given: TaskInputs, stack: contextlib.ExitStack
) -> LaidReleases:
    return LaidReleases(lay_out_checkout(serving, inputs, given, stack))


def release_kind() -> TaskKind:
    """Return the kind of task that merges a patchset onto a release."""
    return TaskKind(JobInputs, ReleaseTask, _lay_out)


def cells(found: ReleaseOutcomes, words: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Return one cell of a table for each carry; one superseded in part names the carry for the rest.

    Args:
        found: the outcomes.
        words: what is added to a cell for evidence.
        known: cells that stay for carries whose source is lacking.
    """
    parts = {name: f" in part: `{rest}`" for name, rest in found.rests.items()}
    made = {
        name: kind + parts.get(name, words.get(found.evidence[name], ""))
        for name, kind in found.kinds.items()
    }
    lost = set(found.lacking)
    return {name: known.get(name, cell) if name in lost else cell for name, cell in made.items()}
