"""The outcome of every carry of a patchset on a release of upstream's."""

from __future__ import annotations

from collections.abc import Mapping

from sparkwright.base.config import Model
from sparkwright.merge import merge_patchset
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.trial import evidence_of


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
