"""Recipes are read strictly; each rule fires on its combination and is silent on the healthy twin."""

import json
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from recipe_kit import DFLASH, made, of

from sparkwright.base.errors import ConfigError, IncompatibleOptionsError, NewerFormatError, UnknownNameError
from sparkwright.recipes.recipe import Recipe, load_recipe, serve_arguments
from sparkwright.recipes.rules import RULES, Rule, check_compatible, incompatibilities

ROOT = Path(__file__).parents[3]
OURS = "0.24.0+spark.0123abcd"
CARRIES = frozenset(tomllib.loads((ROOT / "patchsets" / "0.24.toml").read_text(encoding="utf-8"))["carries"])


def broken(recipe: Recipe, version: str = "0.24.0", carries: Collection[str] = ()) -> set[str]:
    return {rule.name for rule in incompatibilities(recipe, version, carries=carries)}


# Each rule: what breaks it, and twins that differ in as little as possible and are healthy.
SYNTHETIC_WORDS = "dflash draft.num_speculative_tokens=2 draft.rejection_sample_method=synthetic"
BY_LOAD = "draft.num_speculative_tokens_per_batch_size=[[1,8,7]]"
TABLE: dict[str, tuple[str, ...]] = {
    "dflash-nvfp4-kv": (
        "--kv-cache-dtype=nvfp4 dflash on=10.0",
        "--kv-cache-dtype=fp8_e4m3 dflash on=10.0",
        "--kv-cache-dtype=nvfp4 mtp on=10.0",
    ),
    "dflash-nvfp4-kv-card": (
        "--kv-cache-dtype=nvfp4 dflash on=9.0",
        "--kv-cache-dtype=nvfp4 dflash on=12.1",
        "--kv-cache-dtype=nvfp4 dflash on=",
        "--kv-cache-dtype=fp8_e4m3 dflash on=9.0",
        "--kv-cache-dtype=nvfp4 dflash draft.kv_cache_dtype=bfloat16 on=9.0",
    ),
    "nvfp4-kv-card": (
        "--kv-cache-dtype=nvfp4",
        "--kv-cache-dtype=nvfp4 on=10.3",
        "--kv-cache-dtype=nvfp4 on=",
        "--kv-cache-dtype=fp8",
    ),
    "nvfp4-kv-backend": (
        "--kv-cache-dtype=nvfp4 --attention-backend=TRITON_ATTN on=10.0",
        "--kv-cache-dtype=nvfp4 --attention-backend=flashinfer on=10.0",
    ),
    "draft-kv-type": ("dflash draft.kv_cache_dtype=bfloat16", "dflash"),
    "hybrid-draft-kv": (
        "--kv-cache-dtype=fp8_e4m3 dflash draft.kv_cache_dtype=bfloat16 hybrid",
        "--kv-cache-dtype=fp8_e4m3 dflash hybrid",
        "dflash hybrid",
    ),
    "hybrid-steps-without-drafts": ("ngram hybrid", "ngram", "mtp hybrid", "hybrid"),
    "mla-drafts": ("ngram mla", "mla", "ngram", "mtp mla on=9.0"),
    "mla-runner-v2": ("v2 mla", "v1 mla", "v2", "mla"),
    "nvfp4-kv-mla": ("--kv-cache-dtype=nvfp4 mla on=10.0", "--kv-cache-dtype=nvfp4 on=10.0"),
    "turboquant-nvfp4-kv": (
        "--kv-cache-dtype=nvfp4 VLLM_USE_TURBOQUANT=1 on=10.0",
        "--kv-cache-dtype=nvfp4 VLLM_USE_TURBOQUANT=0 on=10.0",
        "--kv-cache-dtype=turboquant_k8v4 --attention-backend=TURBOQUANT",
    ),
    "turboquant-dflash": (
        "--kv-cache-dtype=turboquant_4bit_nc dflash",
        "--kv-cache-dtype=turboquant_4bit_nc mtp",
    ),
    "turboquant-backend": (
        "--kv-cache-dtype=turboquant_k8v4 --attention-backend=TRITON_ATTN",
        "--kv-cache-dtype=turboquant_k8v4",
    ),
    "flash-attn-fp8-kv": (
        "--kv-cache-dtype=fp8 dflash draft.attention_backend=FLASH_ATTN",
        "--kv-cache-dtype=fp8 dflash draft.attention_backend=FLASH_ATTN on=9.0",
        "--kv-cache-dtype=fp8 dflash draft.attention_backend=TRITON_ATTN",
        "dflash draft.attention_backend=FLASH_ATTN",
    ),
    "flex-attention-fp8-kv": (
        '--kv-cache-dtype=fp8 --attention-config={"backend":"FLEX_ATTENTION"}',
        '--attention-config={"backend":"FLEX_ATTENTION"}',
    ),
    "dflash-causal-backend": (
        "dflash draft.attention_backend=TREE_ATTN",
        "dflash draft.attention_backend=flex_attention",
        "mtp draft.attention_backend=TREE_ATTN",
    ),
    "quantization-other": (
        "--quantization=modelopt weights=compressed-tensors",
        "--quantization=compressed-tensors weights=compressed-tensors",
        "--quantization=modelopt weights=modelopt_fp4",
        "--quantization=modelopt",
    ),
    "quantization-of-nothing": (
        "--quantization=modelopt_fp4 weights=none",
        "--quantization=fp8 weights=none",
        "weights=none",
    ),
    "tied-modelopt": (
        "weights=modelopt tied-embeddings",
        "weights=compressed-tensors tied-embeddings",
        "weights=modelopt",
    ),
    "v2-hybrid-prefix-cache": (
        "v2 hybrid --enable-prefix-caching=true",
        "v2 hybrid --enable-prefix-caching=false",
        "v2 --enable-prefix-caching=true",
        "hybrid --enable-prefix-caching=true",
    ),
    "v2-method": ("v2 ngram", "v2 mtp draft.method=qwen3_5_mtp", "v1 ngram"),
    "v2-dynamic-k": (f"v2 dflash {BY_LOAD}", f"dflash {BY_LOAD}"),
    "async-method": ("--async-scheduling=true ngram", "--async-scheduling=true dflash", "ngram"),
    "async-unpadded-drafts": (
        "--async-scheduling=true mtp draft.disable_padded_drafter_batch=true",
        "mtp draft.disable_padded_drafter_batch=true",
    ),
    "drafter-missing": ("draft.method=dflash", "dflash"),
    "drafter-parallelism": (
        "dflash draft.tensor_parallel_size=1",
        "dflash draft.draft_tensor_parallel_size=1",
    ),
    "synthetic-acceptance": (
        f"{SYNTHETIC_WORDS} draft.synthetic_acceptance_rates=[0.5,0.7]",
        f"{SYNTHETIC_WORDS} draft.synthetic_acceptance_rates=[0.7,0.5]",
        f"{SYNTHETIC_WORDS} draft.synthetic_acceptance_length=3.0",
        "dflash",
    ),
    "draft-slots": (
        "dflash --max-num-seqs=64 --max-num-batched-tokens=384",
        "dflash --max-num-seqs=64 --max-num-batched-tokens=385",
        "mtp --max-num-seqs=64 --max-num-batched-tokens=384",
        "dflash --max-num-seqs=64",
    ),
    "capture-sizes": (
        "dflash --cudagraph-capture-sizes=[1,2,4]",
        "dflash --cudagraph-capture-sizes=[1,2,4,8]",
        "dflash --cudagraph-capture-sizes=[1] --enforce-eager=true",
        "--cudagraph-capture-sizes=[1]",
    ),
    "mamba-block-size": (
        "--mamba-block-size=1024 --enable-prefix-caching=false",
        "--mamba-block-size=1024 --enable-prefix-caching=true",
    ),
    "download-dir": ("--download-dir=models", "--download-dir=/models", ""),
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
    ill, *twins = TABLE[name]
    version = release_of(next(rule for rule in RULES if rule.name == name))
    assert broken(made(**of(ill)), version) == {name, *TOGETHER.get(name, ())}
    for twin in twins:
        assert broken(made(**of(twin)), version) == set(), twin


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_says_why_what_else_and_where_it_was_read(rule: Any) -> None:
    assert len(rule.reason) > 20
    assert len(rule.instead) > 20
    release, _, place = rule.source.partition(" ")
    assert release == release_of(rule)
    assert ".py:" in place


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.before], ids=lambda rule: rule.name)
def test_a_rule_that_is_bound_to_releases_ends_with_them(rule: Any) -> None:
    ill = TABLE[rule.name][0]
    assert rule.name in broken(made(**of(ill)), "0.24.1.dev3+g0123abc")
    assert rule.name not in broken(made(**of(ill)), rule.before + ".0")
    assert rule.name not in broken(made(**of(ill)), "not a version")


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.since], ids=lambda rule: rule.name)
def test_a_rule_that_began_with_a_release_is_silent_before_it(rule: Any) -> None:
    ill = TABLE[rule.name][0]
    assert rule.name in broken(made(**of(ill)), f"{rule.since}.0.dev3+g0123abc")
    assert rule.name not in broken(made(**of(ill)), "0.24.0")
    assert rule.name not in broken(made(**of(ill)), "not a version")


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.carry], ids=lambda rule: rule.name)
def test_a_wheel_of_ours_serves_what_a_carry_mends_and_no_other_wheel_does(rule: Any) -> None:
    ill = TABLE[rule.name][0]
    ours = f"{release_of(rule)}+spark.0123abcd"
    assert rule.name not in broken(made(**of(ill)), ours, {rule.carry})
    assert rule.name in broken(made(**of(ill)), ours), "a wheel of ours without it"
    assert rule.name in broken(made(**of(ill)), ours, CARRIES - {rule.carry})
    assert rule.carry in CARRIES
    assert f"carry {rule.carry}" in rule.instead


