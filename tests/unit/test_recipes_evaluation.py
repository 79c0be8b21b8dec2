"""Lowest scores in recipes: read, refused, and judged by `sparkwright verify eval`."""

from pathlib import Path

import msgspec
import pytest

from sparkwright.base.errors import ConfigError
from sparkwright.cli.verify_eval import _limits, _tasks_of
from sparkwright.recipes import load_recipe, recipes, shipped_path
from sparkwright.recipes.evidence import EvalBound
from sparkwright.recipes.write import recipe_text

NAME = "qwen3.6-27b-dflash"
GSM = """
[[evaluation]]
task = "gsm8k"
metric = "exact_match (strict-match)"
least = 0.9
source = "https://example.org/card"
settings = "5 examples"
"""
OTHER = """
[[evaluation]]
task = "ifeval"
least = 0.7
source = "https://example.org/card"
"""


def written(folder: Path, *bounds: str) -> Path:
    """A recipe with these bounds."""
    path = folder / "own.toml"
    path.write_text(shipped_path(NAME).read_text() + "".join(bounds))
    return path


def test_bounds_are_read_with_their_source(tmp_path: Path) -> None:
    first, second = load_recipe(written(tmp_path, GSM, OTHER)).evaluation
    assert first.name == "gsm8k exact_match (strict-match)"
    assert str(first).endswith("at least 0.9 (https://example.org/card, 5 examples)")
    assert (second.name, second.least) == ("ifeval", 0.7)
    assert _tasks_of((first, second), NAME) == ("gsm8k", "ifeval")


@pytest.mark.parametrize(
    ("bound", "says"),
    [
        (OTHER.replace("https://example.org/card", " "), "the bound of ifeval has no source"),
        (OTHER.replace("ifeval", ""), "a bound names no task"),
        (OTHER.replace("0.7", "nan"), "the bound of ifeval is nan"),
        (OTHER * 2, "ifeval has several bounds"),
        (OTHER.replace("source", "sauce"), "sauce"),
        ("\n".join(OTHER.splitlines()[:-1]), "source"),
    ],
)
def test_bounds_that_judge_nothing_are_refused(tmp_path: Path, bound: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(written(tmp_path, bound))
    assert says in str(caught.value.because)


def test_bounds_are_kept_when_a_recipe_is_written(tmp_path: Path) -> None:
    path = written(tmp_path, GSM)
    recipe = load_recipe(path)
    copied = tmp_path / "copied.toml"
    copied.write_text(recipe_text(recipe))
    assert load_recipe(copied).evaluation == recipe.evaluation


def test_the_command_line_is_stronger_than_the_recipe(tmp_path: Path) -> None:
    bounds = load_recipe(written(tmp_path, GSM, OTHER)).evaluation
    limits = _limits(bounds, ("gsm8k=0.5", "mmlu=0.6"), None)
    assert limits.least == {"ifeval": 0.7, "gsm8k": 0.5, "mmlu": 0.6}
    assert limits.sources == {"ifeval": "https://example.org/card", "gsm8k": "--least", "mmlu": "--least"}
    with pytest.raises(ConfigError, match="TASK=SCORE"):
        _limits(bounds, ("gsm8k",), None)


def test_without_tasks_and_bounds_there_is_nothing_to_evaluate() -> None:
    with pytest.raises(ConfigError, match="not clear what to evaluate") as caught:
        _tasks_of((), NAME)
    assert "no [[evaluation]]" in str(caught.value.because)


def test_no_shipped_recipe_has_a_bound_without_a_public_source() -> None:
    bounds = [one for recipe in recipes().values() for one in recipe.evaluation]
    assert all(one.source.startswith("https://") for one in bounds)
    assert msgspec.json.decode(msgspec.json.encode(EvalBound("t", 0.5, "s")))["task"] == "t"
