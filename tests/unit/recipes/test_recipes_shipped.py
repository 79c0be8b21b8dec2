"""The recipes that ship: complete, reasoned, sourced, and free of known contradictions."""

import functools
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sparkwright.pipeline.checkout import open_checkout
from sparkwright.recipes.evidence import load_references, references
from sparkwright.recipes.recipe import Recipe, apply_use, node_arguments, recipes
from sparkwright.recipes.rules import incompatibilities
from sparkwright.serve.preflight.checkpoint import Checkpoint
from sparkwright.serve.preflight.drafter import check_drafter

ROOT = Path(__file__).parents[3]
RECIPES = recipes()
NAMES = sorted(RECIPES)
PAIRS = [(name, use) for name in NAMES for use in ("", *RECIPES[name].uses)]


def options(recipe: Recipe) -> set[str]:
    return {*recipe.flags, *(f"speculative.{key}" for key in recipe.speculative), *recipe.environment}


@functools.cache
def series_spec(series: str) -> Any:
    return open_checkout(ROOT, series).build_spec()


@pytest.mark.parametrize(("name", "use"), PAIRS)
def test_each_option_has_one_reason_and_each_reason_an_option(name, use):
    recipe = apply_use(RECIPES[name], use) if use else RECIPES[name]
    assert set(recipe.why) == options(recipe)
    assert all(reason.strip() for reason in recipe.why.values())


@pytest.mark.parametrize("name", NAMES)
def test_name_is_the_files_and_reasons_of_uses_are_of_their_own_options(name):
    recipe = RECIPES[name]
    assert recipe.name == name
    for use in recipe.uses.values():
        changed = {*use.flags, *(f"speculative.{key}" for key in use.speculative), *use.environment}
        assert set(use.why) == changed


@pytest.mark.parametrize("name", NAMES)
def test_no_rule_is_broken_in_the_series_that_it_is_for(name):
    recipe = RECIPES[name]
    for series in recipe.series:
        spec = series_spec(series)
        carries = {carry.name for carry in spec.carries}
        for case in (recipe, *(apply_use(recipe, use) for use in recipe.uses)):
            assert incompatibilities(case, spec.lock.release.version, carries=carries) == ()


@pytest.mark.parametrize("name", NAMES)
def test_sources_are_public_addresses(name):
    recipe = RECIPES[name]
    assert all(one.source.startswith("https://") for one in recipe.evidence)
    assert recipe.made_up or (recipe.about is not None and recipe.about.page.startswith("https://"))


def test_figures_exist_and_each_is_named_by_a_recipe():
    named = {one.key for recipe in RECIPES.values() for one in references(recipe.name, recipe.reference)}
    assert named == set(load_references())


def test_recipes_for_two_machines_divide_the_model():
    two = {name: recipe for name, recipe in RECIPES.items() if recipe.nodes == 2}
    assert two
    assert all(recipe.flags["tensor-parallel-size"] == 2 for recipe in two.values())
    assert all(name.endswith("-2x") for name in two)
    assert node_arguments(0, "a") == ("--nnodes", "2", "--node-rank", "0", "--master-addr", "a")
    assert node_arguments(1, "a")[-1] == "--headless"


# The block_size of each DFlash drafter, and where it was read.
BLOCKS = {
    "poolside/Laguna-S-2.1-DFlash-NVFP4": 16,  # ggml-org/llama.cpp#26669, of a copy as GGUF
    "tiny:drafter": 8,  # sparkwright/engine/tiny/
    "z-lab/Qwen3.5-27B-DFlash": 16,  # the recipe's reason
    "z-lab/Qwen3.6-27B-DFlash": 16,  # its configuration, as checkpoint_kit.py has it
    "z-lab/Qwen3.6-35B-A3B-DFlash": 16,  # its page gives figures of blocks of 8 and of 16
    "z-lab/Qwen3.8-27B-DFlash2": 8,  # Blaizzy/mlx-vlm#1959; vLLM 0.33.0's own test drafts 7
    "z-lab/gemma-4-26B-A4B-it-DFlash": 16,  # taken to be as for the 31B model
    "z-lab/gemma-4-31B-it-DFlash": 16,  # https://huggingface.co/Lucebox/gemma-4-31B-it-DFlash-GGUF
    "z-lab/gpt-oss-120b-DFlash": 8,  # the recipe's reason
}
DFLASH = [pair for pair in PAIRS if RECIPES[pair[0]].speculative.get("method") == "dflash"]


def drafter_findings(recipe: Recipe) -> list[str]:
    config = {"architectures": ["DFlashDraftModel"], "block_size": BLOCKS[recipe.drafter]}
    drafter = Checkpoint(recipe.drafter, Path(), config=config)
    return [one.check for one in check_drafter(recipe, Checkpoint(recipe.model, Path()), drafter)]


@pytest.mark.parametrize(("name", "use"), DFLASH)
def test_preflights_rule_of_drafters_finds_nothing_in_a_recipe_that_ships(name, use):
    recipe = apply_use(RECIPES[name], use) if use else RECIPES[name]
    assert not recipe.drafter or drafter_findings(recipe) == []


def test_a_draft_as_long_as_a_block_would_be_found():
    recipe = RECIPES["qwen3.8-27b-dflash2"]
    long = replace(recipe, speculative={**recipe.speculative, "num_speculative_tokens": 8})
    assert drafter_findings(long) == ["draft-length"]


def test_garbage_after_a_hit_is_told_of_every_drafter_that_is_known_for_it():
    told = {name for name, recipe in RECIPES.items() if "vllm#60174" in " ".join(recipe.limits)}
    assert told == {"nemotron-3.5-lightning-dspark", "qwen3.8-27b-dflash2", "qwen3.8-27b-dflash2-2x"}
    served = RECIPES["qwen3.8-27b-dflash2"]
    without = [
        replace(served, flags={**served.flags, "enable-prefix-caching": False}),
        replace(served, speculative={}),
        replace(served, drafter="z-lab/Qwen3.8-27B-DFlash"),
    ]
    assert not [one for one in without if "vllm#60174" in " ".join(one.limits)]


def test_a_number_of_drafts_by_load_stays_within_the_number_of_drafts():
    for name, use in PAIRS:
        recipe = apply_use(RECIPES[name], use) if use else RECIPES[name]
        most = recipe.speculative.get("num_speculative_tokens", 0)
        by_load = recipe.speculative.get("num_speculative_tokens_per_batch_size", [])
        assert all(1 <= drafts <= most for _, _, drafts in by_load), name
        if by_load:
            assert recipe.series == ("0.33",)
            assert by_load[-1][1] == recipe.flags["max-num-seqs"]
            assert [first for first, _, _ in by_load] == [1, *(last + 1 for _, last, _ in by_load[:-1])]
