"""The recipe of a server that is verified."""

import pytest

from sparkwright.recipes.recipe import load_recipe, recipes, serve_arguments
from sparkwright.verify.setup import as_requested, without_speculation


def test_requests_are_sampled_as_they_ask() -> None:
    recipe = load_recipe("qwen3.6-27b-dflash")
    assert "generation-config" not in recipe.flags, "users get the checkpoint's own defaults"
    verified = as_requested(recipe)
    assert verified.flags == {**recipe.flags, "generation-config": "vllm"}
    own = load_recipe("qwen3.6-27b-dflash").flags | {"generation-config": "auto"}
    recipe.flags["generation-config"] = "auto"
    assert as_requested(recipe).flags == own, "what the recipe says stays"


@pytest.mark.parametrize("name", [one for one in recipes() if one not in {"smoke", "rehearsal-smollm2"}])
def test_recipes_keep_the_checkpoints_sampling_or_say_why(name: str) -> None:
    recipe = load_recipe(name)
    assert "generation-config" not in recipe.flags or "generation-config" in recipe.why


def test_the_baseline_drafts_nothing_and_is_else_the_same() -> None:
    recipe = load_recipe("qwen3.6-27b-dflash")
    plain = without_speculation(recipe)
    assert "--speculative-config" not in serve_arguments(plain, host="h", port=1)
    assert plain.flags == recipe.flags
    assert plain.drafter == ""
