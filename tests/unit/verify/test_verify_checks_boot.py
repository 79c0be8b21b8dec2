"""Boot: what a server says of itself, rule by rule, and its first answers."""

from typing import Any

import pytest
from msgspec.structs import replace
from verify_kit import Bench, boot_facts, by_name, context

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
CAPACITY = "NVFP4 holds more tokens a byte than FP8"
BENCH = Bench(BOOT)
healthy = BENCH.healthy


def judged(
    facts: Any = None, observations: tuple[Observation, ...] | None = None, **more: Any
) -> dict[str, Finding]:
    return by_name(
        BOOT.judge(context(facts=facts, **more), healthy() if observations is None else observations)
    )


NEVER = {"samples": (), "before": None, "after": None}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({**NEVER, "died": 137, "log": ("Loading weights",)}, "memory runs out"),
        ({**NEVER, "died": 1, "log": ("torch.OutOfMemoryError: CUDA out of memory",)}, "CUDA out of memory"),
        (
            {**NEVER, "died": 1, "log": ("RuntimeError: Engine core initialization failed.",)},
            "did not come up",
        ),
        ({**NEVER, "canary": "not ready within 1800 s"}, "not ready within 1800 s"),
        # An engine that is dead behind a healthy /health shows by the plain request alone.
        ({"canary": "500: EngineDeadError"}, "no longer answered a plain request: 500: EngineDeadError"),
    ],
)
def test_a_server_that_does_not_come_up_or_answer_fails(changes: dict[str, Any], words: str) -> None:
    finding = judged(observations=(replace(healthy()[0], **changes),))[ANSWERS]
    assert finding.verdict == "fail"
    assert words in finding.cause
    assert all(line in finding.cause for line in changes.get("log", ()))


DEFAULT_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
BOTH = {"graph_mode": "FULL_AND_PIECEWISE"}


@pytest.mark.parametrize(
    ("rule", "changes", "verdict", "says"),
    [
        (ESTIMATE, {"graph_gib": 0.0}, "pass", ""),
        (ESTIMATE, {"graph_gib": 3.2}, "pass", ""),
        (ESTIMATE, {"graph_gib": -35.69, "kv_gib": 72.0}, "fail", "-35.69 GiB; the KV cache took 72.00 GiB"),
        (ESTIMATE, {"runner": "v2", "graph_gib": None}, "pass", ""),
        (ESTIMATE, {"graph_gib": None, "graph_mode": "NONE"}, "pass", ""),
        (ESTIMATE, {"graph_gib": None}, "inconclusive", "names no estimate"),
        (ESTIMATE, {"runner": "v2", "graph_gib": -0.5}, "fail", "-0.50 GiB"),
        # 0.55 x 119.6 GiB is 65.8; the pool of 72 GiB beside 18.2 of weights is 24 more.
        (BUDGET, {"kv_gib": 72.0}, "fail", "24.4 GiB more than 0.55 x 119.6 GiB = 65.8 GiB"),
        (BUDGET, {"kv_gib": 47.5}, "pass", ""),
        (BUDGET, {"kv_gib": 48.8}, "pass", ""),
        (BUDGET, {"kv_gib": 49.1}, "fail", ""),
        (
            BUDGET,
            {"total_gib": -1, "utilization": -1},
            "inconclusive",
            "1: not known: total memory, utilization",
        ),
        (CAPTURES, {**BOTH, "capture_sizes": DEFAULT_SIZES}, "pass", ""),
        (CAPTURES, {**BOTH, "capture_sizes": DEFAULT_SIZES, "speculative_tokens": 12}, "fail", ""),
        (CAPTURES, {**BOTH, "capture_sizes": (8, 12), "max_num_seqs": 1}, "pass", ""),
        (
            CAPTURES,
            {**BOTH, "capture_sizes": (8, 12, 16, 20)},
            "fail",
            "sizes 12, 20 are no multiples of 1 + k = 8",
        ),
        (CAPTURES, {"graph_mode": "FULL", "capture_sizes": DEFAULT_SIZES}, "fail", ""),
        (CAPTURES, {"graph_mode": "FULL_DECODE_ONLY", "capture_sizes": (8, 12, 16)}, "fail", ""),
        (CAPTURES, {"graph_mode": "FULL", "capture_sizes": (8, 12, 16)}, "fail", ""),
        (CAPTURES, {"graph_mode": "PIECEWISE", "capture_sizes": DEFAULT_SIZES}, "pass", ""),
        (CAPTURES, {"graph_mode": "PIECEWISE", "runner": "v2", "capture_sizes": DEFAULT_SIZES}, "pass", ""),
        (CAPTURES, {"graph_mode": "FULL_DECODE_ONLY", "runner": "v2", "capture_sizes": (8, 12)}, "fail", ""),
        (CAPTURES, {"graph_mode": "NONE", "capture_sizes": (3,)}, "pass", ""),
        (CAPTURES, {"graph_mode": "FULL", "capture_sizes": (1, 2, 3), "speculative_tokens": 0}, "pass", ""),
        (CAPTURES, {"graph_mode": "FULL", "capture_sizes": (11, 22), "speculative_tokens": 10}, "pass", ""),
        (CAPTURES, {"graph_mode": "FULL", "capture_sizes": (8, 16), "speculative_tokens": 10}, "fail", ""),
        (CAPTURES, {"graph_mode": "", "capture_sizes": (8, 16)}, "inconclusive", "no graph mode"),
        (CAPTURES, {"graph_mode": "FULL", "capture_sizes": ()}, "inconclusive", "no capture sizes"),
    ],
)
def test_each_rule_is_judged_by_what_the_log_says(rule, changes, verdict, says):
    finding = judged({("main", 0): boot_facts(), ("main", 1): boot_facts(**changes)})[rule]
    assert finding.verdict == verdict
    assert says in finding.cause
    assert (verdict == "pass") or finding.cause.startswith("main boot 1: ")


