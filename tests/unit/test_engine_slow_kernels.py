"""The kernels of FP4 weights: read from logs of both dialects, judged by the card, and warned of."""

from __future__ import annotations

from typing import Any

import pytest
from boot_logs import Boot
from simulator_kit import settings
from verify_kit import Bench, boot_facts, by_name, context

from sparkwright.base.events import subscribe
from sparkwright.engine.findings import Verdict
from sparkwright.engine.server.bootlog import read_boot_log
from sparkwright.engine.slow_kernels import fallbacks, lost_graphs, warn_of_fallbacks
from sparkwright.verify.checks import ALL
from sparkwright.verify.simulator.log import boot_lines

FINDING = "FP4 weights run on FP4 kernels"
BENCH = Bench(ALL["boot"])
FAST = {
    "capability": "12.1",
    "linear_backends": ("NVFP4 FlashInferCutlassNvFp4LinearKernel",),
    "moe_backends": ("NvFp4 FLASHINFER_CUTLASS",),
    "eager": False,
}


def log(dialect: str, *lines: str, **changes: Any) -> str:
    boot = Boot(dialect, **changes)
    return boot.text + "".join(f"{boot.engine('x.py:1', line)}\n" for line in lines)


def judged(**changes: Any) -> Any:
    facts = {("main", 0): boot_facts(**{**FAST, **changes})}
    return by_name(ALL["boot"].judge(context(facts=facts), BENCH.healthy()))[FINDING]


@pytest.mark.parametrize("dialect", ["0.24", "0.33"])
def test_kernels_are_read_with_their_kinds(dialect: str) -> None:
    facts = read_boot_log(
        log(
            dialect,
            "Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM",
            "Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend out of potential backends: ['EMULATION'].",
            "Using 'MARLIN' Mxfp4 MoE backend.",
            "Using TRITON Fp8 MoE backend out of potential backends: ['TRITON'].",
            "Loading drafter model...",
            "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].",
        )
    )
    assert facts.linear_backends == ("NVFP4 FlashInferCutlassNvFp4LinearKernel",)
    assert facts.moe_backends == ("NvFp4 FLASHINFER_CUTLASS", "Mxfp4 MARLIN", "Fp8 TRITON")
    assert facts.backends == ("TRITON_ATTN", "FLASHINFER", "FLASH_ATTN")
    assert facts.drafter_backends == ("FLASH_ATTN",)
    assert (facts.quantization, facts.eager, facts.slow_paths) == ("modelopt", False, ())


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (
            "Your GPU does not have native support for FP4 computation but FP4 quantization is being used.",
            "weight-only kernels",
        ),
        ("Using Nvfp4QuantizationEmulationTritonExperts MOE backend. This will dequantize", "emulation"),
        ("NVFP4 linear falling back to the slow and unoptimized emulation backend as no", "emulation"),
    ],
)
def test_warnings_of_slow_paths_are_read(line: str, path: str) -> None:
    assert read_boot_log(log("0.33", line)).slow_paths == (path,)


def test_requested_backends_are_read() -> None:
    text = log("0.24").replace("'max_num_seqs': 64", "'linear_backend': 'marlin', 'moe_backend': 'emulation'")
    facts = read_boot_log(text)
    assert (facts.asked_linear, facts.asked_moe) == ("marlin", "emulation")


@pytest.mark.parametrize("dialect", ["0.24", "0.33"])
@pytest.mark.parametrize(
    ("fault", "layers"), [("fp4-fallback-linear", "linear"), ("fp4-fallback-moe", "MoE"), ("", "")]
)
def test_the_simulated_start_falls_back_only_with_the_fault(fault: str, layers: str, dialect: str) -> None:
    told = settings(*filter(None, [fault]), dialect=dialect)
    text = "\n".join(f"(EngineCore pid=1) {line.level} {line.text}" for line in boot_lines(told))
    found = fallbacks(read_boot_log(text))
    assert [one.layers for one in found] == ([layers] if layers else [])


@pytest.mark.parametrize("dialect", ["0.24", "0.33"])
@pytest.mark.parametrize("fault", ["piecewise-drafts", ""])
def test_a_simulated_start_loses_whole_graphs_only_with_the_fault(fault: str, dialect: str) -> None:
    told = settings(*filter(None, [fault]), dialect=dialect)
    text = "\n".join(f"(EngineCore pid=1) {line.level} {line.text}" for line in boot_lines(told))
    assert bool(lost_graphs(read_boot_log(text))) == bool(fault)


LOST = {"graph_mode": "PIECEWISE", "planned_graphs": "FULL_AND_PIECEWISE", "speculative_tokens": 7}