NVFP4, FP8, TURBO = (f"--kv-cache-dtype={kind}" for kind in ("nvfp4", "fp8", "turboquant_4bit_nc"))
FLASH, SIXTEEN = "draft.attention_backend=FLASH_ATTN", "draft.kv_cache_dtype=bfloat16"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        # Triton reads NVFP4 on every card, and FlashInfer where it could before.
        (f"{NVFP4} mtp", ""),
        (f"{NVFP4} dflash", ""),
        (f"{NVFP4} --attention-backend=TRITON_ATTN dflash", ""),
        (f"{NVFP4} dflash draft.attention_backend=TRITON_ATTN on=9.0", ""),
        (f"{NVFP4} --attention-backend=FLASHINFER mtp", "nvfp4-kv-card"),
        (f"{NVFP4} --attention-backend=FLASHINFER mtp on=10.0", ""),
        (f"{NVFP4} --attention-backend=FLASH_ATTN mtp", "nvfp4-kv-backend"),
        (f"{NVFP4} dflash {FLASH}", "nvfp4-kv-backend"),
        (f"{NVFP4} dflash {FLASH} {SIXTEEN}", ""),
        # A drafter with 16 bits may read them by FlashAttention.
        (f"{FP8} dflash {FLASH}", "flash-attn-fp8-kv"),
        (f"{FP8} dflash {FLASH} {SIXTEEN}", ""),
        # One with a cache of its own needs not read the target's TurboQuant.
        (f"{TURBO} dflash", "turboquant-dflash"),
        (f"{TURBO} dflash {SIXTEEN}", ""),
        (f"{TURBO} dflash draft.kv_cache_dtype=fp8", ""),
        (f"{TURBO} dflash {SIXTEEN} {FLASH}", ""),
    ],
)
def test_with_every_carry(words: str, found: str) -> None:
    assert broken(made(**of(words)), OURS, CARRIES) == ({found} if found else set())


