"""Uses of recipes for hybrid models with a drafter: states of their requests fit, by preflight's layout."""

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_kit import (
    MODELOPT,
    QWEN_27B,
    QWEN_27B_DFLASH,
    QWEN_35B,
    Tensors,
    dflash_27b,
    nvfp4_27b,
    write_checkpoint,
)
from msgspec.structs import replace
from preflight_kit import start

from sparkwright.recipes.recipe import Recipe, load_recipe
from sparkwright.serve.preflight.run import run_preflight

# Of each recipe: the target, and the size of its weights in GiB; none for those of the 27B in NVFP4.
MODELS = {
    "aeon-qwen3.6-27b-dflash": (QWEN_27B, 0),
    "aeon-qwen3.6-27b-xs-nvfp4-kv-mtp": (QWEN_27B, 0),
    "aeon-qwen3.6-35b-a3b-dflash": (QWEN_35B, 22),
    "qwen3.5-27b-nvfp4-dflash": (QWEN_27B, 0),
    "qwen3.6-27b-unsloth-mtp": (QWEN_27B, 0),
    "qwen3.6-27b-dflash": (QWEN_27B, 0),
    "qwen3.6-27b-nvfp4-kv-dflash": (QWEN_27B, 0),
    "qwen3.6-27b-nvfp4-kv-mtp": (QWEN_27B, 0),
    "qwen3.6-27b-mtp": (QWEN_27B, 0),
    "qwen3.5-27b-dflash": (QWEN_27B, 51),
    "qwen3.6-35b-a3b-dflash": (QWEN_35B, 22),
    "qwen3.6-35b-a3b-mtp": (QWEN_35B, 22),
}


@pytest.fixture
def findings(tmp_path: Path) -> Callable[[Recipe], set[str]]:
    """Findings about a start of a recipe on a Spark, with checkpoints that have headers alone."""

    def found(recipe: Recipe) -> set[str]:
        config, gib = MODELS[recipe.name]
        tensors: list[Tensors] = [{f"t{one}": ("BF16", (1 << 19, 1 << 10)) for one in range(gib)}]
        shards = tensors if gib else nvfp4_27b()
        model = write_checkpoint(tmp_path / recipe.name, config, shards, modelopt=None if gib else MODELOPT)
        drafter = ""
        if recipe.drafter:
            at = write_checkpoint(tmp_path / "drafter", QWEN_27B_DFLASH, dflash_27b(), tokenizer=False)
            drafter = str(at)
        placed = replace(recipe, model=str(model), drafter=drafter)
        return {one.check for one in run_preflight(start(placed))}

    return found


# Without a use, a recipe for 64 requests is what its published figures were taken with, and is left out.
@pytest.mark.parametrize(
    ("name", "use"),
    [
        (name, use)
        for name in MODELS
        for use in ("", *load_recipe(name).uses)
        if use or load_recipe(name).flags["max-num-seqs"] != 64
    ],
)
def test_states_of_all_requests_fit(findings: Callable[[Recipe], set[str]], name: str, use: str) -> None:
    assert "kv-states" not in findings(load_recipe(name, use))


@pytest.mark.parametrize(
    ("name", "use", "drafts"),
    [
        ("qwen3.6-27b-dflash", "many", 12),
        ("qwen3.6-27b-nvfp4-kv-dflash", "many", 12),
        ("qwen3.6-35b-a3b-dflash", "many", 12),
        ("qwen3.5-27b-nvfp4-dflash", "many", 15),
        ("qwen3.5-27b-dflash", "shared", 15),
    ],
)
def test_as_many_drafts_as_for_one_user_would_not(findings, name, use, drafts):
    recipe = load_recipe(name, use)
    more = {**recipe.speculative, "num_speculative_tokens": drafts}
    assert "kv-states" in findings(replace(recipe, speculative=more))


def test_conversations_of_full_length_fit_at_16(findings: Callable[[Recipe], set[str]]) -> None:
    recipe = load_recipe("qwen3.6-27b-dflash", "shared")
    assert "kv-requests" not in findings(recipe)
    more = replace(recipe, speculative={**recipe.speculative, "num_speculative_tokens": 12})
    assert "kv-requests" in findings(more)
