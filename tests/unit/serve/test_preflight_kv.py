"""The layout of a KV cache is vLLM's: figures of boots, recorded and published, come out to the unit."""

from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_kit import DENSE, GEMMA_26B, GPT_OSS, NEMOTRON, QWEN_27B, QWEN_35B
from preflight_kit import GB10, H200, recipe, spark

from sparkwright.engine.installed import EngineFacts
from sparkwright.serve.preflight.checkpoint import Checkpoint
from sparkwright.serve.preflight.kv_plan import (
    KvOptions,
    UnknownFormatError,
    kv_options,
    plan_kv,
    token_bytes,
)
from sparkwright.serve.preflight.machine import CardFacts
from sparkwright.serve.preflight.shape import Attention, model_shape

GIB = 1 << 30


@pytest.mark.parametrize(
    ("dtype", "alone", "with_drafter"),
    [("auto", 262_144, None), ("fp8", 524_288, 419_424), ("nvfp4", 932_064, 745_648)],
)
def test_the_record_of_the_h200(dtype, alone, with_drafter):
    """docs/evidence.md#nvfp4-cache, "Capacity"."""
    shape, options = model_shape(DENSE), KvOptions(dtype=dtype)
    assert plan_kv(shape, (), options).tokens(4 * GIB, 1024) == alone
    if with_drafter:
        assert plan_kv(shape, (Attention(2, 4, 128),), options).tokens(4 * GIB, 1024) == with_drafter


@pytest.mark.parametrize(
    ("config", "pool", "ranks", "length", "tokens"),
    [
        # Qwen3.6-35B-A3B on vLLM 0.24.0, one RTX 5090 (noonghunna/club-3090#652 and #612)
        (QWEN_35B, 6.01, 1, 131_072, 569_878),
        (QWEN_35B, 5.98, 1, 131_072, 567_978),
        # Qwen3.8-27B on two RTX 3090 (mitchross/talos-argocd-proxmox#1995)
        (QWEN_27B, 4.99, 2, 131_072, 302_921),
    ],
)
def test_published_boots_of_hybrid_models(config, pool, ranks, length, tokens):
    options = KvOptions(dtype="fp8", prefix_caching=True, ranks=ranks)
    assert plan_kv(model_shape(config["text_config"]), (), options).tokens(int(pool * GIB), length) == tokens


@pytest.mark.parametrize(
    ("drafts", "exports", "block"), [(7, 1, 1648), (7, 64, 1664), (8, 64, 1664), (3, 64, 1600)]
)
def test_blocks_of_a_hybrid_model_whose_prefill_exports_states(drafts, exports, block):
    """By `_align_hybrid_block_size` of vLLM 0.33.0; boots without FlashInfer's prefill log 1648."""
    options = KvOptions(dtype="fp8", prefix_caching=True, drafts=drafts, exports=exports)
    assert plan_kv(model_shape(QWEN_27B["text_config"]), (), options).groups[0].block == block


SPARK, LATER = {"enable-prefix-caching": True, "kv-cache-dtype": "fp8"}, "0.33.0+spark.3.1a2b3c4d"


@pytest.mark.parametrize(
    ("flags", "card", "version", "config", "exports"),
    [
        (SPARK, GB10, LATER, QWEN_27B, 64),
        ({**SPARK, "gdn-prefill-backend": "flashinfer"}, GB10, LATER, QWEN_27B, 64),
        (SPARK, H200, LATER, QWEN_27B, 64),
        ({**SPARK, "gdn-prefill-backend": "triton"}, GB10, LATER, QWEN_27B, 1),
        ({**SPARK, "mamba-cache-mode": "all"}, GB10, LATER, QWEN_27B, 1),
        ({**SPARK, "enable-prefix-caching": False}, GB10, LATER, QWEN_27B, 1),
        ({"kv-cache-dtype": "fp8"}, GB10, LATER, QWEN_27B, 1),
        (SPARK, GB10, "0.24.0+spark.11.9f64d3bc", QWEN_27B, 1),
        (SPARK, GB10, "", QWEN_27B, 1),
        (SPARK, CardFacts("NVIDIA A100", "8.0"), LATER, QWEN_27B, 1),
        (SPARK, None, LATER, QWEN_27B, 1),
        (SPARK, GB10, LATER, NEMOTRON, 1),
        (SPARK, GB10, LATER, DENSE, 1),
        (SPARK, GB10, LATER, {**QWEN_27B, "architectures": ["Qwen4ExpForConditionalGeneration"]}, 1),
        (SPARK, GB10, LATER, {"text_config": {**QWEN_27B["text_config"], "linear_key_head_dim": 64}}, 1),
        (SPARK, H200, LATER, {"text_config": {**QWEN_27B["text_config"], "linear_key_head_dim": 64}}, 64),
    ],
)
def test_which_starts_export_states(flags, card, version, config, exports):
    target = Checkpoint("m", Path(), config=config)
    options = kv_options(recipe(flags=flags), target, spark(card=card), EngineFacts(version=version))
    assert options.exports == exports


