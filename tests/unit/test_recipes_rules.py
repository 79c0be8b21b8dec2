"""Recipes are read strictly; each rule fires on its combination and is silent on the healthy twin."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from sparkwright.base.errors import ConfigError, IncompatibleOptionsError, NewerFormatError, UnknownNameError
from sparkwright.recipes import (
    RULES,
    Recipe,
    Rule,
    check_compatible,
    incompatibilities,
    load_recipe,
    recipes,
    serve_arguments,
    variant,
)

ROOT = Path(__file__).parents[2]
OURS = "0.24.0+spark.0123abcd"
CARRIES = frozenset(tomllib.loads((ROOT / "patchsets" / "0.24.toml").read_text(encoding="utf-8"))["carries"])
DFLASH = {"method": "dflash", "num_speculative_tokens": 7}
MTP = {"method": "mtp", "num_speculative_tokens": 3}
V2 = {"VLLM_USE_V2_MODEL_RUNNER": "1"}
SYNTHETIC = {**DFLASH, "num_speculative_tokens": 2, "rejection_sample_method": "synthetic"}


def made(**changes: Any) -> Recipe:
    fields: dict[str, Any] = {
        "format": 1,
        "name": "made",
        "title": "Made up",
        "model": "some/model",
        "capability": "12.1",
    }
    return Recipe(**(fields | changes))


def broken(recipe: Recipe, version: str = "0.24.0", carries: Collection[str] = ()) -> set[str]:
    return {rule.name for rule in incompatibilities(recipe, version, carries=carries)}


# Each rule: what breaks it, and twins that differ in as little as possible and are healthy.
TABLE: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "dflash-nvfp4-kv": (
        {"flags": {"kv-cache-dtype": "nvfp4"}, "speculative": DFLASH, "capability": "10.0"},
        [
            {"flags": {"kv-cache-dtype": "fp8_e4m3"}, "speculative": DFLASH, "capability": "10.0"},
            {"flags": {"kv-cache-dtype": "nvfp4"}, "speculative": MTP, "capability": "10.0"},
        ],
    ),
    "dflash-nvfp4-kv-card": (
        {"flags": {"kv-cache-dtype": "nvfp4"}, "speculative": DFLASH, "capability": "9.0"},
        [
            {"flags": {"kv-cache-dtype": "nvfp4"}, "speculative": DFLASH, "capability": "12.1"},
            {"flags": {"kv-cache-dtype": "nvfp4"}, "speculative": DFLASH, "capability": ""},
            {"flags": {"kv-cache-dtype": "fp8_e4m3"}, "speculative": DFLASH, "capability": "9.0"},
            {
                "flags": {"kv-cache-dtype": "nvfp4"},
                "speculative": {**DFLASH, "kv_cache_dtype": "bfloat16"},
                "capability": "9.0",
            },
        ],
    ),
    "nvfp4-kv-card": (
        {"flags": {"kv-cache-dtype": "nvfp4"}},
        [
            {"flags": {"kv-cache-dtype": "nvfp4"}, "capability": "10.3"},
            {"flags": {"kv-cache-dtype": "nvfp4"}, "capability": ""},
            {"flags": {"kv-cache-dtype": "fp8"}},
        ],
    ),
    "nvfp4-kv-backend": (
        {"flags": {"kv-cache-dtype": "nvfp4", "attention-backend": "TRITON_ATTN"}, "capability": "10.0"},
        [{"flags": {"kv-cache-dtype": "nvfp4", "attention-backend": "flashinfer"}, "capability": "10.0"}],
    ),
    "draft-kv-type": (
        {"speculative": {**DFLASH, "kv_cache_dtype": "bfloat16"}},
        [{"speculative": DFLASH}],
    ),
    "hybrid-draft-kv": (
        {
            "flags": {"kv-cache-dtype": "fp8_e4m3"},
            "speculative": {**DFLASH, "kv_cache_dtype": "bfloat16"},
            "traits": ("hybrid",),
        },
        [
            {"flags": {"kv-cache-dtype": "fp8_e4m3"}, "speculative": DFLASH, "traits": ("hybrid",)},
            {"speculative": DFLASH, "traits": ("hybrid",)},
        ],
    ),
    "hybrid-steps-without-drafts": (
        {"speculative": {"method": "ngram", "num_speculative_tokens": 3}, "traits": ("hybrid",)},
        [
            {"speculative": {"method": "ngram", "num_speculative_tokens": 3}},
            {"speculative": MTP, "traits": ("hybrid",)},
            {"traits": ("hybrid",)},
        ],
    ),
    "mla-drafts": (
        {"speculative": {"method": "ngram", "num_speculative_tokens": 3}, "traits": ("mla",)},
        [
            {"traits": ("mla",)},
            {"speculative": {"method": "ngram", "num_speculative_tokens": 3}},
            {"speculative": MTP, "traits": ("mla",), "capability": "9.0"},
        ],
    ),
    "mla-runner-v2": (
        {"environment": {"VLLM_USE_V2_MODEL_RUNNER": "1"}, "traits": ("mla",)},
        [
            {"environment": {"VLLM_USE_V2_MODEL_RUNNER": "0"}, "traits": ("mla",)},
            {"environment": {"VLLM_USE_V2_MODEL_RUNNER": "1"}},
            {"traits": ("mla",)},
        ],
    ),
    "nvfp4-kv-mla": (
        {"flags": {"kv-cache-dtype": "nvfp4"}, "traits": ("mla",), "capability": "10.0"},
        [{"flags": {"kv-cache-dtype": "nvfp4"}, "capability": "10.0"}],
    ),
    "turboquant-nvfp4-kv": (
        {
            "flags": {"kv-cache-dtype": "nvfp4"},
            "environment": {"VLLM_USE_TURBOQUANT": "1"},
            "capability": "10.0",
        },
        [
            {
                "flags": {"kv-cache-dtype": "nvfp4"},
                "environment": {"VLLM_USE_TURBOQUANT": "0"},
                "capability": "10.0",
            },
            {"flags": {"kv-cache-dtype": "turboquant_k8v4", "attention-backend": "TURBOQUANT"}},
        ],
    ),
    "turboquant-dflash": (
        {"flags": {"kv-cache-dtype": "turboquant_4bit_nc"}, "speculative": DFLASH},
        [{"flags": {"kv-cache-dtype": "turboquant_4bit_nc"}, "speculative": MTP}],
    ),
    "turboquant-backend": (
        {"flags": {"kv-cache-dtype": "turboquant_k8v4", "attention-backend": "TRITON_ATTN"}},
        [{"flags": {"kv-cache-dtype": "turboquant_k8v4"}}],
    ),
    "flash-attn-fp8-kv": (
        {
            "flags": {"kv-cache-dtype": "fp8"},
            "speculative": {**DFLASH, "attention_backend": "FLASH_ATTN"},
        },
        [
            {
                "flags": {"kv-cache-dtype": "fp8"},
                "speculative": {**DFLASH, "attention_backend": "FLASH_ATTN"},
                "capability": "9.0",
            },
            {
                "flags": {"kv-cache-dtype": "fp8"},
                "speculative": {**DFLASH, "attention_backend": "TRITON_ATTN"},
            },
            {"speculative": {**DFLASH, "attention_backend": "FLASH_ATTN"}},
        ],
    ),
    "flex-attention-fp8-kv": (
        {"flags": {"kv-cache-dtype": "fp8", "attention-config": {"backend": "FLEX_ATTENTION"}}},
        [{"flags": {"attention-config": {"backend": "FLEX_ATTENTION"}}}],
    ),
    "dflash-causal-backend": (
        {"speculative": {**DFLASH, "attention_backend": "TREE_ATTN"}},
        [
            {"speculative": {**DFLASH, "attention_backend": "flex_attention"}},
            {"speculative": {**MTP, "attention_backend": "TREE_ATTN"}},
        ],
    ),
    "quantization-other": (
        {"flags": {"quantization": "modelopt"}, "weights": "compressed-tensors"},
        [
            {"flags": {"quantization": "compressed-tensors"}, "weights": "compressed-tensors"},
            {"flags": {"quantization": "modelopt"}, "weights": "modelopt_fp4"},
            {"flags": {"quantization": "modelopt"}},
        ],
    ),
    "quantization-of-nothing": (
        {"flags": {"quantization": "modelopt_fp4"}, "weights": "none"},
        [{"flags": {"quantization": "fp8"}, "weights": "none"}, {"weights": "none"}],
    ),
    "tied-modelopt": (
        {"weights": "modelopt", "traits": ("tied-embeddings",)},
        [
            {"weights": "compressed-tensors", "traits": ("tied-embeddings",)},
            {"weights": "modelopt"},
        ],
    ),
    "v2-hybrid-prefix-cache": (
        {"environment": V2, "traits": ("hybrid",), "flags": {"enable-prefix-caching": True}},
        [
            {"environment": V2, "traits": ("hybrid",), "flags": {"enable-prefix-caching": False}},
            {"environment": V2, "flags": {"enable-prefix-caching": True}},
            {"traits": ("hybrid",), "flags": {"enable-prefix-caching": True}},
        ],
    ),
    "v2-method": (
        {"environment": V2, "speculative": {"method": "ngram", "num_speculative_tokens": 3}},
        [
            {"environment": V2, "speculative": {"method": "qwen3_5_mtp", "num_speculative_tokens": 3}},
            {
                "environment": {"VLLM_USE_V2_MODEL_RUNNER": "0"},
                "speculative": {"method": "ngram", "num_speculative_tokens": 3},
            },
        ],
    ),
    "v2-dynamic-k": (
        {
            "environment": V2,
            "speculative": {**DFLASH, "num_speculative_tokens_per_batch_size": [[1, 8, 7]]},
        },
        [{"speculative": {**DFLASH, "num_speculative_tokens_per_batch_size": [[1, 8, 7]]}}],
    ),
    "async-method": (
        {
            "flags": {"async-scheduling": True},
            "speculative": {"method": "ngram", "num_speculative_tokens": 3},
        },
        [
            {"flags": {"async-scheduling": True}, "speculative": DFLASH},
            {"speculative": {"method": "ngram", "num_speculative_tokens": 3}},
        ],
    ),
    "async-unpadded-drafts": (
        {"flags": {"async-scheduling": True}, "speculative": {**MTP, "disable_padded_drafter_batch": True}},
        [{"speculative": {**MTP, "disable_padded_drafter_batch": True}}],
    ),
    "drafter-missing": ({"speculative": {"method": "dflash"}}, [{"speculative": DFLASH}]),
    "drafter-parallelism": (
        {"speculative": {**DFLASH, "tensor_parallel_size": 1}},
        [{"speculative": {**DFLASH, "draft_tensor_parallel_size": 1}}],
    ),
    "synthetic-acceptance": (
        {"speculative": {**SYNTHETIC, "synthetic_acceptance_rates": [0.5, 0.7]}},
        [
            {"speculative": {**SYNTHETIC, "synthetic_acceptance_rates": [0.7, 0.5]}},
            {"speculative": {**SYNTHETIC, "synthetic_acceptance_length": 3.0}},
            {"speculative": DFLASH},
        ],
    ),
    "draft-slots": (
        {"speculative": DFLASH, "flags": {"max-num-seqs": 64, "max-num-batched-tokens": 384}},
        [
            {"speculative": DFLASH, "flags": {"max-num-seqs": 64, "max-num-batched-tokens": 385}},
            {"speculative": MTP, "flags": {"max-num-seqs": 64, "max-num-batched-tokens": 384}},
            {"speculative": DFLASH, "flags": {"max-num-seqs": 64}},
        ],
    ),
    "capture-sizes": (
        {"speculative": DFLASH, "flags": {"cudagraph-capture-sizes": [1, 2, 4]}},
        [
            {"speculative": DFLASH, "flags": {"cudagraph-capture-sizes": [1, 2, 4, 8]}},
            {"speculative": DFLASH, "flags": {"cudagraph-capture-sizes": [1], "enforce-eager": True}},
            {"flags": {"cudagraph-capture-sizes": [1]}},
        ],
    ),
    "mamba-block-size": (
        {"flags": {"mamba-block-size": 1024, "enable-prefix-caching": False}},
        [{"flags": {"mamba-block-size": 1024, "enable-prefix-caching": True}}],
    ),
    "download-dir": ({"flags": {"download-dir": "models"}}, [{"flags": {"download-dir": "/models"}}, {}]),
}


# What breaks them breaks these, too, on a release without carries.
TOGETHER = {"hybrid-draft-kv": {"draft-kv-type"}}


def release_of(rule: Rule) -> str:
    """A release in which it fails."""
    return f"{rule.since}.0" if rule.since else "0.24.0"


def test_every_rule_is_in_the_table() -> None:
    assert [rule.name for rule in RULES] == list(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_a_rule_fires_alone_and_is_silent_on_its_twins(name: str) -> None:
    ill, twins = TABLE[name]
    version = release_of(next(rule for rule in RULES if rule.name == name))
    assert broken(made(**ill), version) == {name, *TOGETHER.get(name, ())}
    for twin in twins:
        assert broken(made(**twin), version) == set(), twin


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_says_why_what_else_and_where_it_was_read(rule: Any) -> None:
    assert len(rule.reason) > 20
    assert len(rule.instead) > 20
    release, _, place = rule.source.partition(" ")
    assert release == release_of(rule)
    assert ".py:" in place


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.before], ids=lambda rule: rule.name)
def test_a_rule_that_is_bound_to_releases_ends_with_them(rule: Any) -> None:
    ill, _ = TABLE[rule.name]
    assert rule.name in broken(made(**ill), "0.24.1.dev3+g0123abc")
    assert rule.name not in broken(made(**ill), rule.before + ".0")
    assert rule.name not in broken(made(**ill), "not a version")


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.since], ids=lambda rule: rule.name)
def test_a_rule_that_began_with_a_release_is_silent_before_it(rule: Any) -> None:
    ill, _ = TABLE[rule.name]
    assert rule.name in broken(made(**ill), f"{rule.since}.0.dev3+g0123abc")
    assert rule.name not in broken(made(**ill), "0.24.0")
    assert rule.name not in broken(made(**ill), "not a version")


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.carry], ids=lambda rule: rule.name)
def test_a_wheel_of_ours_serves_what_a_carry_mends_and_no_other_wheel_does(rule: Any) -> None:
    ill, _ = TABLE[rule.name]
    ours = f"{release_of(rule)}+spark.0123abcd"
    assert rule.name not in broken(made(**ill), ours, {rule.carry})
    assert rule.name in broken(made(**ill), ours), "a wheel of ours without it"
    assert rule.name in broken(made(**ill), ours, CARRIES - {rule.carry})
    assert rule.carry in CARRIES
    assert f"carry {rule.carry}" in rule.instead


NVFP4 = {"kv-cache-dtype": "nvfp4"}


@pytest.mark.parametrize(
    ("flags", "speculative", "capability", "found"),
    [
        (NVFP4, MTP, "12.1", set()),
        (NVFP4, DFLASH, "12.1", set()),
        ({**NVFP4, "attention-backend": "TRITON_ATTN"}, DFLASH, "12.1", set()),
        (NVFP4, {**DFLASH, "attention_backend": "TRITON_ATTN"}, "9.0", set()),
        ({**NVFP4, "attention-backend": "FLASHINFER"}, MTP, "12.1", {"nvfp4-kv-card"}),
        ({**NVFP4, "attention-backend": "FLASHINFER"}, MTP, "10.0", set()),
        ({**NVFP4, "attention-backend": "FLASH_ATTN"}, MTP, "12.1", {"nvfp4-kv-backend"}),
        (NVFP4, {**DFLASH, "attention_backend": "FLASH_ATTN"}, "12.1", {"nvfp4-kv-backend"}),
        (NVFP4, {**DFLASH, "attention_backend": "FLASH_ATTN", "kv_cache_dtype": "bfloat16"}, "12.1", set()),
    ],
)
def test_with_the_carry_triton_reads_nvfp4_on_every_card_and_flashinfer_where_it_could_before(
    flags: dict[str, Any], speculative: dict[str, Any], capability: str, found: set[str]
) -> None:
    recipe = made(flags=flags, speculative=speculative, capability=capability)
    assert broken(recipe, OURS, CARRIES) == found


def test_a_drafter_with_16_bits_may_read_them_by_flash_attention() -> None:
    speculative = {**DFLASH, "attention_backend": "FLASH_ATTN"}
    recipe = made(flags={"kv-cache-dtype": "fp8"}, speculative=speculative)
    assert broken(recipe, OURS, CARRIES) == {"flash-attn-fp8-kv"}
    recipe = made(flags={"kv-cache-dtype": "fp8"}, speculative={**speculative, "kv_cache_dtype": "bfloat16"})
    assert broken(recipe, OURS, CARRIES) == set()


def test_a_drafter_with_a_cache_of_its_own_needs_not_read_the_target_s_turboquant() -> None:
    flags = {"kv-cache-dtype": "turboquant_4bit_nc"}
    assert broken(made(flags=flags, speculative=DFLASH), OURS, CARRIES) == {"turboquant-dflash"}
    for dtype in ("bfloat16", "fp8"):
        recipe = made(flags=flags, speculative={**DFLASH, "kv_cache_dtype": dtype})
        assert broken(recipe, OURS, CARRIES) == set()
    by_flash = {**DFLASH, "kv_cache_dtype": "bfloat16", "attention_backend": "FLASH_ATTN"}
    assert broken(made(flags=flags, speculative=by_flash), OURS, CARRIES) == set()


@pytest.mark.parametrize(
    "speculative",
    [
        SYNTHETIC,
        {**SYNTHETIC, "synthetic_acceptance_rates": [0.5]},
        {**SYNTHETIC, "synthetic_acceptance_rates": [1.5, 0.1]},
        {**SYNTHETIC, "synthetic_acceptance_rates": [0.5, 0.4], "synthetic_acceptance_length": 2.0},
        {**SYNTHETIC, "synthetic_acceptance_length": 3.5},
        {**DFLASH, "synthetic_acceptance_length": 2.0},
    ],
)
def test_synthetic_acceptance_is_checked_as_vllm_does(speculative: dict[str, Any]) -> None:
    assert broken(made(speculative=speculative)) == {"synthetic-acceptance"}


def test_a_refusal_names_every_reason_and_what_works_instead() -> None:
    recipe = made(flags={"kv-cache-dtype": "nvfp4"}, speculative=DFLASH)
    with pytest.raises(IncompatibleOptionsError) as caught:
        check_compatible(recipe, OURS)
    assert "without a causal mask" in caught.value.because
    assert "capability 10.x alone" in caught.value.because
    assert "flashinfer.py:807" in caught.value.because
    assert "fp8_e4m3" in caught.value.next_step
    assert caught.value.exit_code == 81


def test_the_card_at_hand_counts_more_than_the_recipes() -> None:
    recipe = made(flags={"kv-cache-dtype": "nvfp4"})
    with pytest.raises(IncompatibleOptionsError):
        check_compatible(recipe, "0.24.0")
    check_compatible(recipe, "0.24.0", capability="10.0")


# Recipes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(name for name, recipe in recipes().items() if "/k" in recipe.band))
def test_what_has_a_band_is_served_by_our_wheel_and_by_later_ones_that_can(name: str) -> None:
    recipe = recipes()[name]
    assert broken(recipe, OURS, CARRIES) == set()
    assert broken(recipe, "0.33.0") == set()
    assert recipe.flags["max-num-seqs"] >= 64, "the sweep goes that far"
    assert recipe.flags["max-model-len"] > 33_000 + 400, "as far as the longest context that is checked"


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("eager", [False, True])
def test_smoke_runs_on_both_model_runners_with_and_without_graphs(runner: Any, eager: bool) -> None:  # noqa: FBT001
    recipe = variant(load_recipe("smoke"), runner=runner, eager=eager)
    assert incompatibilities(recipe, "0.24.0", "9.0") == ()
    assert recipe.environment["VLLM_USE_V2_MODEL_RUNNER"] == ("1" if runner == "v2" else "0")
    assert ("--enforce-eager" in serve_arguments(recipe, host="h", port=1)) is eager


def test_the_baseline_drafts_nothing_and_is_else_the_same() -> None:
    recipe = load_recipe("qwen3.6-27b-dflash")
    plain = variant(recipe, speculation=False)
    assert "--speculative-config" not in serve_arguments(plain, host="h", port=1)
    assert plain.flags == recipe.flags
    assert plain.drafter == ""


def test_arguments_are_those_of_vllm_serve() -> None:
    recipe = made(
        drafter="some/drafter",
        flags={
            "max-model-len": 4096,
            "enable-prefix-caching": True,
            "async-scheduling": False,
            "cudagraph-capture-sizes": [8, 16],
            "compilation-config": {"cudagraph_mode": "PIECEWISE"},
            "gpu-memory-utilization": 0.7,
        },
        speculative=DFLASH,
    )
    assert serve_arguments(recipe, host="127.0.0.1", port=8011) == (
        *("serve", "some/model", "--served-model-name", "made", "--host", "127.0.0.1", "--port", "8011"),
        *("--max-model-len", "4096", "--enable-prefix-caching", "--no-async-scheduling"),
        *("--cudagraph-capture-sizes", "8", "16"),
        *("--compilation-config", '{"cudagraph_mode": "PIECEWISE"}', "--gpu-memory-utilization", "0.7"),
        "--speculative-config",
        json.dumps({**DFLASH, "model": "some/drafter"}),
    )


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text('format = 1\nname = "mine"\ntitle = "Mine"\nmodel = "a/b"\n' + text, encoding="utf-8")
    return path


def test_a_recipe_of_the_users_own_is_read_by_its_path(tmp_path: Path) -> None:
    recipe = load_recipe(written(tmp_path, "[flags]\nmax_num_seqs = 8\n"))
    assert recipe.flags == {"max-num-seqs": 8}


@pytest.mark.parametrize(
    "text",
    [
        "port = 8000\n",
        "[flags]\nport = 8000\n",
        '[flags]\nserved_model_name = "x"\n',
        '[speculative]\nmodel = "x"\n',
        "traits = ['unheard-of']\n",
    ],
)
def test_what_a_recipe_may_not_say_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        load_recipe(written(tmp_path, text))


def test_a_newer_format_and_an_unknown_name_say_so(tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    path.write_text("format = 2\n", encoding="utf-8")
    with pytest.raises(NewerFormatError):
        load_recipe(path)
    with pytest.raises(UnknownNameError, match="no recipe 'nothing'") as caught:
        load_recipe("nothing")
    assert "smoke" in caught.value.because


def test_drafts_over_latent_attention_are_refused_where_that_backend_is_asked_for_on_another_card() -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    asked = {"speculative": ngram, "traits": ("mla",), "capability": "9.0"}
    assert broken(made(**asked, flags={"attention-backend": "TRITON_MLA"})) == {"mla-drafts"}
    assert broken(made(**asked)) == set()


def test_a_load_without_drafts_is_refused_for_hybrid_models() -> None:
    def broken(drafts: int, *traits: str) -> set[str]:
        by_load = {"num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 64, drafts]]}
        keys: dict[str, Any] = {"format": 1, "name": "r", "title": "r", "model": "m", "traits": traits}
        recipe = Recipe(**keys, speculative={**MTP, **by_load})
        return {rule.name for rule in incompatibilities(recipe, "0.33.0")}

    assert broken(0, "hybrid") == {"hybrid-steps-without-drafts"}
    assert broken(1, "hybrid") == set()
    assert broken(0) == set()
