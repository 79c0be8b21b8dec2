"""Drafters that a model runner refuses late or misreads are found; their healthy twins are silent."""

from __future__ import annotations

import pytest
from checkpoint_kit import DENSE, GEMMA_26B, NEMOTRON, QWEN_27B, QWEN_27B_DFLASH, write_checkpoint
from preflight_kit import recipe, start

from sparkwright.serve.preflight import EngineFacts, run_preflight
from sparkwright.serve.preflight.kv_plan import keeps_one_group

WINDOWS = frozenset({"dflash-sliding-window"})
OLD, NEW = "0.24.0+spark.6.1a2b3c4d", "0.24.0+spark.7.1a2b3c4d"
V1, V2 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}
AUX = "eagle_aux_hidden_state_layer_ids"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}


def drafter_of(target, layers, **keys):
    own = target.get("text_config", target)
    sizes = {"hidden_size": own["hidden_size"], "vocab_size": own["vocab_size"]}
    count = own["num_hidden_layers"]
    dflash = {"mask_token_id": 7, "target_layer_ids": [1, count // 2, count - 2]}
    return {
        **QWEN_27B_DFLASH, **sizes, "num_target_layers": count, "num_hidden_layers": layers,
        "dflash_config": dflash, **keys,
    }  # fmt: skip


def levels(tmp_path, target, drafter, *, method="dflash", version=OLD, carries=WINDOWS, variables=None):
    folder = write_checkpoint(tmp_path / "target", target)
    own = write_checkpoint(tmp_path / "drafter", drafter, tokenizer=False)
    speculative = {"method": method, "num_speculative_tokens": 5}
    served = recipe(folder, drafter=str(own), speculative=speculative, environment=variables or {})
    found = run_preflight(start(served, engine=EngineFacts(version=version, carries=carries)))
    return {one.check: one for one in found if one.check in {"draft-kv-groups", "draft-aux-layers"}}


# KV cache groups ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "layers"),
    [(GEMMA_26B, 8), (QWEN_27B, 17)],
    ids=["windows and full layers", "gated delta nets"],
)
@pytest.mark.parametrize(("version", "carries"), [(OLD, WINDOWS), ("0.24.0", frozenset())])
def test_a_drafter_in_several_groups_is_found_before_the_weights_are_read(
    tmp_path, target, layers, version, carries
):
    found = levels(tmp_path, target, drafter_of(target, layers), version=version, carries=carries)
    assert {name: one.level for name, one in found.items()} == {"draft-kv-groups": "refuse"}
    assert found["draft-kv-groups"].liftable
    assert f"its {layers} layers" in found["draft-kv-groups"].because
    assert "revision 7" in found["draft-kv-groups"].next_step


@pytest.mark.parametrize(
    ("target", "layers", "keys"),
    [
        (GEMMA_26B, 8, {"version": NEW}),
        (GEMMA_26B, 8, {"version": "0.24.0+spark.0.1a2b3c4d"}),
        (GEMMA_26B, 8, {"version": "0.33.0"}),
        (GEMMA_26B, 8, {"variables": V2}),
        (GEMMA_26B, 5, {}),
        (QWEN_27B, 5, {}),
        (DENSE, 17, {}),
    ],
    ids=["later revision", "no revision", "later release", "V2", "as many", "published", "one kind"],
)
def test_a_drafter_in_one_group_is_silent(tmp_path, target, layers, keys):
    assert levels(tmp_path, target, drafter_of(target, layers), **keys) == {}


@pytest.mark.parametrize(
    ("version", "kept"),
    [(OLD, False), (NEW, True), ("0.24.0+spark.10.1a2b3c4d", True), ("0.24.0+mine.3.1a2b3c4d", True)],
)
def test_the_revision_is_read_from_the_version(version, kept):
    assert keeps_one_group(EngineFacts(version=version, carries=WINDOWS)) is kept
    assert not keeps_one_group(EngineFacts(version=version))


# Layers of the target that an EAGLE3 drafter takes --------------------------------------------------


def eagle3(**keys):
    sizes = {name: DENSE[name] for name in ("hidden_size", "vocab_size", "num_attention_heads", "head_dim")}
    return {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, **sizes, **keys}


INNER = {"eagle_config": {AUX: [1, 4, 6]}}
QWEN3 = {**DENSE, "architectures": ["Qwen3ForCausalLM"]}


@pytest.mark.parametrize(
    ("target", "version", "variables", "level"),
    [(QWEN3, OLD, {}, "warn"), (DENSE, OLD, V2, "warn"), (QWEN3, "0.33.0", {}, "note")],
    ids=["by default", "asked for", "a release whose choice was not read"],
)
def test_layers_that_v2_does_not_read_are_found(tmp_path, target, version, variables, level):
    found = levels(tmp_path, target, eagle3(**INNER), method="eagle3", version=version, variables=variables)
    assert {name: one.level for name, one in found.items()} == {"draft-aux-layers": level}
    assert "[1, 4, 6]" in found["draft-aux-layers"].because


DEFAULT = [2, DENSE["num_hidden_layers"] // 2, DENSE["num_hidden_layers"] - 3]


@pytest.mark.parametrize(
    ("drafter", "variables"),
    [
        (eagle3(**INNER), V1),
        (eagle3(**INNER, **{AUX: [1, 4, 6]}), V2),
        (eagle3(eagle_config={AUX: DEFAULT}), V2),
        (eagle3(eagle_config={AUX: [1, 4, 6], "use_aux_hidden_state": False}), V2),
        (eagle3(), V2),
    ],
    ids=["V1", "named at the top", "the default ones", "takes none", "names none"],
)
def test_layers_that_are_read_are_silent(tmp_path, drafter, variables):
    assert levels(tmp_path, QWEN3, drafter, method="eagle3", variables=variables) == {}


# Steps without drafts -------------------------------------------------------------------------------


def rules_of(tmp_path, target, speculative, *, version=NEW, **keys):
    served = recipe(write_checkpoint(tmp_path / "target", target), speculative=speculative, **keys)
    found = run_preflight(start(served, engine=EngineFacts(version=version)))
    return [one.check for one in found if one.check.startswith("rule ")]


@pytest.mark.parametrize("target", [QWEN_27B, NEMOTRON])
def test_n_gram_drafts_of_a_hybrid_checkpoint_are_found_though_the_recipe_does_not_say_hybrid(
    tmp_path, target
):
    assert rules_of(tmp_path, target, NGRAM) == ["rule hybrid-steps-without-drafts"]


def test_n_gram_drafts_of_a_dense_model_are_silent(tmp_path):
    assert rules_of(tmp_path, DENSE, NGRAM) == []


# Latent attention -----------------------------------------------------------------------------------

LATENT = {
    **DENSE,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


@pytest.mark.parametrize("traits", [(), ("mla",)])
def test_drafts_over_latent_attention_are_refused_once_whether_or_not_the_recipe_says_mla(tmp_path, traits):
    assert rules_of(tmp_path, LATENT, NGRAM, traits=traits) == ["rule mla-drafts"]


def test_a_rule_that_recipe_and_checkpoint_both_show_is_told_once(tmp_path):
    found = rules_of(tmp_path, QWEN_27B | {"kv_lora_rank": 512}, NGRAM, traits=("mla",))
    assert found == ["rule mla-drafts", "rule hybrid-steps-without-drafts"]


def test_latent_attention_on_runner_v2_is_refused(tmp_path):
    assert rules_of(tmp_path, LATENT, {}, environment=V2) == ["rule mla-runner-v2"]


def test_latent_attention_without_drafts_or_on_0_33_is_silent(tmp_path):
    assert rules_of(tmp_path, LATENT, {}, environment=V1) == []
    assert rules_of(tmp_path, LATENT, NGRAM, version="0.33.0") == []
    assert rules_of(tmp_path, DENSE, {}, environment=V2) == []
