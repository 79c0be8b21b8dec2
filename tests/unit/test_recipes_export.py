"""Recipes in other tools' formats are YAML that says what the recipe says."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
import yaml

from sparkwright.base.errors import ConfigError
from sparkwright.recipes import Recipe, load_recipe, recipes, serve_arguments
from sparkwright.recipes.export import command_line, export

SHIPPED = {name: recipe for name, recipe in recipes().items() if not recipe.made_up}


def options(words: list[str]) -> dict[str, list[str]]:
    """Return the values of each option, but those that sparkrun sets by itself."""
    found: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            name = word
            found[name] = []
        else:
            found[name].append(word)
    return {name: values for name, values in found.items() if name != "--tensor-parallel-size"}


@pytest.mark.parametrize("name", SHIPPED)
def test_sparkruns_command_is_the_recipes(name):
    recipe = SHIPPED[name]
    read = yaml.safe_load(export(recipe, "sparkrun"))
    command = read["command"].replace("\\\n", " ")
    for key, value in {**read["defaults"], "model": read["model"]}.items():
        command = command.replace(f"{{{key}}}", str(value))
    words, ours = shlex.split(command), serve_arguments(recipe, host=read["defaults"]["host"], port=8000)
    assert words[:3] == ["vllm", "serve", recipe.model]
    assert options(words[3:]) == options(list(ours[2:]))
    assert (read["min_nodes"], read["max_nodes"], read["defaults"]["tensor_parallel"]) == (recipe.nodes,) * 3
    assert read.get("env", {}) == recipe.environment
    assert (read["recipe_version"], read["runtime"]) == ("2", "vllm-distributed")


@pytest.mark.parametrize("name", [name for name in SHIPPED if SHIPPED[name].about.parameters])
def test_catalogue_gets_every_flag_once(name):
    recipe = SHIPPED[name]
    read = yaml.safe_load(export(recipe, "vllm", date="2026-11-23"))
    words = list(read["model"]["base_args"])
    for feature in read["features"].values():
        words += feature["args"]
    ours = serve_arguments(recipe, host="h", port=1)
    assert options(words) == options(list(ours[ours.index("1") + 1 :]))
    assert str(read["meta"]["date_added"]) == "2026-11-23"
    assert "hardware" not in read["meta"], "only what this project served is marked as verified"
    assert read["variants"]["default"]["vram_minimum_gb"] > 0
    assert isinstance(read["model"]["context_length"], int)


def test_least_memory_is_that_of_the_parameters_and_a_fifth():
    (variant,) = yaml.safe_load(export(load_recipe("llama-3.3-70b"), "vllm", date="2026-11-23"))[
        "variants"
    ].values()
    assert variant["vram_minimum_gb"] == 48  # 70 times 9/16


@pytest.mark.parametrize(
    "changes",
    [{"model": "tiny:target"}, {"model": "some/model"}, {"model": "some/model", "about": None}],
)
def test_what_cannot_be_exported_is_refused(changes: dict[str, Any]):
    recipe = Recipe(format=1, name="made", title="Made up", **changes)
    with pytest.raises(ConfigError, match="cannot be exported"):
        export(recipe, "vllm", date="2026-11-23")


def test_command_line_can_be_pasted():
    text = command_line(load_recipe("qwen3.5-35b-a3b-mtp"))
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:3] == ["VLLM_USE_DEEP_GEMM=0", "vllm", "serve"]
    config = words[words.index("--speculative-config") + 1]
    assert json.loads(config) == {"method": "mtp", "num_speculative_tokens": 1}
