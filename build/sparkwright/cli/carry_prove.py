"""``sparkwright carry prove``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import click

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import ProofError, SparkwrightError, UnprovedError
from sparkwright.cli.globals import Command
from sparkwright.cli.options import job_options
from sparkwright.cli.result import Part, Result, Table
from sparkwright.cli.session import Session, run_in_clone
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.options import TargetOptions
from sparkwright.pipeline.proofs import first_line, prove_carries, run_upstream_tests
from sparkwright.probe.proof import Proof
from sparkwright.probe.upstream_tests import UpstreamTests


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
@job_options
@run_in_clone
def prove(
    session: Session,
    *,
    names: tuple[str, ...],
    upstream_tests: bool,
    onto: str | None,
    target: TargetOptions,
) -> Result:
    """Run the probes of all carries, or of NAMES, on the pristine and the merged tree.

    Each proof is recorded beside its carry. An unproved carry is an error, unless it is left out. For one
    that upstream seems to contain, or that is declared superseded, the defect must be gone.

    Onto another release, a carry that does not merge is judged on the pristine tree alone, and a proof that
    it is not needed there is recorded too. Of a release that another series pins, nothing is recorded for
    the carries of that series: its own 'carry prove' does that.
    """
    job = session.job(target)
    if upstream_tests:
        return _by_upstreams_tests(job, names)
    proofs, needless, unproved = prove_carries(job, names, onto)
    rows = [
        (proof.carry, str(proof.verdict), first_line(proof.finding, last=proof.verdict == "broken"))
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
    refuted = {proof.carry: first_line(proof.finding) for proof in proofs if proof.verdict == "refuted"}
    if refuted:
        told = "; ".join(f"{name}: {why}" for name, why in refuted.items())
        return ProofError(
            f"{', '.join(refuted)} refuted",
            because=f"the probe fails on the merged tree: {told}",
            next_step="correct the carry or its probe, or remove it from the patchset",
        )
    if there := [proof.carry for proof in proofs if proof.verdict == "not absorbed"]:
        return UnprovedError(
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


def _by_upstreams_tests(job: Job, files: tuple[str, ...]) -> Result:
    """Run upstream's own tests on the pristine and on the merged tree, and name what the patchset breaks.

    Those that touch what the patchset changes are run, or FILES alone, off the network. A test that passes
    on the pristine tree and fails on the merged one, and again in a process of its own, is an error. What
    cannot pass here at all, for want of a GPU, a model or a package, is counted by that reason.

    The result is recorded in patchsets/upstream-tests. While it holds without a regression, nothing is run.
    """
    found = run_upstream_tests(job, files)
    failure = None
    if found.regressions:
        broken = Counter(test.partition("::")[0] for test in found.regressions)
        failure = ProofError(
            f"{len(found.regressions)} of upstream's tests fail on the merged tree alone",
            because=", ".join(f"{count} in {file}" for file, count in broken.items()),
            next_step="correct the carry that changes what they test; the record names each",
        )
    return Result(to_builtins(found), _shown(found), failure)


def _shown(found: UpstreamTests) -> list[Part]:
    said: dict[tuple[str, str], list[str]] = {}
    for test, why in found.regressions.items():
        said.setdefault((test.partition("::")[0], why), []).append(test.partition("::")[2])
    rows = [
        (file, "regression", f"{tests[0]}{f' and {len(tests) - 1} more' if tests[1:] else ''}: {why}")
        for (file, why), tests in said.items()
    ]
    rows += [(test, "flaky", "it differed once, and not alone") for test in found.flaky]
    for reason, files in found.unjudged.items():
        rows.append((f"{sum(files.values())} in {len(files)} files", "not judged", reason))
    told = (
        f"{found.passed} of upstream's tests, in {found.files} files, pass on both trees of {found.version}"
    )
    return [Table(("tests", "verdict", "what was found"), rows), told]
