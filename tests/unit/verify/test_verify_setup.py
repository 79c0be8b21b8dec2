"""The recipes of servers that are verified, one, two or a space of them."""

from pathlib import Path

import msgspec
import pytest

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.recipes.recipe import load_recipe, recipes, serve_arguments
from sparkwright.verify.options import VerifyOptions, recipe_and_use
from sparkwright.verify.plan import plan_of, profile_of
from sparkwright.verify.servers import simulated
from sparkwright.verify.setup import as_requested, without_speculation
from sparkwright.verify.space import TOKENS, load_base, make_space, parse_vary


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


BOTH = VerifyOptions(
    profile="demo", simulator=True, recipe="qwen3.8-27b-mtp", against_recipe="qwen3.6-27b-dflash:many"
)


def test_a_recipe_is_named_with_or_without_a_use() -> None:
    assert recipe_and_use("qwen3.8-27b-mtp:many") == ("qwen3.8-27b-mtp", "many")
    assert recipe_and_use("qwen3.8-27b-mtp") == ("qwen3.8-27b-mtp", "")
    assert recipe_and_use("own/recipe.toml:many") == ("own/recipe.toml", "many")
    assert recipe_and_use("own/a:b.toml") == ("own/a:b.toml", "")


@pytest.mark.parametrize(
    ("recipe", "named"),
    [("qwen3.6-27b-dflash", "qwen3.6-27b-dflash"), ("own/qwen3.6.toml", "qwen3.6"), ("smoke", "smoke")],
)
def test_a_run_is_named_by_the_whole_name_of_its_recipe(recipe: str, named: str) -> None:
    options = VerifyOptions(recipe=recipe)
    assert (options.recipe_name, options.title) == (named, named)


def test_each_arm_is_served_by_its_recipe(tmp_path: Path) -> None:
    fleet, _, identity = simulated(BOTH, profile_of(BOTH), tmp_path)
    drafted = {}
    for arm in ("main", "baseline"):
        argv = fleet[arm](0).launch.argv  # type: ignore[attr-defined]
        drafted[arm] = (argv[argv.index("--k") + 1], argv[argv.index("--method") + 1])
    rival = load_recipe("qwen3.6-27b-dflash", "many").speculative["num_speculative_tokens"]
    assert drafted == {"main": ("3", "mtp"), "baseline": (str(rival), "dflash")}
    assert identity["main recipe"] != identity["baseline recipe"]


@pytest.mark.parametrize("recipe", ["soup", "smoke:many"])
def test_a_recipe_or_use_that_is_none_is_refused(recipe: str) -> None:
    plan_of(BOTH)
    with pytest.raises(UnknownNameError):
        plan_of(msgspec.structs.replace(BOTH, against_recipe=recipe))


MTP = load_recipe("qwen3.8-27b-mtp")


def test_words_become_values() -> None:
    found = parse_vary(
        ["num-speculative-tokens=0,3,3", "kv-cache-dtype=auto, fp8", "enable-x=on,false", "u=0.7"]
    )
    assert found == {
        TOKENS: (0, 3),
        "kv-cache-dtype": ("auto", "fp8"),
        "enable-x": (True, False),
        "u": (0.7,),
    }


@pytest.mark.parametrize(
    "text",
    ["x", "=1", "x=", "port=1,2", "model=a,b", "--port=1", "LD_PRELOAD=/x", "num-speculative-tokens=-1,abc"],
)
def test_what_cannot_be_varied_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_vary([text])


def test_the_recipe_is_first_and_each_configuration_there_once() -> None:
    space = make_space(MTP, parse_vary(["num-speculative-tokens=0,1,3", "max-num-seqs=16,32"]))
    assert len(space) == 6
    own = space[0]
    assert (own.own, own.name, own.recipe) == (True, "the recipe as it is", MTP)
    assert own.settings == {TOKENS: 3, "max-num-seqs": 16}
    assert len({one.key for one in space}) == 6
    apart = make_space(MTP, parse_vary(["max-num-seqs=32"]))
    assert [one.own for one in apart] == [True, False]


def test_no_speculation_is_one_configuration_whatever_would_be_drafted() -> None:
    space = make_space(MTP, {TOKENS: (0, 2), "speculative.draft_sample_method": ("greedy", "random")})
    (plain,) = [one for one in space if not one.recipe.speculative]
    assert (plain.recipe.drafter, plain.name) == ("", f"{TOKENS} 0")
    assert len(space) == 1 + 3


def test_settings_reach_flags_variables_and_speculation() -> None:
    vary = {
        "attention-backend": ("FLASHINFER",),
        "VLLM_X": (1,),
        "speculative.draft_sample_method": ("greedy",),
    }
    one = make_space(MTP, vary)[1].recipe
    assert one.flags["attention-backend"] == "FLASHINFER"
    assert one.environment["VLLM_X"] == "1"
    assert one.speculative["draft_sample_method"] == "greedy"


def test_a_space_that_is_too_large_is_refused() -> None:
    with pytest.raises(ConfigError):
        make_space(MTP, {f"f{i}": tuple(range(9)) for i in range(3)})


def test_tokens_without_a_drafter_are_refused() -> None:
    plain = load_recipe("nemotron-3-nano")
    assert not plain.speculative
    with pytest.raises(ConfigError, match="nothing to draft"):
        make_space(plain, {TOKENS: (0, 3)})
    with pytest.raises(ConfigError, match="several machines"):
        load_base("qwen3.6-27b-mtp-2x", "")
