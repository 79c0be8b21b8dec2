"""Reasons of flags and variables, and the folders of caches."""

from collections.abc import Sequence

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from sparkwright.base.errors import PreflightError
from sparkwright.cli.serve import command
from sparkwright.engine.release import ReleaseAnswer
from sparkwright.pipeline.job import Job
from sparkwright.recipes.recipe import Recipe, recipes, serve_arguments
from sparkwright.recipes.release_options import Problem, Question
from sparkwright.serve.caches import cache_key
from sparkwright.serve.plan import RECIPE_KEY, explain_flags, explain_variables

RECIPE = Recipe(
    format=1,
    name="r",
    title="R",
    model="m",
    drafter="d",
    flags={"max-num-seqs": 4, "enforce-eager": True, "enable-prefix-caching": False, "odd": {"a": 1}},
    speculative={"method": "dflash", "num_speculative_tokens": 7},
    environment={"SOME_TOKEN": "hidden", "OTHER": "1"},
    why={"max-num-seqs": "few users", "OTHER": "because"},
)


@pytest.mark.parametrize("recipe", [RECIPE, *recipes().values()], ids=lambda recipe: recipe.name)
def test_every_flag_of_the_command_is_explained(recipe: Recipe) -> None:
    reasons = explain_flags(recipe, host="h", port=1)
    explained = {reason.name.partition(" ")[0] for reason in reasons}
    words = serve_arguments(recipe, host="h", port=1)
    assert {word for word in words if word.startswith("--")} == explained - {"model"}
    assert all(reason.why for reason in reasons)


def test_the_recipes_own_reason_comes_first() -> None:
    why = {reason.name: (reason.value, reason.why) for reason in explain_flags(RECIPE, host="h", port=1)}
    assert why["--max-num-seqs"] == ("4", "few users")
    assert why["--no-enable-prefix-caching"][0] == ""
    assert why["--odd"] == ('{"a": 1}', "the recipe has it")
    assert why["--speculative-config model"][0] == "d"


def test_values_that_are_secrets_are_not_shown() -> None:
    found = {one.name: (one.value, one.why) for one in explain_variables(RECIPE, RECIPE.environment)}
    assert found["SOME_TOKEN"] == ("***", RECIPE_KEY)
    (own,) = explain_variables(replace(RECIPE, environment={}), {"VLLM_API_KEY": ""})
    assert own.why == "the key that clients must send, out of --api-key-file or this shell"
    assert found["OTHER"] == ("1", "because")


def test_caches_are_apart_for_wheel_recipe_and_card() -> None:
    key = cache_key("wheel", RECIPE, "12.1")
    retitled = replace(RECIPE, title="Another", notes=("a note",), why={})
    assert cache_key("wheel", retitled, "12.1") == key, "a title compiles nothing"
    other = replace(RECIPE, flags={**RECIPE.flags, "max-num-seqs": 5})
    keys = {
        key,
        cache_key("wheel 2", RECIPE, "12.1"),
        cache_key("wheel", RECIPE, ""),
        cache_key("wheel", other, "12.1"),
    }
    assert len(keys) == 4


@pytest.mark.parametrize("kind", [None, "deprecated", "flag"])
def test_a_dry_run_asks_the_release_about_what_is_set(kind, tmp_path, monkeypatch):
    asked: list[Question] = []

    def answer(job: Job, questions: Sequence[Question]) -> ReleaseAnswer:
        assert (job.checkout.series, job.options.offline) == ("0.24", True)
        asked.extend(questions)
        return ReleaseAnswer("0.24.0", ((Problem(kind, "--some-flag", "it is so"),) if kind else (),))

    monkeypatch.setattr("sparkwright.cli.serve.ask_release", answer)
    monkeypatch.setenv("SPARKWRIGHT_DIST", str(tmp_path))
    words = ["qwen3.6-27b-dflash", "--series", "0.24", "--dry-run"]
    done = CliRunner().invoke(command, words)
    assert (done.exit_code, asked) == (0, []), "the recipes that ship were checked before"
    done = CliRunner().invoke(command, [*words, "--set", "some-flag=8"])
    assert "a dry run: nothing was started" in done.output
    assert asked[0].flags["some-flag"] == 8
    assert isinstance(done.exception, PreflightError) is (kind == "flag")
    assert ("warn     --some-flag" in done.output) is (kind == "deprecated")
