"""Check recipes by the releases that they are for: by their own parsers, and by the rules of `recipes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.base.errors import unknown_name
from sparkwright.engine.release import ask_release
from sparkwright.git import Repository
from sparkwright.pipeline.checkout import Checkout, open_checkout, series_names
from sparkwright.pipeline.job import make_job
from sparkwright.pipeline.options import BuildOptions
from sparkwright.recipes.recipe import Recipe, apply_use, node_arguments
from sparkwright.recipes.release_options import Problem, question_of
from sparkwright.recipes.rules import incompatibilities
from sparkwright.store import Store


@dataclass(frozen=True)
class CheckedRecipe:
    """One recipe with one of its uses, checked by one series.

    Attributes:
        use: name of the use; empty for the recipe alone.
        problems: options that the release lacks or refuses, and those that it will lack.
        rules: rules of `sparkwright.recipes.rules` that it breaks there, each with its reason.
    """

    recipe: str
    use: str
    series: str
    version: str
    problems: tuple[Problem, ...] = ()
    rules: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Return recipe, use and series."""
        return f"{self.recipe}{f' ({self.use})' if self.use else ''} on {self.series}"

    @property
    def refused(self) -> tuple[str, ...]:
        """Return every reason why it cannot be served so."""
        return (*(str(one) for one in self.problems if one.refuses), *self.rules)


def check_recipes(
    checkout: Checkout,
    store: Store,
    repository: Repository,
    recipes: Sequence[Recipe],
    series: str = "",
    *,
    offline: bool = False,
) -> tuple[CheckedRecipe, ...]:
    """Return the outcome of each of *recipes*, by each of its uses, in *series*, or in each that it is for.

    Raises:
        UnknownNameError: there is no such series.
        SparkwrightError: a release could not be asked; see `ask_release`.
    """
    known = series_names(checkout.root)
    for name in [series] if series else [one for recipe in recipes for one in recipe.series]:
        if name not in known:
            raise unknown_name("series", name, known)
    found: list[CheckedRecipe] = []
    for name in [series] if series else known:
        cases = [
            (recipe, use, apply_use(recipe, use) if use else recipe)
            for recipe in recipes
            if series or not recipe.series or name in recipe.series
            for use in ("", *recipe.uses)
        ]
        if cases:
            options = BuildOptions(series=name, offline=offline)
            job = make_job(open_checkout(checkout.root, name), store, repository, options)
            answer = ask_release(job, [question_of(served, (), _of_second(served)) for *_, served in cases])
            carries = frozenset(carry.name for carry in job.spec.carries)
            for (recipe, use, served), wrong in zip(cases, answer.problems, strict=True):
                broken = incompatibilities(served, answer.version, carries=carries)
                rules = tuple(f"{rule.name}: {rule.reason}" for rule in broken)
                found.append(CheckedRecipe(recipe.name, use, name, answer.version, wrong, rules))
    return tuple(found)


def _of_second(recipe: Recipe) -> tuple[str, ...]:
    """Return what the second of two machines is given besides: its command has more options."""
    return node_arguments(1, "localhost") if recipe.nodes > 1 else ()
