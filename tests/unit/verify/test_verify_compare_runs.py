"""Two finished runs: what an upgrade made worse is named, and a healthy one passes."""

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from talker_kit import Talker
from verify_kit import SEEDS, Server, boot_facts, by_name, context, costly, dead, failing, profile, run

from sparkwright.base.errors import ConfigError, VerdictError
from sparkwright.cli.main import main
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import FailureKind, Observation
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.compare import compare_runs
from sparkwright.verify.corpus import load_corpus
from sparkwright.verify.journal import BootRecord, Concluded, Journal, Manifest, Measured, Run

LOTTERY = 0.015
SPEED = "requests are as fast as on the baseline"
FIRST = "first tokens come as early as on the baseline"
ANSWERS, TASKS, FAILURES, CACHE = (
    "greedy answers are the same up to near ties",
    "tasks are solved as well",
    "no request fails that did not fail before",
    "the KV cache holds as many tokens",
)


def swept(seed: int, *, slower: float = 1.0, **changes: Any) -> list[Observation]:
    """A sweep of one start, whose speed is drawn."""
    luck = np.random.default_rng(seed).lognormal(0, LOTTERY)
    server = Server(seed=seed, **{"step_ms": 50 * luck * slower, "ttft_ms": 120 * luck, **changes})
    return run(ALL["sweep"], context(profile(max_tokens=200)), server)


def answered(talker: Talker) -> list[Observation]:
    there = replace(context(profile(lossless_prompts=48)), corpus=load_corpus())
    return [talker.measure(cell) for cell in ALL["lossless"].cells(there)]


def finished(observations: list[Observation], **facts: Any) -> Run:
    return Run(facts={("main", 0): boot_facts(**facts)}, observations=tuple(observations))


def compared(old: Run, new: Run) -> dict[str, Finding]:
    return by_name(compare_runs(old, new).findings)


def failed(findings: dict[str, Finding]) -> set[str]:
    return {name for name, finding in findings.items() if finding.verdict is Verdict.FAIL}


# Speed ---------------------------------------------------------------------------------------------------


# An error that were missed once in four times would pass ten trials once in eighteen times (binomial).
TEN = costly(SEEDS[::2], quick=2)


@pytest.fixture(scope="module", params=TEN)
def old(request: pytest.FixtureRequest) -> tuple[int, Run]:
    """A seed, and the sweep before the upgrade that its tests share."""
    return request.param, finished(swept(request.param))


@functools.cache
def equal(seed: int) -> dict[str, Finding]:
    """Return the findings about an equal server."""
    return compared(finished(swept(seed)), finished(swept(seed + 1000)))


def test_an_equal_server_does_not_fail(old: tuple[int, Run]) -> None:
    found = equal(old[0])
    assert not failed(found)
    assert found[SPEED].verdict in {Verdict.PASS, Verdict.INCONCLUSIVE}
    assert any("is assumed, not measured" in warning for warning in found[SPEED].warnings)


@pytest.mark.slow
def test_most_equal_servers_pass() -> None:
    """8 of 10 bound the share by 49 % from below (binomial, at 95 %)."""
    assert sum(equal(seed)[SPEED].verdict is Verdict.PASS for seed in SEEDS[::2]) >= 8


@pytest.mark.parametrize(
    ("changes", "fails", "holds"),
    [
        ({"slower": 1.15}, SPEED, CACHE),
        ({"ttft_ms": 170}, FIRST, SPEED),
        ({"factor": lambda cell, at, cached: 0.75}, SPEED, FIRST),
    ],
    ids=["slower steps", "a later first token", "lost acceptance"],
)
def test_what_is_worse_fails_by_itself(old, changes, fails, holds):
    seed, before = old
    found = failed(compared(before, finished(swept(seed + 1000, **changes))))
    assert fails in found
    assert holds not in found


# Quality -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", TEN)
def test_answers_may_part_at_near_ties_and_not_far_from_one(seed: int) -> None:
    old = finished(answered(Talker(seed=seed, release="0.24")))
    found = compared(old, finished(answered(Talker(seed=seed, release="0.33"))))
    assert found[ANSWERS].verdict is Verdict.PASS
    assert found[TASKS].verdict is Verdict.PASS
    wrong = compared(old, finished(answered(Talker(seed=seed, release="0.33", lossy=0.002))))[ANSWERS]
    assert wrong.verdict is Verdict.FAIL
    assert "rounding does not explain" in wrong.cause


def test_tasks_that_are_no_longer_solved_fail() -> None:
    old = finished(answered(Talker(release="0.24")))
    worse = {"baseline": 0.9, "main": 0.5}
    found = compared(old, finished(answered(Talker(release="0.33", solves=worse))))
    assert found[TASKS].verdict is Verdict.FAIL
    assert "lost" in found[TASKS].cause


