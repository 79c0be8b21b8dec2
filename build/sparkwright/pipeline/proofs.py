"""The step that proves a carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import AbsorptionError, ProofError, UnprovedError
from sparkwright.merge import MergeReport, OutcomeKind
from sparkwright.pipeline.state import require
from sparkwright.probe import ProbeVerdict, Proof

if TYPE_CHECKING:
    from sparkwright.carries import Carry
    from sparkwright.merge import Outcome
    from sparkwright.pipeline.job import Job
    from sparkwright.pipeline.state import BuildState


@dataclass(frozen=True)
class Prove:
    """A proof of one carry, recorded or made: that it is needed and works, or that upstream absorbed it."""

    carry: Carry

    @property
    def name(self) -> str:
        """Name in plans and logs."""
        return f"prove {self.carry.name}"

    def key(self, job: Job, state: BuildState) -> str | None:
        if state.report is None:
            return None
        outcome = state.report.outcome(self.carry.name)
        if self.carry.spec.probe is None or not outcome.kind.wants_proof:
            return digest_of([self.carry.name, str(outcome.kind)])
        absorbed = outcome.kind is OutcomeKind.ABSORBED
        return job.prover(state.report).key(self.carry, outcome.proof_paths, absorbed=absorbed)

    def find(self, job: Job, state: BuildState) -> bool:
        if state.report is None:
            return False
        outcome = state.report.outcome(self.carry.name)
        if not outcome.kind.wants_proof:
            return True  # the tree contains nothing of the carry, by a declared decision
        proof = find_proof(job, state.report, self.carry)
        if proof is None:
            return False
        state.proofs[self.carry.name] = proof
        return True

    def make(self, job: Job, state: BuildState) -> None:
        name = self.carry.name
        allowed = name in job.options.allow_unproved
        if self.carry.spec.probe is None:
            if not allowed:
                raise _unproved(name, "it has no probe")
            return
        if allowed:
            return
        report = require(state.report)
        outcome = report.outcome(name)
        absorbed = outcome.kind is OutcomeKind.ABSORBED
        proof = job.prover(report).prove(self.carry, outcome.proof_paths, absorbed=absorbed)
        _refuse_unless_proved(proof, outcome)
        state.proofs[name] = proof


def find_proof(job: Job, report: MergeReport, carry: Carry) -> Proof | None:
    """Return the proof, recorded or in the store, of what *report* says of *carry*, if there is one."""
    outcome = report.outcome(carry.name)
    absorbed = outcome.kind is OutcomeKind.ABSORBED
    proof = job.prover(report).find(carry, outcome.proof_paths, absorbed=absorbed)
    return proof if proof is not None and proof.verdict is _wanted(outcome) else None


def _wanted(outcome: Outcome) -> ProbeVerdict:
    """Return the verdict without which no wheel is made."""
    return ProbeVerdict.NOT_NEEDED if outcome.kind is OutcomeKind.ABSORBED else ProbeVerdict.PROVED


def _unproved(name: str, because: str) -> UnprovedError:
    return UnprovedError(
        f"carry {name} is not proved",
        because=because,
        next_step=f"correct its probe, or accept it with --allow-unproved {name} (the wheel records that)",
    )


def _refuse_unless_proved(proof: Proof, outcome: Outcome) -> None:
    if proof.verdict is _wanted(outcome):
        return
    if proof.verdict is ProbeVerdict.NOT_ABSORBED:
        raise AbsorptionError(
            f"carry {proof.carry} is not absorbed",
            because=f"{outcome.detail}, but the defect is still in the pristine tree: {proof.finding}",
            next_step=f"set absorbs = false for that pull request in carries/{proof.carry}/carry.toml, "
            "or write a new revision of the carry",
        )
    if proof.verdict is ProbeVerdict.REFUTED:
        raise ProofError(
            f"carry {proof.carry} is refuted",
            because=f"its probe fails on the merged tree: {proof.finding}",
            next_step="remove it from the patchset, or correct it",
        )
    if proof.verdict is ProbeVerdict.BROKEN:
        raise _unproved(proof.carry, f"its probe could not run: {proof.finding.splitlines()[-1]}")
    if proof.verdict is ProbeVerdict.NOT_NEEDED:
        raise _unproved(proof.carry, "its probe passes on the pristine tree: the carry is not needed here")
