"""The lists of FlashInfer's kernels, and the build files that its generators write."""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_kit import DENSE, NEMOTRON, QWEN_27B, QWEN_35B
from msgspec import structs

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.companion.build import CompiledKernels, record_of
from sparkwright.companion.model import CompanionSpec, load_companion
from sparkwright.native.model import Configuration, Target
from sparkwright.recipes.recipe import Recipe, load_recipe, recipes
from sparkwright.serve.preflight.kv_plan import BLOCK, KvOptions, plan_kv
from sparkwright.serve.preflight.shape import model_shape

ROOT = Path(__file__).resolve().parents[3]
LISTS = sorted((ROOT / "patchsets" / "companions").glob("*.toml"))
LIST = """
format = 1
flashinfer = { filename = "flashinfer_python-1.2-py3-none-any.whl", sha256 = "%s", size = 1 }
paths = ["include"]
[tvm-ffi]
[modules.one]
generator = "a.b:make"
why = "it is called"
[modules.two]
generator = "a.b:make"
arguments = { kind = "torch.uint8", heads = 2, fast = false }
arches = ["12.1a"]
why = "it is called"
[modules.three]
generator = "a.b:make"
why = "it is called"
[modules.unknown]
why = "its sizes are those of a checkpoint"
[recipes]
"*" = ["one"]
chat = ["two"]
draft = ["three", "unknown"]
""" % ("0" * 64)


def written(folder: Path, text: str = LIST) -> CompanionSpec:
    (folder / "list.toml").write_text(text)
    return load_companion(folder / "list.toml")


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_each_shipped_list_names_shipped_recipes_and_no_module_for_nothing(path: Path) -> None:
    spec = load_companion(path)
    assert set(spec.recipes) - {"*"} <= set(recipes())
    assert {name for wanted in spec.recipes.values() for name in wanted} | {"topk"} >= set(spec.modules)
    assert set(spec.tvm_ffi) == {"aarch64", "x86_64"}


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_each_shipped_recipe_with_nvfp4_weights_is_listed(path: Path) -> None:
    spec = load_companion(path)
    served = {name: load_recipe(name) for name in recipes()}
    of_series = {name: one for name, one in served.items() if path.stem in one.series}
    quantised = {name for name, one in of_series.items() if one.about and one.about.precision == "nvfp4"}
    assert len(quantised) > 10
    assert quantised <= {name for name, wanted in spec.recipes.items() if "gemm-fp4" in wanted}
    elsewhere = {name for name in quantised if "moe-backend" in of_series[name].flags}
    assert elsewhere
    assert not elsewhere & {name for name, wanted in spec.recipes.items() if "moe" in wanted}


# Attention over a cache of FP8 -------------------------------------------------------------

ELSEWHERE = {
    "gemma-4": "vLLM gives heads of two sizes to Triton where FlashAttention 4 is missing, as on 12.x",
    "deepseek-v4": "its attention has a backend of its own",
    "qwen3.8-flash-next": "its attention has a backend of its own",
}


def unserved(spec: CompanionSpec, served: Iterable[Recipe]) -> list[str]:
    """Return the names of recipes whose listed attention is not the one that vLLM's order leads to."""

    def flashinfer(recipe: Recipe) -> bool:
        fp8 = str(recipe.flags.get("kv-cache-dtype", "")).startswith("fp8")
        named = recipe.flags.get("attention-backend", "FLASHINFER") == "FLASHINFER"
        return fp8 and named and not recipe.name.startswith(tuple(ELSEWHERE))

    def listed(recipe: Recipe) -> bool:
        return any(name.startswith("attention-fp8-") for name in spec.needed("12.1a", recipe.name))

    return [one.name for one in served if flashinfer(one) != listed(one)]


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_each_recipe_that_vllms_order_gives_to_flashinfer_lists_its_attention(path: Path) -> None:
    spec = load_companion(path)
    served = [one for name in recipes() if path.stem in (one := load_recipe(name)).series]
    assert unserved(spec, served) == []
    assert spec.chosen("9.0a", recipes=["qwen3.6-27b-mtp"]) == ["sampling"], (
        "FlashAttention takes it on Hopper"
    )
    without = {**spec.recipes, "qwen3.6-27b-mtp": ("gemm-fp4",)}
    with_too_much = {**spec.recipes, "gemma-4-31b-mtp": ("attention-fp8-256",)}
    assert unserved(structs.replace(spec, recipes=without), served) == ["qwen3.6-27b-mtp"]
    assert unserved(structs.replace(spec, recipes=with_too_much), served) == ["gemma-4-31b-mtp"]


