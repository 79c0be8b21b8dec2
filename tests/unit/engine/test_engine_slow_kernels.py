"""The kernels of FP4 weights: read from logs of both dialects, judged by the card, and warned of."""

from typing import Any

import pytest
from boot_logs import Boot
from kit import Recorder
from msgspec.structs import replace
from verify_kit import Bench, boot_facts, by_name, context

from sparkwright.engine.findings import Verdict
from sparkwright.engine.server.bootlog import read_boot_log
from sparkwright.engine.slow_kernels import warn_of_fallbacks
from sparkwright.verify.checks import ALL

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


MARLIN = ("NVFP4 MarlinNvFp4LinearKernel",)
B12X = ("NVFP4 FlashInferB12xNvFp4LinearKernel",)
UNNAMED = {"linear_backends": (), "moe_backends": ()}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, Verdict.PASS),
        # What was asked for, and what another backend that was asked for does not excuse
        ({"linear_backends": MARLIN, "asked_linear": "marlin"}, Verdict.PASS),
        ({"linear_backends": B12X, "asked_linear": "flashinfer_b12x"}, Verdict.PASS),
        ({"moe_backends": ("NvFp4 EMULATION",), "asked_moe": "emulation"}, Verdict.PASS),
        ({"graph_mode": "NONE", "eager": True}, Verdict.PASS),
        ({"linear_backends": MARLIN, "asked_linear": "flashinfer_cutlass"}, Verdict.FAIL),
        # Weights of 16 bits, and FP4 weights without a named kernel
        ({**UNNAMED, "graph_mode": "NONE"}, Verdict.PASS),
        ({**UNNAMED, "quantization": "modelopt_fp4"}, Verdict.INCONCLUSIVE),
    ],
)
def test_a_slow_path_is_judged_by_what_was_asked_for(changes, verdict) -> None:
    assert judged(**changes).verdict is verdict


def test_serving_warns_and_goes_on(heard: Recorder) -> None:
    assert warn_of_fallbacks(boot_facts(**FAST)) == ()
    marlin = read_boot_log(log("0.33", "Using MarlinNvFp4LinearKernel for NVFP4 GEMM"))
    assert warn_of_fallbacks(marlin) == ()  # the card is not known
    assert len(warn_of_fallbacks(replace(marlin, capability="12.1"))) == 1
    (said,) = heard.warnings
    assert "MarlinNvFp4LinearKernel" in said


def test_serving_warns_of_lost_graphs_on_any_card(heard: Recorder) -> None:
    warn_of_fallbacks(boot_facts(**LOST))
    warn_of_fallbacks(boot_facts(**{**LOST, "graph_mode": "FULL_AND_PIECEWISE"}))
    (said,) = heard.warnings
    assert "piecewise" in said
