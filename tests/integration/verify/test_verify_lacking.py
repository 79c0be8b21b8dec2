"""Servers that lack what vLLM has pass with a stated coverage; what they lose or should have is found."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fault_matrix import REAL_TIME

from sparkwright.base.errors import EndpointError
from sparkwright.engine.findings import Verdict
from sparkwright.verify.journal import Run
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.plan import plan_of
from sparkwright.verify.results import load_run
from sparkwright.verify.setup import prepare
from sparkwright.verify.simulator.main import simulator
from sparkwright.verify.suite import run_plan

QUICK = ("--step-ms", "1,0.05,0,0.002", "--no-engine")
SIZES = msgspec.structs.replace(REAL_TIME, checks=("boot", "coherence", "sweep", "crash"), off_grid=(3,))


def verified(folder: Path, *server: str, sizes: Any = SIZES, **options: Any) -> Run:
    """Return the run at the address of a simulator with the options *server*."""

    async def run() -> None:
        async with simulator(folder, *QUICK, *server) as endpoint:
            chosen = VerifyOptions(url=endpoint.url, **({"model": endpoint.model} | options))
            await run_plan(*await prepare(plan_of(chosen, sizes), folder / "run"), folder / "run")

    asyncio.run(run())
    return load_run(folder / "run")


def told(run: Run) -> str:
    return "\n".join(
        f"{one.verdict} {one.check}: {one.name}: {one.cause}"
        for one in run.findings
        if one.verdict not in {Verdict.PASS, Verdict.NOT_APPLICABLE}
    )


@pytest.mark.slow
def test_a_healthy_server_passes_without_what_it_lacks(tmp_path: Path) -> None:
    run = verified(tmp_path, "--k", "0")
    assert run.verdict is Verdict.PASS, told(run)
    assert set(run.lacks) == {"speculation", "baseline", "log"}
    assert {finding.check for finding in run.findings if finding.verdict is Verdict.PASS} >= {
        "coherence", "sweep", "crash",
    }  # fmt: skip
    left_out = {one.name for one in run.findings if one.verdict is Verdict.NOT_APPLICABLE}
    assert "acceptance does not depend on concurrency" in left_out


def test_a_server_without_counters_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="has no counters of vLLM"):
        verified(tmp_path, "--k", "0", "--fault", "no-metrics")
    assert not (tmp_path / "run" / "journal.jsonl").exists()


def test_a_recipe_that_speculates_is_not_excused(tmp_path: Path) -> None:
    sizes = msgspec.structs.replace(SIZES, checks=("boot",))
    run = verified(tmp_path, "--k", "0", sizes=sizes, recipe="qwen3.6-27b-dflash")
    assert "speculation" not in run.lacks
    assert run.verdict is Verdict.FAIL
    assert "drafter inert" in told(run)


TRAFFIC = msgspec.structs.replace(SIZES, checks=("traffic",), max_tokens=128)


@pytest.mark.parametrize("option", ["--no-tool-parser", "--no-tool-template"])
def test_tools_that_a_server_refuses_are_not_applicable(tmp_path: Path, option: str) -> None:
    run = verified(tmp_path, "--k", "0", option, sizes=TRAFFIC)
    assert run.verdict is Verdict.PASS, told(run)
    assert "tools" in run.lacks
    assert ("leaves tools out" in run.lacks["tools"]) == (option == "--no-tool-template")
    left_out = {one.name for one in run.findings if one.verdict is Verdict.NOT_APPLICABLE}
    assert left_out == {"tool calls are whole", "demanded tool calls come"}
    assert not any(observation.cell.load.tools for observation in run.observations)
    assert {observation.cell.name for observation in run.observations} >= {"turn 1", "turn 2", "turn 3"}


def test_pictures_that_a_server_lacks_are_not_applicable(tmp_path: Path) -> None:
    sizes = msgspec.structs.replace(SIZES, checks=("image",))
    run = verified(tmp_path, "--k", "0", "--no-images", sizes=sizes)
    assert run.verdict is Verdict.INCONCLUSIVE  # nothing else was checked
    assert {one.verdict for one in run.findings} == {Verdict.NOT_APPLICABLE}


def test_a_tool_parser_that_the_recipe_configures_is_not_excused(tmp_path: Path) -> None:
    run = verified(tmp_path, "--no-tool-parser", sizes=TRAFFIC, recipe="qwen3.5-27b-dflash")
    assert "tools" not in run.lacks
    assert run.verdict is Verdict.FAIL
    assert "in tools single" in told(run)