@pytest.mark.parametrize("tokens", [622_408, 620_944])
def test_a_published_boot_of_a_hybrid_model_that_drafts_for_itself(tokens):
    """noonghunna/club-3090#294 and #295 do not state the pool; whole numbers of blocks give their tokens."""
    options = KvOptions(dtype="fp8_e5m2", model_dtype="float16", prefix_caching=True, drafts=3, ranks=2)
    plan = plan_kv(model_shape(QWEN_27B["text_config"]), (Attention(1, 4, 256),), options)
    assert plan.groups[0].block == 1600  # as #584 logs it
    found = {plan.tokens(blocks * plan.block_bytes, 262_144) for blocks in range(400, 450)}
    assert tokens in found


@pytest.mark.parametrize(
    ("dtype", "draft", "states", "pages"),
    [
        ("fp8", "fp8", 1.0, 1.0),
        ("auto", "fp8", 1.0, 1.0),
        ("fp8", "bfloat16", 2.0, 1.0),
        ("nvfp4", "bfloat16", 32 / 9, 32 / 9),
    ],
)
def test_a_drafter_enlarges_the_pages_of_a_hybrid_model(dtype, draft, states, pages):
    """What docs/dflash.md says of hybrid models, which the planning of vLLM with the carry gave."""
    shape = model_shape(QWEN_27B["text_config"])
    alone = plan_kv(shape, (), KvOptions(dtype=dtype))
    beside = plan_kv(shape, (Attention(5, 8, 128),), KvOptions(dtype=dtype, draft_dtype=draft))
    found = {group.what: group for group in beside.groups}
    first, state = alone.groups
    assert found["states"].page / state.page == pytest.approx(states)
    target = found["attention"]
    assert (target.page / target.block) / (first.page / first.block) == pytest.approx(pages)


def test_windows_hold_a_window_and_a_batch():
    plan = plan_kv(model_shape(GPT_OSS), (), KvOptions(batch=2048))
    full, windowed = plan.groups
    assert (full.layers, windowed.layers, windowed.window) == (18, 18, 128)
    assert full.blocks(131_072, 2048) == 8192
    assert windowed.blocks(131_072, 2048) == (127 + 2048 + 15) // 16 + 1
    assert windowed.blocks(64, 2048) == 5
    assert plan.block_bytes == 18 * 16 * 2 * 8 * 64 * 2


def test_heads_of_two_sizes_share_pages():
    full, windowed = plan_kv(model_shape(GEMMA_26B), (), KvOptions()).groups
    assert (full.layers, windowed.layers) == (5, 25)
    assert full.page == windowed.page == 16 * 2 * 8 * 256 * 2
    assert (full.block, windowed.block) == (32, 16)
    assert (full.tables, windowed.tables) == (1, 5)


@pytest.mark.parametrize(("saves", "nvfp4", "wide"), [(True, 1.0, 1.125), (False, 32 / 9, 1.0)])
def test_nvfp4_beside_windows_of_16_bits(saves, nvfp4, wide):
    """docs/dflash.md: with the carry an NVFP4 page takes its own bytes, and a 16-bit one an eighth more."""
    options = KvOptions(dtype="nvfp4", draft_dtype="bfloat16", saves=saves)
    target, window = plan_kv(model_shape(DENSE), (Attention(8, 4, 128, 2048),), options).groups
    assert target.page / target.block == pytest.approx(nvfp4 * 2 * 4 * 72)
    assert window.page / window.block == pytest.approx(wide * 2 * 4 * 256)


