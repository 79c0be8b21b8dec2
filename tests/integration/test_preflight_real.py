"""The predicted memory of a real model, and of a real start of vLLM on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparkwright.merge import merge_patchset
from sparkwright.pipeline import BuildOptions, open_job
from sparkwright.recipes import load_recipe
from sparkwright.rehearsal import RehearsalOptions, rehearse
from sparkwright.rehearsal.run import serve_exact
from sparkwright.serve.preflight import PreflightRequest, inspect_start, read_host
from sparkwright.verify.server import read_boot_log

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.upstream]


def test_weights_and_cache_of_a_real_start(tmp_path: Path) -> None:
    with open_job(ROOT, BuildOptions(series="0.24", platform="x86_64")) as job:
        release = job.spec.lock.release.version
        report = merge_patchset(job.repository, job.merge_request(job.pristine, release))
        served = serve_exact(job, report)
        assert served is not None
        options = RehearsalOptions(checks=("boot",), out=tmp_path / "run", against_pristine=False)
        assert rehearse(job, report, options).verdict == "passed"
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
    assert found.budget.demand.weights == weights.stat().st_size - 8 - header

    (log,) = (tmp_path / "run").rglob("server.log")
    boot = read_boot_log(log.read_text(encoding="utf-8"))
    plan = found.budget.demand.plan
    assert plan is not None
    assert plan.tokens(found.budget.pool(), 4096) == boot.kv_tokens
    requests = found.budget.pool() // plan.block_bytes / plan.request_blocks(4096)
    assert round(requests, 2) == boot.max_concurrency
