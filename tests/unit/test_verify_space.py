"""The configurations of a search: from words, files and recipes to settings of servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwright.base.errors import ConfigError
from sparkwright.recipes import load_recipe
from sparkwright.verify.tune.options import Drafting, TuneOptions, require_usable
from sparkwright.verify.tune.setup import with_defaults
from sparkwright.verify.tune.space import (
    METHOD,
    TOKENS,
    default_vary,
    load_base,
    make_space,
    methods_of,
    parse_vary,
    read_space,
)

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


@pytest.mark.parametrize("text", ["x", "=1", "x=", "port=1,2", "model=a,b"])
def test_what_cannot_be_varied_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_vary([text])


def test_the_recipe_is_first_and_each_configuration_there_once() -> None:
    space = make_space(MTP, parse_vary(["num-speculative-tokens=0,1,3", "max-num-seqs=16,32"]))
    assert len(space.configurations) == 6
    own = space.configurations[0]
    assert (own.own, own.name, own.recipe) == (True, "the recipe as it is", MTP)
    assert own.settings == {TOKENS: 3, "max-num-seqs": 16}
    assert len({one.key for one in space.configurations}) == 6
    apart = make_space(MTP, parse_vary(["max-num-seqs=32"]))
    assert [one.own for one in apart.configurations] == [True, False]


def test_no_speculation_is_one_configuration_whatever_would_be_drafted() -> None:
    space = make_space(
        MTP, {METHOD: ("mtp", "ngram", "none"), TOKENS: (0, 2), "speculative.prompt_lookup_max": (3, 4)}
    )
    plain = [one for one in space.configurations if not one.drafts]
    assert len(plain) == 1
    assert plain[0].recipe.speculative == {}
    assert {one.recipe.speculative.get("method") for one in space.configurations} == {"mtp", "ngram", None}


def test_the_twin_without_speculation_differs_by_nothing_else() -> None:
    space = make_space(MTP, parse_vary(["num-speculative-tokens=0,3", "max-num-seqs=16,32"]))
    for index, one in enumerate(space.configurations):
        twin = space.without_drafts(index)
        if not one.drafts:
            assert twin is None
            continue
        assert twin is not None
        assert space.configurations[twin].recipe.flags == one.recipe.flags
        assert not space.configurations[twin].drafts
    assert make_space(MTP, parse_vary(["max-num-seqs=16,32"])).without_drafts(0) is None


def test_other_recipes_of_the_model_give_methods() -> None:
    methods = methods_of(load_recipe("qwen3.6-27b-dflash"))
    assert next(iter(methods)) == "dflash"
    assert {"dflash", "ngram", "none"} <= methods.keys()
    own = Drafting(drafter="my/eagle", speculative={"method": "eagle3", "num_speculative_tokens": 3})
    space = make_space(MTP, {METHOD: ("mtp:2", "eagle3")}, {"eagle3": own})
    drafted = {one.recipe.drafter: one.recipe.speculative for one in space.configurations[1:]}
    assert drafted["my/eagle"]["method"] == "eagle3"
    assert drafted[""]["num_speculative_tokens"] == 2


def test_settings_reach_flags_variables_and_speculation() -> None:
    vary = {
        "attention-backend": ("FLASHINFER",),
        "VLLM_X": (1,),
        "speculative.draft_sample_method": ("greedy",),
    }
    one = make_space(MTP, vary).configurations[1].recipe
    assert one.flags["attention-backend"] == "FLASHINFER"
    assert one.environment["VLLM_X"] == "1"
    assert one.speculative["draft_sample_method"] == "greedy"


@pytest.mark.parametrize(
    "vary",
    [{METHOD: ("telepathy",)}, {f"f{i}": tuple(range(9)) for i in range(3)}],
    ids=["unknown method", "too many"],
)
def test_a_space_that_cannot_be_made_is_refused(vary: dict[str, tuple[object, ...]]) -> None:
    with pytest.raises(ConfigError):
        make_space(MTP, vary)


def test_tokens_without_a_drafter_are_refused() -> None:
    plain = load_recipe("nemotron-3-nano")
    assert not plain.speculative
    with pytest.raises(ConfigError, match="nothing to draft"):
        make_space(plain, {TOKENS: (0, 3)})
    with pytest.raises(ConfigError, match="several machines"):
        load_base("qwen3.6-27b-mtp-2x", "")


def test_defaults_follow_the_recipe() -> None:
    alone = load_recipe("smoke")
    assert default_vary(alone, 32) == {TOKENS: (0, 4, 7), "kv-cache-dtype": ("auto", "fp8")}
    vary = default_vary(MTP, 32)
    assert vary[METHOD][:2] == ("mtp:2", "mtp:3")
    assert {"dflash:7", "none"} <= set(vary[METHOD])
    assert TOKENS not in vary
    assert vary["kv-cache-dtype"] == ("fp8", "auto")
    assert vary["max-num-batched-tokens"] == (8192, 16384)
    assert "max-num-seqs" not in vary  # of the uses only `many` takes 32 requests
    assert default_vary(MTP, 8)["max-num-seqs"] == (16, 64)
    made = with_defaults(TuneOptions(recipe="qwen3.8-27b-mtp", simulator=True))
    assert made.vary == default_vary(MTP, 32)


def test_a_plain_recipe_tries_drafters_of_other_recipes_of_its_model() -> None:
    vary = default_vary(load_recipe("gpt-oss-120b"), 8)
    assert vary[METHOD][-1] == "none"
    assert len(vary[METHOD]) > 1


def test_what_vllm_chooses_by_itself_is_no_other_configuration() -> None:
    space = make_space(load_recipe("smoke"), {"kv-cache-dtype": ("auto", "fp8")})
    assert [one.name for one in space.configurations] == ["the recipe as it is", "kv-cache-dtype fp8"]


def test_a_space_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text(
        "format = 1\n[vary]\nnum-speculative-tokens = [0, 3]\nmethod = ['mtp', 'eagle3']\n"
        "[methods.eagle3]\ndrafter = 'my/eagle'\nspeculative = { method = 'eagle3' }\n",
        encoding="utf-8",
    )
    found = read_space(path)
    assert found.vary == {TOKENS: (0, 3), METHOD: ("mtp", "eagle3")}
    assert found.methods["eagle3"].drafter == "my/eagle"
    path.write_text("format = 1\nvary = { port = [1] }\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="port"):
        read_space(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"simulator": False},
        {"python": "/python"},
        {"weights": (1.0,)},
        {"weights": (0.0, 0.0, 0.0)},
        {"weights": (1.0, -1.0, 1.0)},
        {"levels": ()},
        {"levels": (0,), "weights": ()},
        {"objective": "goodput"},
        {"slo": "ttft=2s"},
    ],
)
def test_options_that_contradict_each_other_are_refused(changes: dict[str, object]) -> None:
    good = {"recipe": "smoke", "simulator": True}
    require_usable(TuneOptions(**good))  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        require_usable(TuneOptions(**{**good, **changes}))  # type: ignore[arg-type]