def test_layers_that_share_keys_have_no_cache():
    shared = {**DENSE, "num_kv_shared_layers": 3}
    assert model_shape(shared).attention[0].layers == 5


def test_latent_attention_has_one_vector():
    layer = Attention(61, latent=576)
    assert token_bytes(layer, "auto", "bfloat16") == 1152
    assert token_bytes(layer, "fp8", "bfloat16") == 576
    assert token_bytes(layer, "fp8_ds_mla", "bfloat16") == 656
    config = {"num_hidden_layers": 4, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 128}
    assert model_shape(config).attention == (Attention(4, latent=576),)


def test_mamba_states():
    shape = model_shape(NEMOTRON)
    (states,) = shape.states
    assert (shape.attention[0].layers, states.layers) == (1, 2)
    assert states.bytes(0, 2) == 3 * (64 * 64 + 2 * 8 * 128) * 2 + 64 * 64 * 128 * 4


@pytest.mark.parametrize(
    ("change", "unknown"),
    [
        ({"layer_types": ["full_attention", "conv"]}, "conv"),
        ({"attn_layer_period": 4}, "another key"),
        ({"index_topk": 2048}, "sparse"),
        ({"num_hidden_layers": 0}, "number of layers"),
        ({"num_hidden_layers": 1 << 50}, "number of layers"),
        ({"num_attention_heads": 0, "num_key_value_heads": 0, "head_dim": 0}, "heads"),
        ({"layer_types": ["linear_attention"] * 8}, "states"),
    ],
)
def test_other_layers_are_unknown(change, unknown):
    shape = model_shape({**DENSE, **change})
    assert unknown in shape.unknown
    assert not shape.attention
    assert not shape.states
    assert not model_shape(DENSE).unknown


def test_a_type_of_unknown_size_is_said_so():
    with pytest.raises(UnknownFormatError, match="turboquant"):
        plan_kv(model_shape(DENSE), (), KvOptions(dtype="turboquant_k8v4"))


def test_the_longest_request_is_the_longest_that_fits():
    plan = plan_kv(model_shape(DENSE), (), KvOptions())
    longest = plan.longest(GIB, 1_000_000)
    assert longest == GIB // (8 * 2048) == 65_536
    assert plan.request_bytes(longest) <= GIB < plan.request_bytes(longest + 1)
    assert plan.longest(10 * GIB, 4096) == 4096
    assert plan.longest(0, 4096) == 0


def test_the_layers_of_a_dflash_drafter_stay_in_one_group():
    """Eight layers beside five full ones of Gemma 4: the target's groups are padded to eight."""
    shape, drafter = model_shape(GEMMA_26B), (Attention(7, 8, 128, 2048), Attention(1, 8, 128))
    dealt = plan_kv(shape, tuple(replace(one, window=0) for one in drafter), KvOptions())
    whole = plan_kv(shape, drafter, KvOptions(together=True))
    assert [(group.layers, group.tables) for group in dealt.groups] == [(5, 1), (25, 5), (8, 2)]
    assert [(group.layers, group.tables) for group in whole.groups] == [(5, 1), (25, 4), (8, 1)]
    assert whole.block_bytes * 5 == dealt.block_bytes * 8


def test_layers_of_a_drafter_that_are_like_the_targets_have_a_group_of_their_own():
    small = {**GPT_OSS, "num_hidden_layers": 24, "layer_types": GPT_OSS["layer_types"][:24]}
    shape, drafter = model_shape(small), (Attention(8, 8, 64),)
    dealt = plan_kv(shape, drafter, KvOptions())
    whole = plan_kv(shape, drafter, KvOptions(together=True))
    assert sorted((group.layers, group.tables) for group in dealt.groups) == [(12, 1), (20, 2)]
    assert sorted((group.layers, group.tables) for group in whole.groups) == [(8, 1), (12, 2), (12, 2)]
