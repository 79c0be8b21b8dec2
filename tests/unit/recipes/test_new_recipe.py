"""A recipe of a checkpoint has what follows from its configuration, and a context that fits a GB10."""

from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import NEMOTRON, QWEN_27B, QWEN_27B_DFLASH, Tensors, nvfp4_27b, write_checkpoint

from sparkwright.base.errors import ConfigError, PreflightError
from sparkwright.recipes.commands import Remark
from sparkwright.recipes.recipe import Recipe, load_recipe, recipe_text
from sparkwright.recipes.release_options import Problem
from sparkwright.serve.new_recipe import SPARK, new_recipe, without_unknown_parsers
from sparkwright.serve.preflight.facts import PreflightRequest
from sparkwright.serve.preflight.run import inspect_start

LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}
MODELOPT = {"quantization_config": LLAMA_70B["quantization_config"]}
# Values of four bits, two a byte, and their scales.
PACKED: Tensors = {
    "model.layers.0.mlp.up_proj.weight": ("U8", (80, 28672, 16384)),
    "model.layers.0.mlp.up_proj.weight_scale": ("F8_E4M3", (80, 28672, 1024)),
}


def made(
    folder: Path, config: dict[str, Any], shards: list[Tensors] | None = None, **more: Any
) -> tuple[Recipe, tuple[Remark, ...]]:
    model = write_checkpoint(folder / "My-Model_7B", config, shards)
    return new_recipe(str(model), "0.33", {"HF_HUB_OFFLINE": "1"}, **more)


def test_all_of_it_follows_from_the_configuration(tmp_path: Path) -> None:
    recipe, remarks = made(tmp_path, QWEN_27B)
    assert (recipe.name, recipe.weights, recipe.traits, recipe.series) == (
        "my-model-7b", "none", ("hybrid",), ("0.33",),
    )  # fmt: skip
    assert recipe.flags["reasoning-parser"] == "qwen3"
    assert (recipe.flags["tool-call-parser"], recipe.flags["enable-auto-tool-choice"]) == (
        "qwen3_coder",
        True,
    )
    assert (recipe.speculative, recipe.drafter, remarks) == ({}, "", ())
    assert set(recipe.flags) <= {*recipe.why, "enable-auto-tool-choice"}
    (tmp_path / "mine.toml").write_text(recipe_text(recipe))
    assert load_recipe(tmp_path / "mine.toml").flags == recipe.flags


@pytest.mark.parametrize(
    ("config", "shards"),
    [({**QWEN_27B, **MODELOPT}, nvfp4_27b()), (LLAMA_70B, [PACKED])],
    ids=["hybrid", "dense"],
)
def test_the_context_is_the_longest_halving_that_fits_a_gb10(tmp_path, config, shards):
    recipe, _ = made(tmp_path, config, shards)
    longest = (config.get("text_config") or config)["max_position_embeddings"]
    length, requests = recipe.flags["max-model-len"], recipe.flags["max-num-seqs"]

    def short_of_cache(**flags: int) -> set[str]:
        new = {name.replace("_", "-"): value for name, value in flags.items()}
        changed = Recipe(1, "x", "x", recipe.model, flags={**recipe.flags, **new})
        found = inspect_start(PreflightRequest(changed, host=SPARK, environment={})).findings
        return {one.check for one in found} & {"kv-cache", "kv-states", "kv-requests"}

    assert not short_of_cache()
    assert longest % length == 0
    assert length == longest or short_of_cache(max_model_len=2 * length, max_num_seqs=1)
    assert requests == 16 or short_of_cache(max_num_seqs=requests + 1)


def test_what_is_stated_stays(tmp_path: Path) -> None:
    drafter = write_checkpoint(tmp_path / "drafter", QWEN_27B_DFLASH)
    drafts = {"method": "dflash", "num_speculative_tokens": 8, "model": str(drafter)}
    recipe, _ = made(
        tmp_path, QWEN_27B, name="mine", speculative=drafts, settings=("max_model_len=8192", "seed=1")
    )
    assert (recipe.name, recipe.drafter) == ("mine", str(drafter))
    assert recipe.speculative == {"method": "dflash", "num_speculative_tokens": 8}
    assert (recipe.flags["max-model-len"], recipe.flags["seed"]) == (8192, 1)
    assert recipe.nodes == 1


