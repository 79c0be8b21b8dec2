"""Real rehearsals: the patchset over upstream's wheel for the CPU, with a real model and server."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sparkwright.engine.server.bootlog import read_boot_log
from sparkwright.git.repository import Repository
from sparkwright.merge.engine import merge_patchset
from sparkwright.merge.report import MergeReport
from sparkwright.pipeline.job import Job, open_job
from sparkwright.pipeline.options import BuildOptions
from sparkwright.recipes.recipe import load_recipe
from sparkwright.rehearsal.model import RehearsalOptions, RehearsalResult
from sparkwright.rehearsal.run import rehearse, serve_nearest
from sparkwright.serve.preflight.facts import PreflightRequest
from sparkwright.serve.preflight.machine import read_host
from sparkwright.serve.preflight.run import inspect_start
from sparkwright.verify.runner import VERIFIER

ROOT = Path(__file__).parents[3]
SAMPLER = "vllm/v1/sample/sampler.py"

CHECKS = ("boot", "coherence", "prefix")

# Minutes each; test_cli_rehearse.py shows the same with the simulator.
pytestmark = [pytest.mark.slow, pytest.mark.upstream, pytest.mark.walk]


@dataclass(frozen=True)
class Rehearsed:
    """The merged patchset, and its rehearsal in *folder*."""

    job: Job
    report: MergeReport
    folder: Path
    result: RehearsalResult


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    with open_job(ROOT, BuildOptions(series="0.24", platform="x86_64")) as opened:
        yield opened


@pytest.fixture(scope="module")
def merged(job: Job) -> MergeReport:
    report = merge_patchset(job.repository, job.merge_request(job.pristine, job.spec.lock.release.version))
    assert not report.failed
    return report


@pytest.fixture(scope="module")
def rehearsed(job: Job, merged: MergeReport, tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    folder = tmp_path_factory.mktemp("rehearsal") / "merged"
    options = RehearsalOptions(checks=CHECKS, out=folder)
    return Rehearsed(job, merged, folder, rehearse(job, merged, VERIFIER, options))


def with_another_file(job: Job, report: MergeReport, path: str, data: bytes) -> MergeReport:
    """*report* as if one more carry had written *data* to *path*."""
    import msgspec

    repository: Repository = job.repository
    blob = repository.objects.write("blob", data)
    old = repository.files(report.tree, [path])[path]
    tree = repository.objects.edit(report.tree, {path: type(old)(blob=blob, mode=old.mode)})
    assert tree is not None
    return msgspec.structs.replace(report, tree=tree)


def test_the_patchset_passes(rehearsed: Rehearsed) -> None:
    result = rehearsed.result
    assert {check.name: check.verdict for check in result.checks} == dict.fromkeys(CHECKS, "passed")
    assert (result.verdict, result.exact, result.version) == ("passed", True, "0.24.0")


def test_no_burst_breaks_the_patchset(job: Job, merged: MergeReport, tmp_path: Path) -> None:
    options = RehearsalOptions(checks=("crash",), out=tmp_path / "out")
    (crash,) = rehearse(job, merged, VERIFIER, options).checks
    assert (crash.name, crash.verdict) == ("crash", "passed"), crash.detail


# Appended to the sampler, so that no text of upstream's is needed: sentences without sense, which only the
# known facts tell from good ones, and one and the same token each time.
@pytest.mark.parametrize(
    ("greedy", "finding"),
    [
        ("logits.topk(2, dim=-1).indices[..., 1]", "known facts are right"),
        ("logits.argmax(-1) * 0 + 30", "answers are text"),
    ],
)
def test_a_carry_that_spoils_sampling_fails(
    job: Job, merged: MergeReport, tmp_path: Path, greedy: str, finding: str
) -> None:
    source = job.repository.blob(job.repository.files(merged.tree, [SAMPLER])[SAMPLER].blob)
    planted = source + f"\n\nSampler.greedy_sample = staticmethod(lambda logits: {greedy})\n".encode()
    spoiled = with_another_file(job, merged, SAMPLER, planted)
    options = RehearsalOptions(checks=("coherence",), out=tmp_path / "out")
    (coherence,) = rehearse(job, spoiled, VERIFIER, options).checks
    assert (coherence.name, coherence.verdict) == ("coherence", "failed")
    assert coherence.signature == f"coherence: {finding}"


def test_preflight_predicts_weights_and_cache_of_a_real_start(rehearsed: Rehearsed) -> None:
    served = serve_nearest(rehearsed.job, rehearsed.report)
    assert served is not None
    recipe = load_recipe(served.recipe)
    model = Path(recipe.model)
    # Whatever card the tests' machine has, this server runs on the CPU.
    host = replace(read_host({}, models=model), card=None)
    request = PreflightRequest(recipe=recipe, python=served.python, host=host)
    found = inspect_start(request)
    assert not [one for one in found.findings if one.check not in {"kv-requests", "available", "swap"}]

    weights = model / "model.safetensors"
    with weights.open("rb") as stream:
        header = int.from_bytes(stream.read(8), "little")
    assert found.budget.weights == weights.stat().st_size - 8 - header

    (log,) = rehearsed.folder.rglob("server.log")
    boot = read_boot_log(log.read_text(encoding="utf-8"))
    plan = found.budget.plan
    assert plan is not None
    assert plan.tokens(found.budget.pool(), 4096) == boot.kv_tokens
    requests = found.budget.pool() // plan.block_bytes / plan.request_blocks(4096)
    assert round(requests, 2) == boot.max_concurrency
