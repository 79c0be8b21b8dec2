"""One real rehearsal: the patchset over upstream's wheel for the CPU, with a real model and server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkwright.merge import MergeReport, merge_patchset
from sparkwright.pipeline import BuildOptions, Job, open_job
from sparkwright.rehearsal import RehearsalOptions, rehearse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkwright.git import Repository

ROOT = Path(__file__).parents[2]
SAMPLER = "vllm/v1/sample/sampler.py"

pytestmark = [pytest.mark.slow, pytest.mark.upstream]


@pytest.fixture
def job() -> Iterator[Job]:
    with open_job(ROOT, BuildOptions(series="0.24", platform="x86_64")) as opened:
        yield opened


def merged(job: Job) -> MergeReport:
    report = merge_patchset(job.repository, job.merge_request(job.pristine, job.spec.lock.release.version))
    assert not report.failed
    return report


def with_another_file(job: Job, report: MergeReport, path: str, data: bytes) -> MergeReport:
    """*report* as if one more carry had written *data* to *path*."""
    import msgspec

    repository: Repository = job.repository
    blob = repository.objects.write("blob", data)
    old = repository.files(report.tree, [path])[path]
    tree = repository.objects.edit(report.tree, {path: type(old)(blob=blob, mode=old.mode)})
    assert tree is not None
    return msgspec.structs.replace(report, tree=tree)


def test_the_patchset_passes_and_a_carry_that_spoils_sampling_fails(job: Job, tmp_path: Path) -> None:
    report = merged(job)
    checks = ("boot", "coherence", "crash", "prefix")
    options = RehearsalOptions(checks=checks, out=tmp_path / "merged", against_pristine=False)
    result = rehearse(job, report, options)
    assert {check.name: check.verdict for check in result.checks} == dict.fromkeys(checks, "passed")
    assert (result.verdict, result.exact, result.version) == ("passed", True, "0.24.0")

    source = job.repository.blob(job.repository.files(report.tree, [SAMPLER])[SAMPLER].blob)
    # Appended, so that no text of upstream's is needed: one and the same token each time, and sentences
    # without sense, which only the known facts tell from good ones.
    for greedy, finding in (
        ("logits.argmax(-1) * 0 + 30", "answers are text"),
        ("logits.topk(2, dim=-1).indices[..., 1]", "known facts are right"),
    ):
        planted = source + f"\n\nSampler.greedy_sample = staticmethod(lambda logits: {greedy})\n".encode()
        spoiled = with_another_file(job, report, SAMPLER, planted)
        out = tmp_path / finding
        options = RehearsalOptions(checks=("coherence",), out=out, against_pristine=False)
        (coherence,) = rehearse(job, spoiled, options).checks
        assert (coherence.name, coherence.verdict) == ("coherence", "failed")
        assert coherence.signature == f"coherence: {finding}"
