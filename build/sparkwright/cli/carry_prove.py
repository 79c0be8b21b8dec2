"""``sparkwright carry prove``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import AbsorptionError, ProofError, SparkwrightError, UnprovedError
from sparkwright.cli.carry_test_upstream import prove_by_upstreams_tests
from sparkwright.cli.globals import Command
from sparkwright.cli.options import cluster_option, job_options
from sparkwright.cli.result import Result, Table
from sparkwright.cli.session import Session, run_in_clone
from sparkwright.merge import Outcome
from sparkwright.pipeline import Job, TargetOptions
from sparkwright.pipeline.options import CompileOptions
from sparkwright.pipeline.trial import Trial
from sparkwright.probe import Proof


@click.command("prove", cls=Command)
@click.argument("names", nargs=-1)
@click.option(
    "--onto", metavar="VERSION", help="Judge them on another release of upstream's, instead of the pin."
)
@click.option(
    "--upstream-tests",
    is_flag=True,
    help="Run upstream's own tests on both trees instead, all that touch what changes; NAMES are then files.",
)
@cluster_option
@job_options
@run_in_clone
def prove(
    session: Session,
    *,
    names: tuple[str, ...],
    upstream_tests: bool,
    onto: str | None,
    compiling: CompileOptions,
    target: TargetOptions,
) -> Result:
    """Run the probes of all carries, or of NAMES, on the pristine and the merged tree.

    Each proof is recorded beside its carry. An unproved carry is an error, unless it is left out. For one
    that upstream seems to contain, or that is declared superseded, the defect must be gone.

    Onto another release, a carry that does not merge is judged on the pristine tree alone, and a proof that
    it is not needed there is recorded too. Of a release that another series pins, nothing is recorded for
    the carries of that series: its own 'carry prove' does that.
    """
    job = session.job(target, compiling=compiling)
    if upstream_tests:
        return prove_by_upstreams_tests(job, names)
    proofs, needless, unproved = _prove(job, names, onto)
    rows = [
        (proof.carry, str(proof.verdict), _first_line(proof.finding, last=proof.verdict == "broken"))
        for proof in proofs
    ]
    rows += [(name, "no proof needed", why) for name, why in needless.items()]
    judged = {proof.carry for proof in proofs}
    rows += [(name, "not proved", why) for name, why in unproved.items() if name not in judged]
    return Result(
        {"proofs": [to_builtins(proof) for proof in proofs], "needless": needless, "unproved": unproved},
        [Table(("carry", "verdict", "what was found"), rows)],
        _failure(proofs, unproved),
    )


def _failure(proofs: Sequence[Proof], unproved: Mapping[str, str]) -> SparkwrightError | None:
    """Return the error of the gravest fault: refuted carries, then those not absorbed, then unproved ones."""
    refuted = {proof.carry: _first_line(proof.finding) for proof in proofs if proof.verdict == "refuted"}
    if refuted:
        told = "; ".join(f"{name}: {why}" for name, why in refuted.items())
        return ProofError(
            f"{', '.join(refuted)} refuted",
            because=f"the probe fails on the merged tree: {told}",
            next_step="correct the carry or its probe, or remove it from the patchset",
        )
    if there := [proof.carry for proof in proofs if proof.verdict == "not absorbed"]:
        return AbsorptionError(
            f"{', '.join(there)} not absorbed",
            because="; ".join(f"{name}: {unproved[name]}" for name in there),
            next_step="set absorbs = false for that pull request, or correct [[superseded]]",
        )
    if unproved:
        return UnprovedError(
            f"{len(unproved)} not proved",
            because="; ".join(f"{name}: {why}" for name, why in unproved.items()),
            next_step="correct the probe, or drop the carry if upstream no longer needs it",
        )
    return None


def _prove(
    job: Job, names: tuple[str, ...], onto: str | None
) -> tuple[list[Proof], dict[str, str], dict[str, str]]:
    """Prove and record; return the proofs, and by name why others need none, or have none."""
    from sparkwright.merge import OutcomeKind, merge_patchset
    from sparkwright.pipeline.checkout import pinned_by
    from sparkwright.pipeline.job import require_listed
    from sparkwright.pipeline.remote_proofs import prove_remotely
    from sparkwright.pipeline.trial import trial_of
    from sparkwright.probe import ProbeVerdict, write_proof

    require_listed(job.checkout, job.spec, names)
    version = onto or job.spec.lock.release.version
    elsewhere = onto is not None and version != job.spec.lock.release.version
    pristine = job.source.release(version) if elsewhere else job.pristine
    report = merge_patchset(job.repository, job.merge_request(pristine, version))
    recorded_there = pinned_by(job.checkout, version) if elsewhere else frozenset()
    proofs: list[Proof] = []
    needless: dict[str, str] = {}
    unproved: dict[str, str] = {}
    trials: dict[str, Trial] = {}
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
        trials[carry.name] = trial
    made = {} if job.cluster is None else prove_remotely(job.cluster, list(trials.values()))
    for name, trial in trials.items():
        carry, outcome = trial.carry, report.outcome(name)
        blocked = outcome.kind.blocks_build
        proof = made.get(name) or trial.prove()
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
        return f"{outcome.kind}: {outcome.detail}, but {_first_line(proof.finding)}"
    if proof.verdict == "broken":
        return f"its probe could not run: {_first_line(proof.finding, last=True)}"
    return "its probe passes on the pristine tree: it is not needed here"


def _first_line(message: str, *, last: bool = False) -> str:
    lines = message.strip().splitlines() or [""]
    return lines[-1 if last else 0]