def test_odd_sizes_of_piecewise_graphs_are_a_warning() -> None:
    piecewise = judged(boot_facts(graph_mode="PIECEWISE", capture_sizes=(8, 12)))[CAPTURES]
    assert "sizes 12 are no multiples" in piecewise.warnings[0]


def packed(ratio: float) -> BootFacts:
    return boot_facts(
        kv_dtype="nvfp4", kv_gib=40.1, kv_tokens=int(40.1 * 525_000 / 35.7 * ratio), speculative_tokens=3
    )


def test_capacity_is_judged_for_nvfp4_alone() -> None:
    assert CAPACITY not in judged()


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.79, "pass"), (NVFP4_RATIO, "pass"), (1.6, "pass"), (1.0, "fail")]
)
def test_capacity_is_compared_by_bytes_with_an_fp8_start(ratio: float, verdict: str) -> None:
    finding = judged({("main", 0): packed(ratio), ("baseline", 0): boot_facts()})[CAPACITY]
    assert finding.verdict == verdict
    assert finding.measured["main boot 0 ratio"] == pytest.approx(ratio, abs=0.002)


def test_capacity_is_compared_with_the_band_where_nothing_else_ran() -> None:
    band = "qwen3.6-27b/mtp/k3/nvfp4"
    assert judged(packed(1.79), band=band)[CAPACITY].verdict == "pass"
    assert judged(packed(1.0), band=band)[CAPACITY].verdict == "fail"
    assert judged(packed(1.79))[CAPACITY].verdict == "inconclusive"


def test_without_a_log_nothing_is_claimed_of_it() -> None:
    empty = replace(boot_facts(), graph_gib=None, capture_sizes=(), runner="", total_gib=-1)
    found = judged(empty, lacks={"log": "no log was given"})
    assert found[ANSWERS].verdict == found[DRAFTER].verdict == "pass"
    for rule in (ESTIMATE, BUDGET, CAPTURES):
        assert found[rule].verdict == "not-applicable"
        assert found[rule].cause == "no log was given"
