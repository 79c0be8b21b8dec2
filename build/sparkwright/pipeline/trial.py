"""The judgement of one carry after a merge: the trees for its probe, and the evidence for its outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sparkwright.carries import Carry
from sparkwright.merge import MergeReport, OutcomeKind
from sparkwright.pipeline.job import Job
from sparkwright.probe import ProbeVerdict, Proof, Prover

Evidence = Literal["proved", "not needed", "declared", "unproved", ""]
"""The evidence for an outcome: a proof that confirms it or shows the carry needless, or a declaration."""


@dataclass(frozen=True)
class Trial:
    """The trees, and the files in them, on which one carry is judged by its probe.

    Attributes:
        prover: the prover for the two trees, or for the pristine one alone.
        paths: files that the carry changes, or would change.
        in_tree: true if the merged tree has the carry's change; else the pristine one has to do without.
    """

    carry: Carry
    prover: Prover
    paths: tuple[str, ...]
    in_tree: bool

    @property
    def wanted(self) -> ProbeVerdict:
        """The verdict that confirms what the merge says of the carry."""
        return ProbeVerdict.PROVED if self.in_tree else ProbeVerdict.NOT_NEEDED

    def key(self) -> str:
        """Return the key of the proof."""
        return self.prover.key(self.carry, self.paths, absorbed=not self.in_tree)

    def find(self, *, recorded: bool = False) -> Proof | None:
        """Return a proof that still holds, recorded beside the carry or else in the store; nothing is run."""
        return self.prover.find(self.carry, self.paths, absorbed=not self.in_tree, recorded=recorded)

    def begin(self) -> Callable[[], Proof]:
        """Start the probe, whatever is recorded; returns a function that waits and gives the proof."""
        return self.prover.begin(self.carry, self.paths, absorbed=not self.in_tree)

    def prove(self) -> Proof:
        """Run the probe, whatever is recorded."""
        return self.prover.prove(self.carry, self.paths, absorbed=not self.in_tree)


def trial_of(
    job: Job, report: MergeReport, carry: Carry, touched: Sequence[str] | None = None
) -> Trial | None:
    """Return how *carry* is judged after the merge *report*; `None` where no probe can judge it.

    What is in no tree, since it conflicts or is declared superseded, is judged on the pristine tree alone:
    the defect may be gone.

    Args:
        job: the job.
        report: a merge that the carry was part of.
        carry: the carry.
        touched: the files that its change is about; by default those of its patch.
    """
    outcome = report.outcome(carry.name)
    if carry.spec.probe is None or outcome.kind is OutcomeKind.LEFT_OUT:
        return None
    if outcome.kind.wants_proof:
        return Trial(carry, job.prover(report), outcome.proof_paths, outcome.kind.in_tree)
    if carry.spec.source is not None:
        return None  # the pristine tree of its source is not this one
    if touched is None and outcome.kind is OutcomeKind.REFUSED:
        return None  # its patch may be what is refused
    paths = carry.paths(report.version) if touched is None else touched
    left = tuple(sorted(job.repository.files(report.pristine, paths))) if paths else ()
    return Trial(carry, job.prover(report, pristine_alone=True), left, in_tree=False)


def wants_proof(report: MergeReport, carry: Carry) -> bool:
    """Tell if a wheel needs a proof of *carry*: a declaration that it is superseded has to be shown too."""
    kind = report.outcome(carry.name).kind
    return kind.wants_proof or (kind is OutcomeKind.SUPERSEDED and carry.spec.probe is not None)


def evidence_of(job: Job, report: MergeReport, carry: Carry, *, recorded: bool = False) -> Evidence:
    """Return the word for what stands behind the outcome of *carry*; no probe is run.

    Args:
        job: the job.
        report: a merge that the carry was part of.
        carry: the carry.
        recorded: count proofs beside the carry only, and not those in the store.
    """
    kind = report.outcome(carry.name).kind
    trial = trial_of(job, report, carry)
    proof = None if trial is None else trial.find(recorded=recorded)
    if proof is not None and proof.verdict is ProbeVerdict.NOT_NEEDED:
        return "proved" if kind in {OutcomeKind.ABSORBED, OutcomeKind.SUPERSEDED} else "not needed"
    if proof is not None and proof.verdict is ProbeVerdict.PROVED:
        return "proved"
    if kind is OutcomeKind.SUPERSEDED:
        return "declared"
    return "unproved" if kind.wants_proof else ""


def find_proof(job: Job, report: MergeReport, carry: Carry) -> Proof | None:
    """Return the proof, recorded or in the store, of what *report* says of *carry*, if there is one."""
    trial = trial_of(job, report, carry)
    proof = None if trial is None else trial.find()
    return proof if trial is not None and proof is not None and proof.verdict is trial.wanted else None