# Acceptance as vLLM checks it
SYNTHETIC = [
    SYNTHETIC_WORDS,
    f"{SYNTHETIC_WORDS} draft.synthetic_acceptance_rates=[0.5]",
    f"{SYNTHETIC_WORDS} draft.synthetic_acceptance_rates=[1.5,0.1]",
    f"{SYNTHETIC_WORDS} draft.synthetic_acceptance_rates=[0.5,0.4] draft.synthetic_acceptance_length=2.0",
    f"{SYNTHETIC_WORDS} draft.synthetic_acceptance_length=3.5",
    "dflash draft.synthetic_acceptance_length=2.0",
]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        *((words, "synthetic-acceptance") for words in SYNTHETIC),
        ("ngram mla on=9.0 --attention-backend=TRITON_MLA", "mla-drafts"),
        ("ngram mla on=9.0", ""),
        (
            "mtp hybrid draft.num_speculative_tokens_per_batch_size=[[1,4,3],[5,64,0]]",
            "hybrid-steps-without-drafts",
        ),
        ("mtp hybrid draft.num_speculative_tokens_per_batch_size=[[1,4,3],[5,64,1]]", ""),
        ("mtp draft.num_speculative_tokens_per_batch_size=[[1,4,3],[5,64,0]]", ""),
    ],
)
def test_other_ways_to_break_a_rule(words: str, found: str) -> None:
    assert broken(made(**of(words))) == ({found} if found else set())


def test_a_refusal_names_every_reason_and_what_works_instead() -> None:
    recipe = made(flags={"kv-cache-dtype": "nvfp4"}, speculative=DFLASH)
    with pytest.raises(IncompatibleOptionsError) as caught:
        check_compatible(recipe, OURS)
    assert "without a causal mask" in caught.value.because
    assert "capability 10.x alone" in caught.value.because
    assert "flashinfer.py:807" in caught.value.because
    assert "fp8_e4m3" in caught.value.next_step
    assert caught.value.exit_code == 10


def test_the_card_at_hand_counts_more_than_the_recipes() -> None:
    recipe = made(flags={"kv-cache-dtype": "nvfp4"})
    with pytest.raises(IncompatibleOptionsError):
        check_compatible(recipe, "0.24.0")
    check_compatible(recipe, "0.24.0", capability="10.0")


# Recipes -----------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "text",
    ["port = 8000\n", "[flags]\nport = 8000\n", '[speculative]\nmodel = "x"\n', "traits = ['unheard-of']\n"],
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
    assert "recipe list" in caught.value.next_step
