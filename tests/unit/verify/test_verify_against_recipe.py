"""One wheel under two recipes: both servers differ by their recipes alone, and are compared by rates."""

from pathlib import Path

import msgspec
import pytest

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.recipes.recipe import load_recipe
from sparkwright.verify.options import VerifyOptions, recipe_and_use
from sparkwright.verify.plan import plan_of, profile_of
from sparkwright.verify.servers import simulated

BOTH = VerifyOptions(
    profile="demo", simulator=True, recipe="qwen3.8-27b-mtp", against_recipe="qwen3.6-27b-dflash:many"
)


def test_a_recipe_is_named_with_or_without_a_use() -> None:
    assert recipe_and_use("qwen3.8-27b-mtp:many") == ("qwen3.8-27b-mtp", "many")
    assert recipe_and_use("qwen3.8-27b-mtp") == ("qwen3.8-27b-mtp", "")
    assert recipe_and_use("own/recipe.toml:many") == ("own/recipe.toml", "many")
    assert recipe_and_use("own/a:b.toml") == ("own/a:b.toml", "")


def test_each_arm_is_served_by_its_recipe(tmp_path: Path) -> None:
    fleet, _, identity = simulated(BOTH, profile_of(BOTH), tmp_path)
    drafted = {}
    for arm in ("main", "baseline"):
        argv = fleet[arm](0).launch.argv  # type: ignore[attr-defined]
        drafted[arm] = (argv[argv.index("--k") + 1], argv[argv.index("--method") + 1])
    rival = load_recipe("qwen3.6-27b-dflash", "many").speculative["num_speculative_tokens"]
    assert drafted == {"main": ("3", "mtp"), "baseline": (str(rival), "dflash")}
    assert identity["main recipe"] != identity["baseline recipe"]


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"against_recipe": "soup"}, UnknownNameError), ({"against_recipe": "smoke:many"}, UnknownNameError)],
)
def test_contradictions_are_refused(changes: dict[str, str], error: type[ConfigError]) -> None:
    plan_of(BOTH)
    with pytest.raises(error):
        plan_of(msgspec.structs.replace(BOTH, **changes))
