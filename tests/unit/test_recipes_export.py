"""Recipes in sparkrun's format are YAML that says what the recipe says."""

import json
import shlex

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
    read = yaml.safe_load(export(recipe))
    command = read["command"].replace("\\\n", " ")
    for key, value in {**read["defaults"], "model": read["model"]}.items():
        command = command.replace(f"{{{key}}}", str(value))
    words, ours = shlex.split(command), serve_arguments(recipe, host=read["defaults"]["host"], port=8000)
    assert words[:3] == ["vllm", "serve", recipe.model]
    assert options(words[3:]) == options(list(ours[2:]))
    assert (read["min_nodes"], read["max_nodes"], read["defaults"]["tensor_parallel"]) == (recipe.nodes,) * 3
    assert read.get("env", {}) == recipe.environment
    assert (read["recipe_version"], read["runtime"]) == ("2", "vllm-distributed")


def test_a_model_that_is_made_here_is_not_exported():
    recipe = Recipe(format=1, name="made", title="Made up", model="tiny:target")
    with pytest.raises(ConfigError, match="cannot be exported"):
        export(recipe)


def test_command_line_can_be_pasted():
    text = command_line(load_recipe("qwen3.5-35b-a3b-mtp"))
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:3] == ["VLLM_USE_DEEP_GEMM=0", "vllm", "serve"]
    config = words[words.index("--speculative-config") + 1]
    assert json.loads(config) == {"method": "mtp", "num_speculative_tokens": 1}
