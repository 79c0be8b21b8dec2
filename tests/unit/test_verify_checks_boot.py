"""Boot: what a server says of itself, rule by rule, and its first answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from verify_kit import (
    SEEDS,
    Bench,
    Server,
    boot_facts,
    by_name,
    changed,
    context,
    judge,
)

from sparkwright.engine.findings import Finding
from sparkwright.engine.observations import BootFacts, Observation
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.boot import NVFP4_RATIO

BOOT = ALL["boot"]
ANSWERS = "the server starts and answers"
DRAFTER = "the drafter works"
ESTIMATE = "the estimate of CUDA graphs' memory is not negative"
BUDGET = "KV cache and weights stay within the budget"
CAPTURES = "decode graphs are captured for whole drafts"
RUNNER = "the model runner is known"
CAPACITY = "NVFP4 holds more tokens a byte than FP8"
BENCH = Bench(BOOT)
healthy = BENCH.healthy


def judged(
    facts: Any = None, observations: tuple[Observation, ...] | None = None, **more: Any
) -> dict[str, Finding]:
    return by_name(
        BOOT.judge(context(facts=facts, **more), healthy() if observations is None else observations)
    )


def facts(**changes: Any) -> BootFacts:
    return boot_facts(**changes)


# First answers -------------------------------------------------------------------------------------------


def test_the_first_answers_are_of_every_category() -> None:
    [cell] = BOOT.cells(context())
    assert {prompt.category for prompt in cell.prompts} == {"code", "math", "prose"}
    assert cell.load.requests == len(cell.prompts) >= 8


@pytest.mark.parametrize(
    ("status", "log", "words"),
    [
        (137, ("Loading weights",), "memory is used up"),
        (
            1,
            ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",),
            "GPU's memory was used up",
        ),
        (
            1,
            ("RuntimeError: Engine core initialization failed. See root cause above.",),
            "engine did not come up",
        ),
    ],
)
def test_a_server_that_does_not_come_up_fails_with_its_log(
    status: int, log: tuple[str, ...], words: str
) -> None:
    never = msgspec.structs.replace(healthy()[0], samples=(), before=None, after=None, died=status, log=log)
    finding = judged(observations=(never,))[ANSWERS]
    assert finding.verdict == "fail"
    assert words in finding.cause
    assert log[0][:40] in finding.cause


def test_a_server_that_takes_too_long_fails() -> None:
    slow = msgspec.structs.replace(
        healthy()[0], samples=(), before=None, after=None, canary="not ready within 1800 s"
    )
    finding = judged(observations=(slow,))[ANSWERS]
    assert finding.verdict == "fail"
    assert "not ready within 1800 s" in finding.cause


def test_health_is_not_asked_but_a_canary() -> None:
    """An engine that is dead behind a healthy /health shows by the plain request alone."""
    finding = judged(observations=tuple(changed(healthy(), 0, canary="500: EngineDeadError")))[ANSWERS]
    assert finding.verdict == "fail"
    assert "no longer answered a plain request: 500: EngineDeadError" in finding.cause


@pytest.mark.parametrize("seed", SEEDS)
def test_an_inert_drafter_fails(seed: int) -> None:
    found = judge(BOOT, context(), Server(seed=seed, factor=lambda cell, at_s, cached: 0.0))
    assert found[DRAFTER].verdict == "fail"
    assert found[DRAFTER].cause.startswith("drafter inert: 0 tokens of ")
    assert found[ANSWERS].verdict == "pass"


# Memory --------------------------------------------------------------------------------------------------


def test_a_negative_estimate_fails_and_names_the_boot() -> None:
    both = {("main", 0): facts(), ("main", 1): facts(graph_gib=-35.69, kv_gib=72.0)}
    finding = judged(both)[ESTIMATE]
    assert finding.verdict == "fail"
    assert (
        finding.cause == "main boot 1: CUDA graphs were estimated at -35.69 GiB; the KV cache took 72.00 GiB"
    )


@pytest.mark.parametrize("estimate", [0.0, 0.01, 3.2])
def test_an_estimate_of_nothing_or_more_passes(estimate: float) -> None:
    assert judged(facts(graph_gib=estimate))[ESTIMATE].verdict == "pass"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"runner": "v2", "graph_gib": None}, "pass"),
        ({"runner": "v1", "graph_gib": None, "graph_mode": "NONE"}, "pass"),
        ({"runner": "v1", "graph_gib": None}, "inconclusive"),
        ({"runner": "v2", "graph_gib": -0.5}, "fail"),
    ],
)
def test_an_estimate_is_missed_where_one_is_made(changes: dict[str, Any], verdict: str) -> None:
    assert judged(facts(**changes))[ESTIMATE].verdict == verdict


def test_memory_beyond_the_budget_fails() -> None:
    """0.55 x 119.6 GiB is 65.8; the reported pool of 72 GiB beside 18.2 of weights is 24 more."""
    finding = judged(facts(kv_gib=72.0))[BUDGET]
    assert finding.verdict == "fail"
    assert "24.4 GiB more than 0.55 x 119.6 GiB = 65.8 GiB" in finding.cause


@pytest.mark.parametrize(("kv", "verdict"), [(47.5, "pass"), (48.8, "pass"), (49.1, "fail")])
def test_the_budget_has_two_percent_of_slack(kv: float, verdict: str) -> None:
    assert judged(facts(kv_gib=kv))[BUDGET].verdict == verdict


def test_an_unknown_budget_is_undecided() -> None:
    finding = judged(facts(total_gib=-1, utilization=-1))[BUDGET]
    assert (finding.verdict, finding.cause) == (
        "inconclusive",
        "main boot 0: not known: total memory, utilization",
    )


# Graphs --------------------------------------------------------------------------------------------------

DEFAULT_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"graph_mode": "FULL_AND_PIECEWISE", "capture_sizes": DEFAULT_SIZES}, "pass"),
        (
            {"graph_mode": "FULL_AND_PIECEWISE", "capture_sizes": DEFAULT_SIZES, "speculative_tokens": 12},
            "fail",
        ),
        ({"graph_mode": "FULL_AND_PIECEWISE", "capture_sizes": (8, 12), "max_num_seqs": 1}, "pass"),
        ({"graph_mode": "FULL", "capture_sizes": DEFAULT_SIZES}, "fail"),
        ({"graph_mode": "FULL_DECODE_ONLY", "capture_sizes": (8, 12, 16)}, "fail"),
        ({"graph_mode": "FULL", "capture_sizes": (8, 12, 16)}, "fail"),
        ({"graph_mode": "PIECEWISE", "capture_sizes": DEFAULT_SIZES}, "pass"),
        ({"graph_mode": "PIECEWISE", "runner": "v2", "capture_sizes": DEFAULT_SIZES}, "pass"),
        ({"graph_mode": "FULL_DECODE_ONLY", "runner": "v2", "capture_sizes": (8, 12)}, "fail"),
        ({"graph_mode": "NONE", "capture_sizes": (3,)}, "pass"),
        ({"graph_mode": "FULL", "capture_sizes": (1, 2, 3), "speculative_tokens": 0}, "pass"),
        ({"graph_mode": "FULL", "capture_sizes": (11, 22, 44), "speculative_tokens": 10}, "pass"),
        ({"graph_mode": "FULL", "capture_sizes": (8, 16), "speculative_tokens": 10}, "fail"),
        ({"graph_mode": "", "capture_sizes": (8, 16)}, "inconclusive"),
        ({"graph_mode": "FULL", "capture_sizes": ()}, "inconclusive"),
    ],
)
def test_sizes_are_multiples_where_they_must_be(changes: dict[str, Any], verdict: str) -> None:
    assert judged(facts(**changes))[CAPTURES].verdict == verdict


def test_odd_sizes_are_named() -> None:
    found = judged(facts(capture_sizes=(8, 12, 16, 20)))[CAPTURES]
    assert "sizes 12, 20 are no multiples of 1 + k = 8" in found.cause
    piecewise = judged(facts(graph_mode="PIECEWISE", capture_sizes=(8, 12)))[CAPTURES]
    assert "sizes 12 are no multiples" in piecewise.warnings[0]


def test_the_model_runner_must_be_known_and_the_same() -> None:
    assert judged(facts(runner="v2"))[RUNNER].cause == "main boot 0 ran v2"
    assert judged(facts(runner=""))[RUNNER].verdict == "inconclusive"
    mixed = judged({("main", 0): facts(), ("main", 1): facts(runner="v2")})[RUNNER]
    assert mixed.verdict == "invalid"
    assert "main boot 0 ran v1, main boot 1 ran v2" in mixed.cause
    arms = judged({("main", 0): facts(), ("baseline", 0): facts(runner="v2")})[RUNNER]
    assert arms.verdict == "pass"


# Capacity ------------------------------------------------------------------------------------------------


def packed(ratio: float) -> BootFacts:
    return facts(
        kv_dtype="nvfp4", kv_gib=40.1, kv_tokens=int(40.1 * 525_000 / 35.7 * ratio), speculative_tokens=3
    )


def test_capacity_is_judged_for_nvfp4_alone() -> None:
    assert CAPACITY not in judged()


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.79, "pass"), (NVFP4_RATIO, "pass"), (1.6, "pass"), (1.0, "fail")]
)
def test_capacity_is_compared_by_bytes_with_an_fp8_start(ratio: float, verdict: str) -> None:
    finding = judged({("main", 0): packed(ratio), ("baseline", 0): facts()})[CAPACITY]
    assert finding.verdict == verdict
    assert finding.measured["main boot 0 ratio"] == pytest.approx(ratio, abs=0.002)


def test_more_memory_does_not_hide_a_cache_that_gains_nothing() -> None:
    """Twice the tokens in twice the memory is no gain."""
    twice = facts(kv_dtype="nvfp4", kv_gib=71.4, kv_tokens=1_050_000, utilization=0.8)
    finding = judged({("main", 0): twice, ("baseline", 0): facts()})[CAPACITY]
    assert finding.verdict == "fail"
    assert "1.00 times the tokens of FP8 per GiB" in finding.cause


def test_capacity_is_compared_with_the_band_where_nothing_else_ran() -> None:
    band = "qwen3.6-27b/mtp/k3/nvfp4"
    assert judged(packed(1.79), band=band)[CAPACITY].verdict == "pass"
    assert judged(packed(1.0), band=band)[CAPACITY].verdict == "fail"
    assert judged(packed(1.79))[CAPACITY].verdict == "inconclusive"


# Without a log -------------------------------------------------------------------------------------------


def test_without_a_log_nothing_is_claimed_of_it() -> None:
    empty = msgspec.structs.replace(facts(), graph_gib=None, capture_sizes=(), runner="", total_gib=-1)
    found = judged(empty, lacks={"log": "no log was given"})
    assert found[ANSWERS].verdict == found[DRAFTER].verdict == "pass"
    for rule in (ESTIMATE, BUDGET, CAPTURES, RUNNER):
        assert found[rule].verdict == "not-applicable"
        assert found[rule].cause == "no log was given"


def test_a_server_without_a_gpu_has_no_memory_of_one() -> None:
    found = judged(msgspec.structs.replace(facts(), total_gib=-1), lacks={"gpu": "no GPU"})
    assert {found[name].verdict for name in (ESTIMATE, BUDGET, CAPTURES)} == {"not-applicable"}
    assert found[RUNNER].verdict == "pass"
