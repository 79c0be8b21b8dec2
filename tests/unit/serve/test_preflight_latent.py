"""What a model runner refuses late, misreads or adds up wrongly is found; healthy twins are silent."""

import pytest
from checkpoint_kit import DENSE, NEMOTRON, QWEN_27B, write_checkpoint
from preflight_kit import GB10, H200, recipe, spark, start

from sparkwright.engine.installed import EngineFacts
from sparkwright.recipes.recipe import load_recipe
from sparkwright.serve.preflight.engine_checks import part_tokens
from sparkwright.serve.preflight.run import run_preflight

OURS = "0.24.0+spark.14.1a2b3c4d"
V1, V2 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}


def rules_of(tmp_path, target, speculative, *, version=OURS, **keys):
    served = recipe(write_checkpoint(tmp_path / "target", target), speculative=speculative, **keys)
    found = run_preflight(start(served, engine=EngineFacts(version=version)))
    return [one.check for one in found if one.check.startswith("rule ")]


LATENT = {
    **DENSE,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


@pytest.mark.parametrize(
    ("target", "speculative", "keys", "found"),
    [
        # Steps without drafts of a hybrid model, though the recipe does not say hybrid
        (QWEN_27B, NGRAM, {}, ["hybrid-steps-without-drafts"]),
        (NEMOTRON, NGRAM, {}, ["hybrid-steps-without-drafts"]),
        (DENSE, NGRAM, {}, []),
        # Drafts over latent attention, once whether or not the recipe says mla
        (LATENT, NGRAM, {}, ["mla-drafts"]),
        (LATENT, NGRAM, {"traits": ("mla",)}, ["mla-drafts"]),
        (
            QWEN_27B | {"kv_lora_rank": 512},
            NGRAM,
            {"traits": ("mla",)},
            ["mla-drafts", "hybrid-steps-without-drafts"],
        ),
        (LATENT, {}, {"environment": V2}, ["mla-runner-v2"]),
        (LATENT, {}, {"environment": V1}, []),
        (LATENT, NGRAM, {"version": "0.33.0"}, []),
        (DENSE, {}, {"environment": V2}, []),
    ],
)
def test_rules_about_what_the_checkpoint_shows(tmp_path, target, speculative, keys, found):
    assert rules_of(tmp_path, target, speculative, **keys) == [f"rule {name}" for name in found]


# By transformers' configuration of mistralai/Mistral-Small-4-119B-2603.
MISTRAL = {**LATENT, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "max_position_embeddings": 1 << 20}
CARDS = {"gb10": GB10, "h200": H200}


def refuses_parts(tmp_path, config, *, version="0.24.0+spark.1", card="gb10", **flags) -> bool:
    served = recipe(write_checkpoint(tmp_path / "model", config), flags=flags)
    found = run_preflight(start(served, spark(card=CARDS[card]), engine=EngineFacts(version=version)))
    return ("latent-context", "refuse") in {(one.check, one.level) for one in found}


@pytest.mark.parametrize(
    ("longest", "requests", "refused"),
    [
        (131_072, 1, True), (2048, 16, True), (65_536, 1, False), (65_536, 2, True),
        (32_768, 2, False), (32_768, 4, True), (8192, 8, False), (8192, 16, True), (16_384, 4, False),
    ],
)  # fmt: skip
def test_contexts_of_several_parts_are_refused(tmp_path, longest, requests, refused):
    sizes = {"max-model-len": longest, "max-num-seqs": requests}
    assert refuses_parts(tmp_path, LATENT, **sizes) is refused


@pytest.mark.parametrize("use", ["single", "shared", "many"])
def test_values_as_large_as_queries_are_never_padded(tmp_path, use):
    """So Mistral-Small-4 is served right by 0.24."""
    flags = load_recipe("mistral-small-4", use).flags
    sizes = {name: flags[name] for name in ("max-model-len", "max-num-seqs")}
    assert not refuses_parts(tmp_path, MISTRAL, **sizes)
    assert refuses_parts(tmp_path, MISTRAL | {"v_head_dim": 64}, **sizes)


def test_other_releases_cards_and_models_are_silent(tmp_path):
    assert refuses_parts(tmp_path, LATENT)
    assert not refuses_parts(tmp_path, LATENT, version="0.33.0")
    assert not refuses_parts(tmp_path, LATENT, card="h200")
    assert not refuses_parts(tmp_path, DENSE)


def test_a_part_is_what_upstream_gives_each_request():
    assert (part_tokens(65_536, 1), part_tokens(4096, 64), part_tokens(128, 256)) == (65_536, 512, 64)
