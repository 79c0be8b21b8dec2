"""The judgement of each carry on one target: by its probe on both trees, never by the text of a merge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparkwright.base.events import emit
from sparkwright.merge import OutcomeKind
from sparkwright.nightly.model import Judgement
from sparkwright.nightly.reach import Reach, reach_lost
from sparkwright.probe import ProbeVerdict, Prover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.carries import Carry
    from sparkwright.merge import MergeReport, Outcome
    from sparkwright.pipeline import Job
    from sparkwright.probe import Proof

_MERGED = {
    ProbeVerdict.PROVED: Judgement.NEEDED,
    ProbeVerdict.NOT_NEEDED: Judgement.NOT_NEEDED,
    ProbeVerdict.REFUTED: Judgement.WRONG,
    ProbeVerdict.BROKEN: Judgement.BROKEN_PROBE,
}
_ABSORBED = {
    ProbeVerdict.NOT_NEEDED: Judgement.NOT_NEEDED,
    ProbeVerdict.NOT_ABSORBED: Judgement.NOT_ABSORBED,
    ProbeVerdict.BROKEN: Judgement.BROKEN_PROBE,
}


@dataclass(frozen=True)
class Judged:
    """A judgement, and what it rests on."""

    judgement: Judgement
    finding: str


@dataclass
class Judge:
    """Judges the carries of one merge.

    Attributes:
        job: the job.
        report: the merge onto the target.
        pin: what is reached at the pin; shared between targets, since it is read once.
    """

    job: Job
    report: MergeReport
    pin: Reach
    _target: Reach = field(init=False)

    def __post_init__(self) -> None:
        self._target = Reach(self.job.repository, self.report.pristine)

    def judge(self, carry: Carry, touched: Sequence[str]) -> Judged:
        """Return the judgement on *carry*, which would change the files *touched*.

        A probe runs only if the store has no proof with the same inputs.
        """
        outcome = self.report.outcome(carry.name)
        judged = self._judge(carry, outcome, touched)
        emit("night.judged", carry=carry.name, judgement=str(judged.judgement), finding=judged.finding)
        return judged

    def _judge(self, carry: Carry, outcome: Outcome, touched: Sequence[str]) -> Judged:
        if outcome.kind in {OutcomeKind.SUPERSEDED, OutcomeKind.LEFT_OUT}:
            return Judged(Judgement.DECLARED, outcome.detail)
        if carry.spec.probe is None:
            why = f"{outcome.detail}; it has no probe".lstrip("; ")
            conflict = outcome.kind.blocks_build
            return Judged(Judgement.CONFLICT if conflict else Judgement.NOT_JUDGED, why)
        if outcome.kind.blocks_build:
            return self._unmerged(carry, touched)
        absorbed = outcome.kind is OutcomeKind.ABSORBED
        proof = _proof(self.job.prover(self.report), carry, outcome.proof_paths, absorbed=absorbed)
        judgement = (_ABSORBED if absorbed else _MERGED)[proof.verdict]
        if judgement is Judgement.NEEDED:
            at_target = carry.at(self.report.version)
            why = reach_lost(at_target, outcome.paths, self.pin, self._target, self.report.tree)
            if why:
                return Judged(Judgement.REACH_LOST, why)
        return Judged(judgement, told(proof))

    def _unmerged(self, carry: Carry, touched: Sequence[str]) -> Judged:
        """Judge a carry that is in no tree by its probe on the pristine one: the defect may be gone."""
        pristine = self.report.pristine
        prover = Prover(
            self.job.store,
            self.job.repository,
            pristine,
            pristine,
            self.report.version,
            offline=self.job.options.offline,
            facilities=self.job.facilities,
        )
        left = self.job.repository.files(pristine, touched)
        proof = _proof(prover, carry, sorted(left), absorbed=True)
        if proof.verdict is ProbeVerdict.NOT_NEEDED and left:
            return Judged(Judgement.NOT_NEEDED, "its probe passes on the pristine tree")
        if proof.verdict is ProbeVerdict.BROKEN:
            return Judged(Judgement.CONFLICT, f"the probe cannot run there either: {told(proof)}")
        return Judged(Judgement.CONFLICT, f"the defect is still there: {told(proof)}")


def _proof(prover: Prover, carry: Carry, paths: Sequence[str], *, absorbed: bool) -> Proof:
    found = prover.find(carry, paths, absorbed=absorbed)
    return prover.prove(carry, paths, absorbed=absorbed) if found is None else found


def told(proof: Proof) -> str:
    """Return one line on what *proof* rests on: the error of a broken run is in its last line."""
    lines = proof.finding.strip().splitlines() or [""]
    return lines[-1 if proof.verdict is ProbeVerdict.BROKEN else 0]
