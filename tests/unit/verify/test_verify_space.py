"""The configurations of a search: from words, files and recipes to settings of servers."""

import pytest

from sparkwright.base.errors import ConfigError
from sparkwright.recipes.recipe import load_recipe
from sparkwright.verify.space import TOKENS, load_base, make_space, parse_vary

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
