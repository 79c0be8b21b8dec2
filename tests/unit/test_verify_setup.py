"""The recipe of a server that is verified."""

import pytest

from sparkwright.recipes import load_recipe, recipes
from sparkwright.verify.setup import as_requested


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
