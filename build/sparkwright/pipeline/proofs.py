"""Proofs of carries: the judgement of one after a merge, the step that proves it, and `carry prove`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ProofError, UnprovedError
from sparkwright.carries.model import Carry
from sparkwright.merge.engine import merge_patchset
from sparkwright.merge.report import MergeReport, Outcome, OutcomeKind
from sparkwright.native.host import require_isolation
from sparkwright.pipeline.checkout import pinned_by
from sparkwright.pipeline.job import Job, require_listed
from sparkwright.pipeline.state import Step, require
from sparkwright.probe.judge import Prover
from sparkwright.probe.pool import ProbePool
from sparkwright.probe.proof import ProbeVerdict, Proof, write_proof
from sparkwright.probe.upstream_tests import UpstreamTests, read_record, record_path, write_record

Evidence = Literal["proved", "not needed", "declared", "unproved", ""]
"""The evidence for an outcome: a proof that confirms it or shows the carry needless, or a declaration."""


@dataclass(frozen=True)
class Trial:
    """The trees, and the files in them, on which one carry is judged by its probe.

    Attributes:
        prover: the prover for the two trees, or for the pristine one alone.
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

    *touched* are the files that its change is about; by default those of its patch.
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

    With *recorded*, proofs in the store do not count.
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


# The step -----------------------------------------------------------------------------------------


def prove(job: Job, report: MergeReport | None, carry: Carry) -> Step[tuple[Proof, ...]]:
    """Prove one carry: that it is needed and works, or that upstream needs it not.

    The result is empty for a carry that needs no proof, or goes in without one.
    """
    name = carry.name
    trial = None if report is None else trial_of(job, report, carry)
    key = None
    if report is not None:
        wanted = trial is not None and wants_proof(report, carry)
        key = trial.key() if trial and wanted else digest_of([name, str(report.outcome(name).kind)])

    def find() -> tuple[Proof, ...] | None:
        if report is None:
            return None
        if not wants_proof(report, carry):
            return ()  # the tree contains nothing of the carry, and no probe could tell more
        proof = find_proof(job, report, carry)
        return None if proof is None else (proof,)

    def make() -> tuple[Proof, ...]:
        if name in job.options.allow_unproved:
            return ()
        if trial is None:
            why = "the tree that it changes cannot be judged here"
            raise _unproved(name, "it has no probe" if carry.spec.probe is None else why)
        proof = trial.prove()
        _refuse_unless_proved(proof, trial.wanted, require(report).outcome(name))
        return (proof,)

    def about(_found: object) -> dict[str, object]:
        return {} if report is None else {"evidence": evidence_of(job, report, carry)}

    return Step(f"prove {name}", key, find, make, about)


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
    raise _unproved(proof.carry, _why_unproved(proof, outcome))


# All carries of a patchset ------------------------------------------------------------------------


def prove_carries(
    job: Job, names: tuple[str, ...], onto: str | None
) -> tuple[list[Proof], dict[str, str], dict[str, str]]:
    """Prove all carries of *job*, or those of *names*, on its pin or *onto* a release, and record the proofs.

    Returns:
        The proofs, and by name why others need none, or have none.
    """
    require_listed(job.checkout, job.spec, names)
    version = onto or job.spec.lock.release.version
    elsewhere = onto is not None and version != job.spec.lock.release.version
    pristine = job.source.release(version) if elsewhere else job.pristine
    report = merge_patchset(job.repository, job.merge_request(pristine, version))
    recorded_there = pinned_by(job.checkout, version) if elsewhere else frozenset()
    proofs: list[Proof] = []
    needless: dict[str, str] = {}
    unproved: dict[str, str] = {}
    for carry in job.spec.carries:
        if names and carry.name not in names:
            continue
        outcome = report.outcome(carry.name)
        trial = trial_of(job, report, carry)
        blocked = outcome.kind.blocks_build
        if trial is None or (blocked and not elsewhere):
            decided = outcome.kind in {OutcomeKind.LEFT_OUT, OutcomeKind.SUPERSEDED}
            why = "it has no probe" if outcome.kind.wants_proof else f"{outcome.kind}: {outcome.detail}"
            (needless if decided else unproved)[carry.name] = why
            continue
        proof = trial.prove()
        proofs.append(proof)
        confirmed = proof.verdict is trial.wanted and bool(trial.paths or not blocked)
        if confirmed or (elsewhere and proof.verdict is ProbeVerdict.NOT_NEEDED and not blocked):
            if carry.name not in recorded_there:
                write_proof(carry.folder, proof, version)
        elif proof.verdict is not ProbeVerdict.REFUTED:
            used = carry.revision_for(version)
            of = f", made for {used.release}," if used is not None and used.release != version else ""
            unproved[carry.name] = _why_unproved(proof, outcome, of)
    return proofs, needless, unproved


def _why_unproved(proof: Proof, outcome: Outcome, of: str = "") -> str:
    if proof.verdict == "not absorbed":
        return f"{outcome.kind}: {outcome.detail}, but {reason_of(proof)}"
    if proof.verdict == "broken":
        return f"its probe{of} could not run: {reason_of(proof)}"
    return "its probe passes on the pristine tree: it is not needed here"


def reason_of(proof: Proof) -> str:
    """Return one line on what *proof* rests on: the error of a broken run is in its last line."""
    lines = proof.finding.strip().splitlines() or [""]
    return lines[-1 if proof.verdict is ProbeVerdict.BROKEN else 0]


def run_upstream_tests(job: Job, files: tuple[str, ...]) -> UpstreamTests:
    """Return the recorded result while it holds, or make and record it; of FILES, make it."""
    report = merge_patchset(job.repository, job.merge_request(job.pristine, job.spec.lock.release.version))
    report.require_merged()
    path = record_path(job.checkout.patchsets, job.spec.file)
    with ProbePool(job.store) as pool:
        gate = job.upstream_gate(report, pool)
        known = None if files else read_record(path)
        if known is not None and known.key == gate.key() and not known.regressions:
            return known
        require_isolation()
        found = gate.run(files)
    if not files:
        write_record(path, found)
    return found