# Failures, the cache, and runs that cannot be compared ---------------------------------------------------


def test_requests_that_fail_since_the_upgrade_are_named() -> None:
    new = swept(2)
    new[-1] = failing(new[-1], FailureKind.STALL, which=slice(3, 5))
    found = compared(finished(swept(1)), finished(new))
    assert "4 requests fail in prose c=24, before 0: stall" in found[FAILURES].cause
    assert found[SPEED].verdict is Verdict.INCONCLUSIVE
    # The same failures before are none of the upgrade's.
    old = swept(1)
    old[-1] = failing(old[-1], FailureKind.STALL, which=slice(3, 5))
    assert compared(finished(old), finished(new))[FAILURES].verdict is Verdict.PASS


def test_a_server_that_ended_since_the_upgrade_is_named() -> None:
    new = swept(2)
    new[-1] = dead(new[-1])
    assert FAILURES in failed(compared(finished(swept(1)), finished(new)))


def test_a_smaller_cache_fails_and_other_facts_are_named() -> None:
    found = compared(
        finished(swept(1)), finished(swept(2), kv_tokens=400_000, backends=("TRITON_ATTN",), version="0.33.0")
    )
    assert found[CACHE].verdict is Verdict.FAIL
    assert "400000 tokens fit, on the baseline 525000" in found[CACHE].cause
    assert "backends is ('TRITON_ATTN',), on the baseline ('FLASH_ATTN',)" in found[SPEED].warnings
    assert compared(finished(swept(1)), finished(swept(2)))[CACHE].verdict is Verdict.PASS


def test_runs_without_a_common_cell_are_refused() -> None:
    other = run(ALL["sweep"], context(profile(max_tokens=100)), Server())
    with pytest.raises(ConfigError, match="no measurement in common"):
        compared(finished(swept(1)), finished(other))


def test_a_run_without_a_measurement_is_named_with_its_cause() -> None:
    why = Finding(
        check="boot", name="it boots", definition="", verdict=Verdict.FAIL, cause="no attention backend",
        measured={}, threshold="",
    )  # fmt: skip
    with pytest.raises(ConfigError, match="has no measurement") as caught:
        compared(finished(swept(1)), replace(finished([]), findings=(why,)))
    assert caught.value.because == "no attention backend"


def test_clocks_that_differ_are_refused() -> None:
    old, new = finished(swept(1)), replace(finished(swept(2)), manifest={"speed": 60.0})
    with pytest.raises(ConfigError, match="clocks run at 1 and 60"):
        compared(old, new)


# The command ---------------------------------------------------------------------------------------------


def written(folder: Path, observations: list[Observation]) -> Path:
    """Write a finished run's journal to *folder*."""
    folder.mkdir()
    manifest = Manifest(
        run=folder.name, created="2026-11-23T00:00:00Z", server=folder.name, identity={}, options={}
    )
    with Journal(folder, manifest) as journal:
        journal.write(BootRecord("main", 0, boot_facts()))
        for number, observation in enumerate(observations):
            journal.write(Measured(str(number), observation))
        journal.write(Concluded(()))
    return folder


def test_the_command_leaves_a_page_and_says_what_is_worse(tmp_path: Path, capsys: Any) -> None:
    old, new = written(tmp_path / "old", swept(1)), written(tmp_path / "new", swept(2, slower=1.2))
    out = tmp_path / "out"
    status = main(["verify", "compare", str(old), str(new), "--out", str(out), "--json"])
    assert status == VerdictError.exit_code
    found = json.loads(capsys.readouterr().out)
    assert found["run"]["title"] == "old (0.24.0) → new (0.24.0)"
    assert {path.name for path in out.iterdir()} == {"report.html", "verdict.json"}
    assert {one["name"] for one in found["findings"] if one["verdict"] == "fail"} >= {SPEED}


def test_the_command_refuses_a_run_that_is_named_twice(tmp_path: Path, capsys: Any) -> None:
    old = written(tmp_path / "old", swept(1))
    same = tmp_path / "same"
    same.symlink_to(old)
    words = ["verify", "compare", str(old), str(same), "--out", str(tmp_path / "out")]
    assert main(words) == ConfigError.exit_code
    assert f"{old} was named twice" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_leaves_the_reports_of_the_runs_alone(tmp_path: Path, capsys: Any) -> None:
    old, new = written(tmp_path / "old", swept(1)), written(tmp_path / "new", swept(2))
    assert main(["verify", "compare", str(old), str(new), "--out", str(old)]) == ConfigError.exit_code
    assert f"{old} holds a run" in capsys.readouterr().err
    assert {path.name for path in old.iterdir()} == {"journal.jsonl"}
