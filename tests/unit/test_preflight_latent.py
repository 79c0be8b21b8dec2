"""Latent attention whose contexts take several parts is refused where 0.24 adds them up wrongly."""

from __future__ import annotations

from typing import Any

import pytest
from checkpoint_kit import DENSE, write_checkpoint
from preflight_kit import GB10, H200, recipe, spark, start

from sparkwright.recipes import load_recipe
from sparkwright.serve.preflight import EngineFacts, run_preflight
from sparkwright.serve.preflight.engine_checks import part_tokens

DEEPSEEK = {
    **DENSE,
    "architectures": ["DeepseekV2ForCausalLM"],
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
# By transformers' configuration of mistralai/Mistral-Small-4-119B-2603.
MISTRAL = {**DEEPSEEK, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "max_position_embeddings": 1 << 20}


def levels(
    tmp_path: Any, config: dict[str, Any], *, version: str = "0.24.0+spark.1", card: Any = GB10, **flags: int
) -> dict[str, str]:
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    served = recipe(write_checkpoint(tmp_path / "model", config), flags=named)
    found = run_preflight(start(served, spark(card=card), engine=EngineFacts(version=version)))
    return {one.check: one.level for one in found if one.check == "latent-context"}


def test_long_contexts_of_many_requests_are_refused(tmp_path: Any) -> None:
    assert levels(tmp_path, DEEPSEEK) == {"latent-context": "refuse"}
    assert levels(tmp_path, DEEPSEEK, max_model_len=131_072, max_num_seqs=1) == {"latent-context": "refuse"}
    assert levels(tmp_path, DEEPSEEK, max_model_len=2048, max_num_seqs=16) == {"latent-context": "refuse"}


@pytest.mark.parametrize(("longest", "requests"), [(65_536, 1), (32_768, 2), (8192, 8), (16_384, 4)])
def test_contexts_of_one_part_are_silent(tmp_path: Any, longest: int, requests: int) -> None:
    assert levels(tmp_path, DEEPSEEK, max_model_len=longest, max_num_seqs=requests) == {}
    assert levels(tmp_path, DEEPSEEK, max_model_len=longest, max_num_seqs=2 * requests) != {}


@pytest.mark.parametrize("use", ["single", "shared", "many"])
def test_values_as_large_as_queries_are_never_padded(tmp_path: Any, use: str) -> None:
    """So Mistral-Small-4 is served right by 0.24."""
    flags = load_recipe("mistral-small-4", use).flags
    sizes = {name.replace("-", "_"): flags[name] for name in ("max-model-len", "max-num-seqs")}
    assert levels(tmp_path, MISTRAL, **sizes) == {}
    assert levels(tmp_path, MISTRAL | {"v_head_dim": 64}, **sizes) == {"latent-context": "refuse"}


def test_other_releases_cards_and_models_are_silent(tmp_path: Any) -> None:
    assert levels(tmp_path, DEEPSEEK, version="0.33.0") == {}
    assert levels(tmp_path, DEEPSEEK, card=H200) == {}
    assert levels(tmp_path, DENSE) == {}


def test_a_part_is_what_upstream_gives_each_request() -> None:
    assert part_tokens(65_536, 1) == 65_536
    assert part_tokens(4096, 64) == 512
    assert part_tokens(128, 256) == 64
