"""The step that proves a carry."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ProofError, UnprovedError
from sparkwright.carries import Carry
from sparkwright.merge import Outcome, OutcomeKind
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.state import BuildState, require
from sparkwright.pipeline.trial import find_proof, trial_of, wants_proof
from sparkwright.probe import ProbeVerdict, Proof


@dataclass(frozen=True)
class Prove:
    """A proof of one carry, recorded or made: that it is needed and works, or that upstream needs it not."""

    carry: Carry

    @property
    def name(self) -> str:
        """Name in plans and logs."""
        return f"prove {self.carry.name}"

    def key(self, job: Job, state: BuildState) -> str | None:
        if state.report is None:
            return None
        trial = trial_of(job, state.report, self.carry)
        if trial is None or not wants_proof(state.report, self.carry):
            return digest_of([self.carry.name, str(state.report.outcome(self.carry.name).kind)])
        return trial.key()

    def find(self, job: Job, state: BuildState) -> bool:
        if state.report is None:
            return False
        if not wants_proof(state.report, self.carry):
            return True  # the tree contains nothing of the carry, and no probe could tell more
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
        trial = trial_of(job, report, self.carry)
        if trial is None:
            raise _unproved(name, "the tree that it changes cannot be judged here")
        proof = trial.prove()
        _refuse_unless_proved(proof, trial.wanted, report.outcome(name))
        state.proofs[name] = proof


def _unproved(name: str, because: str) -> UnprovedError:
    return UnprovedError(
        f"carry {name} is not proved",
        because=because,
        next_step=f"correct its probe, or accept it with --allow-unproved {name} (the wheel records that)",
    )


def _refuse_unless_proved(proof: Proof, wanted: ProbeVerdict, outcome: Outcome) -> None:
    if proof.verdict is wanted:
        return
    if proof.verdict is ProbeVerdict.NOT_ABSORBED:
        declared = outcome.kind is OutcomeKind.SUPERSEDED
        raise UnprovedError(
            f"carry {proof.carry} is not {outcome.kind}",
            because=f"{outcome.detail}, but the defect is still in the pristine tree: {proof.finding}",
            next_step=f"correct [[superseded]] in carries/{proof.carry}/carry.toml, or list it no longer"
            if declared
            else f"set absorbs = false for that pull request in carries/{proof.carry}/carry.toml, "
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
