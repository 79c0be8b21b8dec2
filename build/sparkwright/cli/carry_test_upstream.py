"""``sparkwright carry prove --upstream-tests``."""

from __future__ import annotations

from collections import Counter

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import ProofError
from sparkwright.cli.result import Part, Result, Table
from sparkwright.pipeline import Job
from sparkwright.probe.upstream_tests import UpstreamTests


def prove_by_upstreams_tests(job: Job, files: tuple[str, ...]) -> Result:
    """Run upstream's own tests on the pristine and on the merged tree, and name what the patchset breaks.

    Those that touch what the patchset changes are run, or FILES alone, off the network. A test that passes
    on the pristine tree and fails on the merged one, and again in a process of its own, is an error. What
    cannot pass here at all, for want of a GPU, a model or a package, is counted by that reason.

    The result is recorded in patchsets/upstream-tests. While it holds without a regression, nothing is run.
    """
    found = _find(job, files)
    failure = None
    if found.regressions:
        broken = Counter(test.partition("::")[0] for test in found.regressions)
        failure = ProofError(
            f"{len(found.regressions)} of upstream's tests fail on the merged tree alone",
            because=", ".join(f"{count} in {file}" for file, count in broken.items()),
            next_step="correct the carry that changes what they test; the record names each",
        )
    return Result(to_builtins(found), _shown(found), failure)


def _find(job: Job, files: tuple[str, ...]) -> UpstreamTests:
    """Return the recorded result while it holds, or make and record it; of FILES, make it."""
    from sparkwright.merge import merge_patchset
    from sparkwright.native.isolation import require_isolation
    from sparkwright.probe import ProbePool
    from sparkwright.probe.upstream_tests import read_record, record_path, write_record

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