def captures(**changes: Any) -> Any:
    facts = {("main", 0): boot_facts(**{**FAST, "capture_sizes": (8, 16), **changes})}
    found = ALL["boot"].judge(context(facts=facts), BENCH.healthy())
    return by_name(found)["decode graphs are captured for whole drafts"]


def test_drafts_that_lose_whole_graphs_are_warned_of() -> None:
    found = captures(**LOST)
    assert found.verdict is Verdict.PASS
    assert "VLLM_HAS_FLASHINFER_CUBIN" in " ".join(found.warnings)


@pytest.mark.parametrize(
    "changes",
    [
        {"graph_mode": "FULL_AND_PIECEWISE"},
        {"planned_graphs": "PIECEWISE"},
        {"planned_graphs": ""},
        {"speculative_tokens": 0},
        {"graph_mode": "NONE"},
    ],
)
def test_graphs_that_were_not_planned_or_are_whole_are_no_loss(changes: dict[str, Any]) -> None:
    assert captures(**{**LOST, **changes}).warnings == ()


def test_fast_kernels_pass() -> None:
    found = judged()
    assert found.verdict is Verdict.PASS
    assert "FlashInferCutlassNvFp4LinearKernel" in found.cause


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"linear_backends": ("NVFP4 MarlinNvFp4LinearKernel",)}, "computes in 16 bits"),
        ({"linear_backends": ("NVFP4 B12xNvFp4W4A16LinearKernel",)}, "computes in 16 bits"),
        ({"linear_backends": ("NVFP4 EmulationNvFp4LinearKernel",)}, "emulates FP4"),
        ({"moe_backends": ("Mxfp4 BATCHED_MARLIN",)}, "MoE layers run on BATCHED_MARLIN"),
        ({"graph_mode": "NONE"}, "CUDA graphs were turned off"),
        ({"linear_backends": (), "moe_backends": (), "slow_paths": ("emulation",)}, "warns of emulation"),
    ],
)
def test_an_unasked_slow_path_fails_on_a_card_with_fp4(changes: dict[str, Any], cause: str) -> None:
    found = judged(**changes)
    assert found.verdict is Verdict.FAIL
    assert cause in found.cause
    assert judged(**changes, capability="9.0").verdict is Verdict.PASS  # it has no FP4 to miss
    assert judged(**changes, capability="").verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    "changes",
    [
        {"linear_backends": ("NVFP4 MarlinNvFp4LinearKernel",), "asked_linear": "marlin"},
        {"linear_backends": ("NVFP4 FlashInferB12xNvFp4LinearKernel",), "asked_linear": "flashinfer_b12x"},
        {"moe_backends": ("NvFp4 EMULATION",), "asked_moe": "emulation"},
        {"graph_mode": "NONE", "eager": True},
    ],
)
def test_a_slow_path_that_was_asked_for_passes(changes: dict[str, Any]) -> None:
    assert judged(**changes).verdict is Verdict.PASS


def test_another_backend_that_was_asked_for_excuses_nothing() -> None:
    found = judged(linear_backends=("NVFP4 MarlinNvFp4LinearKernel",), asked_linear="flashinfer_cutlass")
    assert found.verdict is Verdict.FAIL


def test_weights_of_16_bits_are_not_judged() -> None:
    assert judged(linear_backends=(), moe_backends=(), graph_mode="NONE").verdict is Verdict.PASS


def test_fp4_weights_without_a_named_kernel_are_inconclusive() -> None:
    found = judged(linear_backends=(), moe_backends=(), quantization="modelopt_fp4")
    assert found.verdict is Verdict.INCONCLUSIVE


def test_serving_warns_and_goes_on() -> None:
    fast = boot_facts(**FAST)
    warnings: list[str] = []
    with subscribe(lambda event: warnings.append(event.data["message"])):
        assert warn_of_fallbacks(fast) == ()
        marlin = read_boot_log(log("0.33", "Using MarlinNvFp4LinearKernel for NVFP4 GEMM"))
        assert warn_of_fallbacks(marlin) == ()  # the card is not known
        assert len(warn_of_fallbacks(_on_a_spark(marlin))) == 1
    assert len(warnings) == 1
    assert "MarlinNvFp4LinearKernel" in warnings[0]


def _on_a_spark(facts: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(facts, capability="12.1")


def test_serving_warns_of_lost_graphs_on_any_card() -> None:
    warnings: list[str] = []
    with subscribe(lambda event: warnings.append(event.data["message"])):
        warn_of_fallbacks(boot_facts(**LOST))
        warn_of_fallbacks(boot_facts(**{**LOST, "graph_mode": "FULL_AND_PIECEWISE"}))
    assert len(warnings) == 1
    assert "piecewise" in warnings[0]
