"""The judgement of each carry on one target: by its probe on both trees, never by the text of a merge."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sparkwright.carries.model import Carry
from sparkwright.git.repository import Repository
from sparkwright.merge.report import MergeReport, OutcomeKind
from sparkwright.nightly.model import Judgement
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.proofs import Trial, reason_of, trial_of
from sparkwright.pipeline.state import require
from sparkwright.probe.proof import ProbeVerdict, Proof

_DECLARED = frozenset({OutcomeKind.SUPERSEDED, OutcomeKind.LEFT_OUT})
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
_GONE = re.compile(r"cannot import name '(\w+)' from 'vllm\.")
_CHOICE = ("vllm/config/vllm.py", b"def use_v2_model_runner", b"DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES")


@dataclass(frozen=True)
class Judged:
    """A judgement, and what it rests on."""

    judgement: Judgement
    finding: str


@dataclass
class Judge:
    """Judges the carries of one merge."""

    job: Job
    report: MergeReport
    pin: str
    _begun: dict[str, Callable[[], Proof]] = field(default_factory=dict)

    def begin(self, carry: Carry, touched: Sequence[str]) -> None:
        """Start the probe that `judge` of *carry* needs, where it needs one and the job has a pool."""
        declared = self.report.outcome(carry.name).kind in _DECLARED
        trial = None if declared else trial_of(self.job, self.report, carry, touched)
        if self.job.pool is not None and trial is not None and trial.find() is None:
            self._begun[carry.name] = trial.begin()

    def judge(self, carry: Carry, touched: Sequence[str]) -> Judged:
        """Return the judgement on *carry*, which would change the files *touched*.

        A probe runs only if the store has no proof with the same inputs.
        """
        outcome = self.report.outcome(carry.name)
        if outcome.kind in _DECLARED:
            return Judged(Judgement.DECLARED, outcome.detail)
        if carry.spec.probe is None:
            why = f"{outcome.detail}; it has no probe".lstrip("; ")
            conflict = outcome.kind.blocks_build
            return Judged(Judgement.CONFLICT if conflict else Judgement.NOT_JUDGED, why)
        if outcome.kind.blocks_build:
            return self._unmerged(carry, touched)
        trial = require(trial_of(self.job, self.report, carry))
        proof = self._proof(trial)
        judgement = (_MERGED if trial.in_tree else _ABSORBED)[proof.verdict]
        if judgement is Judgement.NEEDED and carry.at(self.report.version).spec.runner == "v1":
            # No probe sees this: it calls the changed code itself.
            before, after = (runners(self.job.repository, one) for one in (self.pin, self.report.pristine))
            if "v1" in before - after:
                why = "it is for model runner V1, and V2 is the default of every model there"
                return Judged(Judgement.REACH_LOST, why)
        return Judged(judgement, self._reason(proof))

    def _unmerged(self, carry: Carry, touched: Sequence[str]) -> Judged:
        """Judge a carry that is in no tree by its probe on the pristine one: the defect may be gone."""
        trial = trial_of(self.job, self.report, carry, touched)
        if trial is None:
            return Judged(Judgement.CONFLICT, self.report.outcome(carry.name).detail)
        proof = self._proof(trial)
        if proof.verdict is ProbeVerdict.NOT_NEEDED and trial.paths:
            return Judged(Judgement.NOT_NEEDED, "its probe passes on the pristine tree")
        if proof.verdict is ProbeVerdict.BROKEN:
            return Judged(Judgement.CONFLICT, f"the probe cannot run there either: {self._reason(proof)}")
        return Judged(Judgement.CONFLICT, f"the defect is still there: {reason_of(proof)}")

    def _reason(self, proof: Proof) -> str:
        """Return what *proof* rests on, after the place of a name that its probe cannot import any more."""
        text = reason_of(proof)
        gone = _GONE.search(text) if proof.verdict is ProbeVerdict.BROKEN else None
        if gone is None or not (paths := self._defining(gone[1])):
            return text
        return f"{gone[1]} is in {', '.join(paths)} now; {text}"

    def _defining(self, name: str) -> list[str]:
        """Return the files of the target's package that define *name* at their top level."""
        word = re.escape(name.encode())
        definition = re.compile(
            rb"^(?:(?:async +)?def|class) +" + word + rb"\b|^" + word + rb" *[:=]", re.MULTILINE
        )
        repository = self.job.repository
        return [
            path
            for path, entry in sorted(repository.files(self.report.pristine).items())
            if path.startswith("vllm/") and path.endswith(".py")
            if definition.search(repository.blob(entry.blob))
        ]

    def _proof(self, trial: Trial) -> Proof:
        begun = self._begun.pop(trial.carry.name, None)
        return trial.find() or trial.prove() if begun is None else begun()


def runners(repository: Repository, tree: str) -> frozenset[str]:
    """Return the model runners that are some model's default: by a list of architectures, or V2 alone."""
    path, choice, by_model = _CHOICE
    entry = repository.files(tree, [path]).get(path)
    text = b"" if entry is None else repository.blob(entry.blob)
    if choice not in text:
        return frozenset({"v1"})
    return frozenset({"v1", "v2"} if by_model in text else {"v2"})
