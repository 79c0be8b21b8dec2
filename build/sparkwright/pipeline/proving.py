"""Prove the carries of a patchset: by their probes, and by upstream's own tests."""

from __future__ import annotations

from sparkwright.merge import Outcome, OutcomeKind, merge_patchset
from sparkwright.native.host import require_isolation
from sparkwright.pipeline.checkout import pinned_by
from sparkwright.pipeline.job import Job, require_listed
from sparkwright.pipeline.trial import trial_of
from sparkwright.probe import ProbePool, ProbeVerdict, Proof, write_proof
from sparkwright.probe.upstream_tests import UpstreamTests, read_record, record_path, write_record


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
            unproved[carry.name] = _why_unproved(proof, outcome)
    return proofs, needless, unproved


def _why_unproved(proof: Proof, outcome: Outcome) -> str:
    if proof.verdict == "not absorbed":
        return f"{outcome.kind}: {outcome.detail}, but {first_line(proof.finding)}"
    if proof.verdict == "broken":
        return f"its probe could not run: {first_line(proof.finding, last=True)}"
    return "its probe passes on the pristine tree: it is not needed here"


def first_line(message: str, *, last: bool = False) -> str:
    """Return the first line of a finding, or with *last* its last one."""
    lines = message.strip().splitlines() or [""]
    return lines[-1 if last else 0]


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
