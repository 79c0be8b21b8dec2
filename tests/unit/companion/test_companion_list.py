"""The lists of FlashInfer's kernels, and the build files that its generators write."""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_kit import DENSE, NEMOTRON, QWEN_27B, QWEN_35B
from msgspec import structs

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.base.machine import MachineSnapshot
from sparkwright.companion.build import CompiledKernels, record_of, split_by_memory
from sparkwright.companion.model import CompanionSpec, ModelShape, ModuleCost, load_companion
from sparkwright.native.model import Configuration, Target
from sparkwright.recipes.recipe import About, Recipe, load_recipe, recipes
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
[modules."three-{head}-{tokens}"]
generator = "a.b:make"
arguments = { size = "{head}", tokens = "{tokens}", page = "{page}" }
why = "decode of {tokens} tokens"
cost = { units = 3, measured = 3, seconds = 20, mib = 100, shapes = ["three-64-2"] }
[modules.unknown]
why = "its sizes are those of a checkpoint"
[needs]
every = ["one"]
linear = ["two"]
experts = []
attention = { fp8 = ["three-{head}-{tokens}"] }
[models]
"chat" = {}
"chat-7b" = { head = 64, page = 16 }
[drafters]
"draft" = { steps = false, needs = ["unknown"] }
""" % ("0" * 64)


CHAT = Recipe(format=1, name="chat", title="C", model="some/Chat-NVFP4")
LONG = Recipe(
    format=1, name="long", title="L", model="some/Chat-7B", flags={"kv-cache-dtype": "fp8_e4m3"},
    speculative={"num_speculative_tokens": 2},
)  # fmt: skip
DRAFTED = structs.replace(LONG, drafter="some/Draft")


def written(folder: Path, text: str = LIST) -> CompanionSpec:
    (folder / "list.toml").write_text(text)
    return load_companion(folder / "list.toml")


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_each_shipped_list_has_no_module_and_no_shape_for_nothing(path: Path) -> None:
    spec = load_companion(path)
    wanted = spec.chosen("12.1a", stated=False)
    spared = [
        name for name in spec.modules if not any(one.startswith(name.partition("{")[0]) for one in wanted)
    ]
    assert spared == (["topk"] if "topk" in spec.modules else [])
    assert set(spec.tvm_ffi) == {"aarch64", "x86_64"}
    served = spec.served()
    for name in spec.models:
        others = structs.replace(
            spec, models={one: shape for one, shape in spec.models.items() if one != name}
        )
        assert any(not others.knows(one) for one in served.values()), f"no recipe serves {name}"


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_each_shipped_recipe_with_nvfp4_weights_is_served_and_needs_its_kernels(path: Path) -> None:
    spec = load_companion(path)
    of_series = {name: one for name, one in recipes().items() if path.stem in one.series}
    quantised = {name: one for name, one in of_series.items() if one.about and one.about.precision == "nvfp4"}
    assert len(quantised) > 10
    assert set(quantised) <= set(spec.served())
    needed = {name: spec.needed("12.1a", one) for name, one in quantised.items()}
    assert all("gemm-fp4" in modules for modules in needed.values())
    mixtures = {name for name, modules in needed.items() if "moe" in modules}
    assert mixtures
    assert not mixtures & {name for name, one in quantised.items() if "moe-backend" in one.flags}


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
        return any(name.startswith("attention-fp8-") for name in spec.needed("12.1a", recipe))

    return [one.name for one in served if flashinfer(one) != listed(one)]


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_each_recipe_that_vllms_order_gives_to_flashinfer_lists_its_attention(path: Path) -> None:
    spec = load_companion(path)
    served = [one for name in recipes() if path.stem in (one := load_recipe(name)).series]
    assert unserved(spec, served) == []
    mtp, gemma = load_recipe("qwen3.6-27b-mtp"), load_recipe("gemma-4-31b-mtp")
    assert list(spec.needed("9.0a", mtp)) == ["sampling"], "FlashAttention takes it on Hopper"
    without = structs.replace(spec, models={**spec.models, "qwen3.6-27b": ModelShape()})
    assert unserved(without, [mtp, gemma]) == [mtp.name]
    with_too_much = structs.replace(spec, models={**spec.models, "gemma-4-31b": spec.models["qwen3.6-27b"]})
    assert unserved(with_too_much, [mtp, gemma]) == [gemma.name]


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
    needed = spec.needed("12.1a", recipe)
    found = [module.arguments for called, module in needed.items() if called.startswith("xqa-")]
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


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (None, ["one"]),
        (structs.replace(CHAT, model="some/Chat"), ["one"]),
        (CHAT, ["one", "two"]),
        (structs.replace(CHAT, about=About(precision="bf16")), ["one"]),
        (LONG, ["one", "three-64-1", "three-64-2", "three-64-3"]),
        (
            structs.replace(LONG, model="some/Chat-7B-NVFP4"),
            ["one", "two", "three-64-1", "three-64-2", "three-64-3"],
        ),
        (structs.replace(LONG, flags={**LONG.flags, "attention-backend": "TRITON_ATTN"}), ["one"]),
        (structs.replace(LONG, flags={"kv-cache-dtype": "nvfp4"}), ["one"]),
        (structs.replace(LONG, model="some/Chat"), ["one"]),
        (DRAFTED, ["one", "three-64-1", "unknown"]),
    ],
)
def test_a_server_needs_what_its_weights_cache_and_drafts_call(tmp_path, recipe, expected):
    assert list(written(tmp_path).needed("12.1a", recipe)) == expected


def test_a_module_of_a_shape_has_its_arguments(tmp_path: Path) -> None:
    module = written(tmp_path).needed("12.1a", LONG)["three-64-2"]
    assert (module.arguments, module.why) == (
        {"size": 64, "tokens": 2, "page": 16},
        "decode of 2 tokens",
    )


def test_only_the_shapes_that_were_compiled_are_measured(tmp_path: Path) -> None:
    costs = {name: one.cost for name, one in written(tmp_path).needed("12.1a", LONG).items() if one.cost}
    assert {name: (cost.measured, cost.minutes) for name, cost in costs.items()} == {
        "three-64-1": (0, 1), "three-64-2": (3, 1), "three-64-3": (0, 1),
    }  # fmt: skip


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_a_cost_for_shapes_names_modules_that_recipes_need(path: Path) -> None:
    spec = load_companion(path)
    wanted = spec.chosen("12.1a", stated=False)
    for name, module in spec.modules.items():
        if module.cost and "{" in name:
            assert module.cost.shapes, name
            assert set(module.cost.shapes) <= set(wanted), name


def test_named_modules_are_chosen_besides_and_refused_for_other_cards(tmp_path: Path) -> None:
    spec = written(tmp_path)
    assert list(spec.chosen("12.1a", names=["two"])) == ["two"]
    assert list(spec.chosen("9.0a", served=[CHAT])) == ["one"]
    assert list(spec.chosen("12.1a", served=[DRAFTED], names=["two"])) == ["one", "three-64-1", "two"]
    assert "unknown" in spec.chosen("12.1a", served=[DRAFTED], stated=False)
    with pytest.raises(UnknownNameError, match=r"not for 9\.0a"):
        spec.chosen("9.0a", names=["two"])
    with pytest.raises(UnknownNameError, match="four"):
        spec.chosen("9.0a", names=["four"])
    with pytest.raises(UnknownNameError, match="cannot be compiled ahead") as caught:
        spec.chosen("12.1a", names=["unknown"])
    assert "those of a checkpoint" in caught.value.because


def test_a_module_is_left_out_whose_units_need_more_memory_than_is_free(tmp_path: Path) -> None:
    cost = ModuleCost(units=2, measured=1, seconds=30, mib=6000)
    spec = written(tmp_path)
    large = structs.replace(spec.modules["two"], cost=cost)
    modules = {"one": spec.modules["one"], "two": large}
    assert split_by_memory(modules, MachineSnapshot(2, 16384, 7100)) == (modules, {})
    fitting, left = split_by_memory(modules, MachineSnapshot(2, 16384, 7000))
    assert (list(fitting), list(left), cost.minutes) == (["one"], ["two"], 1)


def test_a_companions_record_says_what_recipes_need_and_no_companion_has(tmp_path: Path) -> None:
    spec = load_companion(next(path for path in LISTS if path.stem == "0.33"))
    toolchain: Any = SimpleNamespace(key="k", packages={})
    kernels = CompiledKernels({}, {}, Configuration((), (), {}), "tree", toolchain)
    found = record_of(kernels, spec, Target("aarch64", "12.1a"))["recipes"]
    assert (found["*"], found["qwen3.6-27b-dflash"]) == (["sampling"], ["sampling", "gemm-fp4"])
    assert found["qwen3.8-27b-dflash2"][-1] == "attention-dflash2"
    assert set(found) == {"*", *spec.served()}


def test_a_list_is_refused_that_is_missing_or_names_an_unknown_module(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_companion(tmp_path / "none.toml")
    with pytest.raises(UnknownNameError, match="is incomplete"):
        written(tmp_path, LIST.replace('["two"]', '["two", "four"]'))