SHAPES = {
    "llama-3.3-70b": {**DENSE, "num_attention_heads": 64, "num_key_value_heads": 8},
    "nemotron-3-nano": NEMOTRON,
    "qwen3.5-35b-a3b-mtp": QWEN_35B["text_config"],
    "qwen3.6-27b-mtp": QWEN_27B["text_config"],
    "qwen3.6-27b-mtp-2x": QWEN_27B["text_config"],
    "qwen3.6-27b-nvfp4-kv-mtp": QWEN_27B["text_config"],
    "qwen3.6-35b-a3b-mtp": QWEN_35B["text_config"],
}
GRID = 64
"""Tokens that 0.33 keeps blocks at multiples of beside linear attention: FlashInfer's prefill of that."""


def page_size(recipe: Recipe, shape: dict[str, Any], ranks: int) -> int:
    """Return the tokens of a page as vLLM 0.33 gives it to FlashInfer, which takes 16, 32 and 64."""
    options = KvOptions(
        dtype=recipe.flags["kv-cache-dtype"],
        block=GRID if "linear_num_key_heads" in shape else BLOCK,
        drafts=recipe.speculative.get("num_speculative_tokens", 0),
        prefix_caching=True,
        ranks=ranks,
    )
    block = plan_kv(model_shape(shape), (), options).groups[0].block
    return next(size for size in (64, 32, 16) if block % size == 0)


@pytest.mark.parametrize("name", SHAPES)
def test_decode_by_xqa_is_listed_for_each_step_of_drafts_and_the_models_shape(name: str) -> None:
    spec = load_companion(ROOT / "patchsets" / "companions" / "0.33.toml")
    recipe, shape = load_recipe(name), SHAPES[name]
    found = [spec.modules[one].arguments for one in spec.needed("12.1a", name) if one.startswith("xqa-")]
    ranks = int(recipe.flags.get("tensor-parallel-size", 1))
    drafts = int(recipe.speculative.get("num_speculative_tokens", 0))
    nvfp4 = recipe.flags["kv-cache-dtype"] == "nvfp4"
    queries = shape["num_attention_heads"] // ranks // (shape["num_key_value_heads"] // ranks)
    same = {
        "input_dtype": "torch.bfloat16",
        "output_dtype": "torch.bfloat16",
        "kv_cache_dtype": "torch.uint8" if nvfp4 else "torch.float8_e4m3fn",
        "page_size": page_size(recipe, shape, ranks),
        "head_dim": shape["head_dim"],
        "head_group_ratio": queries,
        "use_sliding_window": False,
    }
    assert found == [{**same, "q_seq_len": tokens} for tokens in range(1, drafts + 2)]


def test_a_recipe_needs_its_own_modules_and_those_of_every_recipe(tmp_path: Path) -> None:
    spec = written(tmp_path)
    assert spec.version == "1.2"
    assert spec.chosen("12.1a", recipes=["chat"]) == ["one", "two"]
    assert spec.chosen("12.1a", recipes=["unlisted"]) == ["one"]
    assert spec.chosen("12.1a") == ["one", "two", "three"]
    assert spec.chosen("12.1a", modules=["three"]) == ["three"]
    assert spec.chosen("12.1a", recipes=["chat"], modules=["three"]) == ["one", "two", "three"]


def test_a_module_for_other_cards_is_left_out_unless_it_is_named(tmp_path: Path) -> None:
    spec = written(tmp_path)
    assert spec.chosen("9.0a", recipes=["chat"]) == ["one"]
    with pytest.raises(UnknownNameError, match=r"not for 9\.0a"):
        spec.chosen("9.0a", modules=["two"])
    with pytest.raises(UnknownNameError, match="four"):
        spec.chosen("9.0a", modules=["four"])


def test_a_module_without_a_generator_is_needed_and_not_compiled(tmp_path: Path) -> None:
    spec = written(tmp_path)
    assert spec.needed("12.1a", "draft") == ["one", "three", "unknown"]
    assert spec.chosen("12.1a", recipes=["draft"]) == ["one", "three"]
    assert spec.needed("12.1a", "chat") == spec.chosen("12.1a", recipes=["chat"])
    with pytest.raises(UnknownNameError, match="cannot be compiled ahead") as caught:
        spec.chosen("12.1a", modules=["unknown"])
    assert "those of a checkpoint" in caught.value.because


def test_a_companions_record_says_what_recipes_need_and_no_companion_has(tmp_path: Path) -> None:
    spec = structs.replace(written(tmp_path), tvm_ffi={"aarch64": written(tmp_path).flashinfer})
    toolchain: Any = SimpleNamespace(key="k", packages={})
    kernels = CompiledKernels({}, {}, Configuration((), (), {}), "tree", toolchain)
    found = record_of(kernels, spec, Target("aarch64", "12.1a"))["recipes"]
    assert found == {"*": ["one"], "chat": ["one", "two"], "draft": ["one", "three", "unknown"]}


def test_a_list_is_refused_that_is_missing_or_names_an_unknown_module(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_companion(tmp_path / "none.toml")
    with pytest.raises(UnknownNameError, match="is incomplete"):
        written(tmp_path, LIST.replace('["two"]', '["two", "four"]'))
