"""The recipes that ship: complete, reasoned, sourced, and free of known contradictions."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from sparkwright.pipeline import open_checkout
from sparkwright.recipes import Recipe, apply_use, incompatibilities, node_arguments, recipes
from sparkwright.recipes.reference import load_references, references

ROOT = Path(__file__).parents[2]
RECIPES = recipes()
NAMES = sorted(RECIPES)
PAIRS = [(name, use) for name in NAMES for use in ("", *RECIPES[name].uses)]


def options(recipe: Recipe) -> set[str]:
    return {*recipe.flags, *(f"speculative.{key}" for key in recipe.speculative), *recipe.environment}


@functools.cache
def series_spec(series: str) -> Any:
    return open_checkout(ROOT, series).build_spec()


@pytest.mark.parametrize(("name", "use"), PAIRS)
def test_each_option_has_one_reason_and_each_reason_an_option(name, use):
    recipe = apply_use(RECIPES[name], use) if use else RECIPES[name]
    assert set(recipe.why) == options(recipe)
    assert all(reason.strip() for reason in recipe.why.values())


@pytest.mark.parametrize("name", NAMES)
def test_name_is_the_files_and_reasons_of_uses_are_of_their_own_options(name):
    recipe = RECIPES[name]
    assert recipe.name == name
    for use in recipe.uses.values():
        changed = {*use.flags, *(f"speculative.{key}" for key in use.speculative), *use.environment}
        assert set(use.why) == changed


@pytest.mark.parametrize("name", NAMES)
def test_no_rule_is_broken_in_the_series_that_it_is_for(name):
    recipe = RECIPES[name]
    for series in recipe.series:
        spec = series_spec(series)
        carries = {carry.name for carry in spec.carries}
        for case in (recipe, *(apply_use(recipe, use) for use in recipe.uses)):
            assert incompatibilities(case, spec.lock.release.version, carries=carries) == ()


@pytest.mark.parametrize("name", NAMES)
def test_sources_are_public_addresses(name):
    recipe = RECIPES[name]
    assert all(one.source.startswith("https://") for one in recipe.evidence)
    assert recipe.made_up or (recipe.about is not None and recipe.about.page.startswith("https://"))


def test_figures_exist_and_each_is_named_by_a_recipe():
    named = {one.key for recipe in RECIPES.values() for one in references(recipe)}
    assert named == set(load_references())


def test_nothing_claims_to_be_served_by_this_project():
    # The record of a run on that card would have to be named here.
    assert {name for name, recipe in RECIPES.items() if recipe.grade == "served"} == set()


def test_recipes_for_two_machines_divide_the_model():
    two = {name: recipe for name, recipe in RECIPES.items() if recipe.nodes == 2}
    assert two
    assert all(recipe.flags["tensor-parallel-size"] == 2 for recipe in two.values())
    assert all(name.endswith("-2x") for name in two)
    assert node_arguments(0, "a") == ("--nnodes", "2", "--node-rank", "0", "--master-addr", "a")
    assert node_arguments(1, "a")[-1] == "--headless"