@pytest.mark.parametrize(
    ("config", "more", "said"),
    [
        (QWEN_27B | {"model_type": "strange"}, {}, ["model_type strange"]),
        (QWEN_27B | {"auto_map": {"AutoModel": "m.M"}}, {}, ["Qwen3_5ForConditionalGeneration"]),
        (
            QWEN_27B | {"text_config": QWEN_27B["text_config"] | {"layer_types": ["else"] * 64}},
            {},
            ["max-model-len 32768"],
        ),
    ],
    ids=["parsers", "code", "layers"],
)
def test_what_is_not_known_is_said_in_one_line(tmp_path, config, more, said):
    recipe, remarks = made(tmp_path, config, **more)
    assert [one.what for one in remarks] == said
    assert all("\n" not in one.because for one in remarks)
    assert "trust-remote-code" not in recipe.flags


def test_a_checkpoint_that_cannot_be_served_is_refused_once(tmp_path: Path) -> None:
    with pytest.raises(PreflightError) as caught:
        made(tmp_path, LLAMA_70B, [PACKED, {"more.weight": ("U8", (160, 1 << 15, 1 << 15))}])
    assert (caught.value.because.count("\n"), "weights" in caught.value.because) == (0, True)
    with pytest.raises(PreflightError, match="MTP"):
        made(
            tmp_path / "mtp", LLAMA_70B, [PACKED], speculative={"method": "mtp", "num_speculative_tokens": 1}
        )
    with pytest.raises(ConfigError, match="cannot be read"):
        new_recipe(str(tmp_path / "nothing"), "0.33", {"HF_HUB_OFFLINE": "1"})


def test_a_parser_that_the_release_lacks_is_left_out() -> None:
    flags = {"enable-auto-tool-choice": True, "tool-call-parser": "new", "reasoning-parser": "old"}
    recipe = Recipe(1, "x", "x", "m", flags=flags, why=dict.fromkeys(flags, "because"))
    problems = [Problem("value", "--tool-call-parser new", "unknown"), Problem("flag", "--odd", "unknown")]
    changed, remarks, others = without_unknown_parsers(recipe, problems)
    assert changed.flags == {"reasoning-parser": "old"} == changed.why | {"reasoning-parser": "old"}
    assert ([one.what for one in remarks], list(others)) == (["--tool-call-parser new"], problems[1:])


@pytest.mark.parametrize("setting", ["max-model-len=auto", "max-model-len=-1", "block-size=0"])
def test_a_size_that_vllm_chooses_is_not_divided_by(tmp_path: Path, setting: str) -> None:
    recipe, _ = made(tmp_path, QWEN_27B, settings=(setting,))
    flag, _, value = setting.partition("=")
    assert str(recipe.flags[flag]) == value
    assert (recipe.why["max-num-seqs"] == "not planned") == (flag == "max-model-len")


def test_a_context_that_no_configuration_states_is_said_to_be_a_guess(tmp_path: Path) -> None:
    recipe, remarks = made(tmp_path, NEMOTRON | {"model_type": "nemotron_h"})
    assert [one.what for one in remarks] == ["max-model-len 32768"]
    assert "guess" in recipe.why["max-model-len"]
    told = made(tmp_path / "set", NEMOTRON | {"model_type": "nemotron_h"}, settings=("max-model-len=8192",))
    assert told[1] == ()


@pytest.mark.parametrize(("name", "made_of_it"), [("../evil", "evil"), ("x" * 500, "x" * 64)])
def test_a_name_is_that_of_a_file(tmp_path: Path, name: str, made_of_it: str) -> None:
    assert made(tmp_path, QWEN_27B, name=name)[0].name == made_of_it


def test_a_damaged_configuration_is_told_from_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="double quotes"):
        new_recipe(str(tmp_path), "0.33", {"HF_HUB_OFFLINE": "1"})
