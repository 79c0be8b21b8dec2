"""What a recipe asks beyond a release's options is named; a healthy twin is silent."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwright.recipes import Recipe
from sparkwright.recipes.release_options import (
    ParsedCommand,
    ReleaseFlag,
    ReleaseOptions,
    ReleaseVariables,
    problems,
)


def release(**changes: Any) -> ReleaseOptions:
    fields: dict[str, Any] = {
        "flags": (
            ReleaseFlag(names=("--max-num-seqs",)),
            ReleaseFlag(names=("--kv-cache-dtype",)),
            ReleaseFlag(names=("--quantization", "-q")),
            ReleaseFlag(names=("--attention-backend",)),
            ReleaseFlag(names=("--attention-config", "-ac")),
            ReleaseFlag(names=("--tool-call-parser",)),
            ReleaseFlag(names=("--tool-parser-plugin",)),
            ReleaseFlag(names=("--moe-backend",), choices=("auto", "marlin", "triton")),
            ReleaseFlag(names=("--enable-prefix-caching", "--no-enable-prefix-caching")),
            ReleaseFlag(names=("--mamba-cache-mode",), deprecated="it has no effect"),
        ),
        "variables": ReleaseVariables(declared=("VLLM_USE_V2_MODEL_RUNNER",), read=("VLLM_DIST_IDENT",)),
        "speculative": {"method": ("dflash", "mtp"), "num_speculative_tokens": (), "attention_backend": ()},
        "attention_backends": ("TRITON_ATTN", "FLASHINFER"),
        "kv_types": ("auto", "fp8_e4m3", "nvfp4"),
        "quantizations": ("fp8", "compressed-tensors"),
        "tool_parsers": ("qwen3_coder", "mistral"),
        "reasoning_parsers": ("qwen3",),
    }
    return ReleaseOptions(**(fields | changes))


def recipe(**changes: Any) -> Recipe:
    return Recipe(**({"format": 1, "name": "made", "title": "Made up", "model": "some/model"} | changes))


def found(changes: dict[str, Any], *, error: str = "") -> list[str]:
    return [str(one) for one in problems(recipe(**changes), release(), ParsedCommand(error=error))]


NONE = "this release has none of that name"
DEAD = "no code of this release reads it: it would change nothing"
BY_LOAD = "num_speculative_tokens_per_batch_size"
OLD_CHECKPOINTS = "enable-mamba-fine-grained-prefix-cache"
NOT_TAKEN = "this release does not take that value"
PLANTED = [
    (
        {"flags": {"quantization": "compressed_tensors"}},
        f"value --quantization compressed_tensors: {NOT_TAKEN}; the nearest name is compressed-tensors",
        {"flags": {"quantization": "compressed-tensors"}},
    ),
    (
        {"flags": {"max-num-sequences": 4}},
        "flag --max-num-sequences: this release has none of that name; the nearest name is max-num-seqs",
        {"flags": {"max-num-seqs": 4}},
    ),
    (
        {"flags": {"speculative-disable-by-batch-size": 8}},
        f"flag --speculative-disable-by-batch-size: {NONE}; use {BY_LOAD} in [speculative]",
        {"flags": {"enable-prefix-caching": False}},
    ),
    (
        {"flags": {OLD_CHECKPOINTS: True}},
        f"flag --{OLD_CHECKPOINTS}: {NONE}; use enable-mamba-shared-prefix-checkpoint (vllm#57382)",
        {"flags": {"enable-prefix-caching": True}},
    ),
    (
        {"environment": {"VLLM_PLE_CPU_OFFLOAD": "1"}},
        f"variable VLLM_PLE_CPU_OFFLOAD: {DEAD}; use the flag engram-config",
        {"environment": {"VLLM_DIST_IDENT": "1"}},
    ),
    (
        {"flags": {"kv-cache-dtype": "fp8_e4m4"}},
        f"value --kv-cache-dtype fp8_e4m4: {NOT_TAKEN}; the nearest name is fp8_e4m3",
        {"flags": {"kv-cache-dtype": "fp8_e4m3"}},
    ),
    (
        {"flags": {"attention-backend": "TRITON"}},
        f"value --attention-backend TRITON: {NOT_TAKEN}; the nearest name is TRITON_ATTN",
        {"flags": {"attention-backend": "triton_attn"}},
    ),
    (
        {"flags": {"moe-backend": "cutlas"}},
        "value --moe-backend cutlas: this release does not take that value",
        {"flags": {"moe-backend": "marlin"}},
    ),
    (
        {"flags": {"tool-call-parser": "qwen3-coder"}},
        f"value --tool-call-parser qwen3-coder: {NOT_TAKEN}; the nearest name is qwen3_coder",
        {"flags": {"tool-call-parser": "my_own", "tool-parser-plugin": "my_own.py"}},
    ),
    (
        {"environment": {"VLLM_FP8_MOE_BACKEND": "flashinfer"}},
        f"variable VLLM_FP8_MOE_BACKEND: {DEAD}; use the flag moe-backend",
        {"environment": {"VLLM_DIST_IDENT": "x", "NCCL_SOCKET_IFNAME": "eth0"}},
    ),
    (
        {"speculative": {"method": "dflash", "num_spec_tokens": 3}},
        f"speculative key num_spec_tokens: {NONE}; the nearest name is num_speculative_tokens",
        {"speculative": {"method": "dflash", "num_speculative_tokens": 3}},
    ),
    (
        {"speculative": {"method": "dflash3"}},
        "value speculative method dflash3: this release does not take that value; the nearest name is dflash",
        {"speculative": {"method": "mtp"}},
    ),
    (
        {"speculative": {"method": "dflash", "attention_backend": "XFORMERS"}},
        "value speculative attention_backend XFORMERS: this release does not take that value",
        {"speculative": {"method": "dflash", "attention_backend": "auto"}},
    ),
]


@pytest.mark.parametrize(
    ("planted", "said", "healthy"), PLANTED, ids=[said.split(":")[0] for _, said, _ in PLANTED]
)
def test_planted_option_is_named_and_its_twin_is_silent(planted, said, healthy):
    assert found(planted) == [said]
    assert found(healthy) == []


def test_parsers_own_error_is_reported_where_nothing_else_explains_it():
    assert found({"flags": {"max-num-seqs": "many"}}, error="invalid int value: 'many'") == [
        "parser vllm serve: invalid int value: 'many'"
    ]
    assert len(found({"flags": {"max-num-sequences": 4}}, error="unrecognized arguments")) == 1


def test_deprecated_option_is_stated_and_does_not_refuse():
    (one,) = problems(recipe(flags={"mamba-cache-mode": "align"}), release(), ParsedCommand())
    assert (one.kind, one.refuses, one.because) == ("deprecated", False, "it has no effect")


def test_key_of_a_configuration_flag_is_known_by_its_flag():
    assert found({"flags": {"attention-config.backend": "TRITON_ATTN"}}) == []
