"""The recipe file of the configuration that a search recommends, with a reason for each setting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from sparkwright.recipes import Evidence, Recipe
from sparkwright.recipes.write import recipe_text
from sparkwright.verify.tune.result import Row, TuneResult
from sparkwright.verify.tune.space import METHOD, TOKENS
from sparkwright.verify.tune.strategy import OWN, State

_OUT = {State.REFUSED, State.BREAKS, State.WORSE}


@dataclass(frozen=True)
class Occasion:
    """Machine, date and folder of a search, for the evidence of its recipe.

    Attributes:
        where: the machine and its software.
        date: the day, ISO 8601.
        run: name of the search's folder.
        objective: what was maximised, in words.
    """

    where: str
    date: str
    run: str
    objective: str


def winner_text(base: Recipe, result: TuneResult, occasion: Occasion) -> str:
    """Return the recipe file of the recommended configuration; empty if none is recommended.

    Args:
        base: the recipe that was tuned, its use applied.
        result: of the search.
        occasion: of the search.

    Raises:
        ConfigError: the result is no recipe.
    """
    row = result.chosen
    if row is None:
        return ""
    recipe = row.configuration.recipe
    tuned = msgspec.structs.replace(
        recipe,
        name=f"{base.name}-tuned",
        title=f"{base.title}, tuned",
        uses={},
        band="",
        reference=(),
        profile={},
        why={
            **{name: base.why.get(name, f"as in {base.name}") for name in _names(recipe)},
            **{
                name: reason
                for setting in row.configuration.settings
                for name, reason in _reasons(setting, result, recipe)
            },
        },
        evidence=(_evidence(row, occasion), *_older(base, row)),
    )
    told = [f"{one.configuration}: {one.said}." for one in result.speculation]
    return recipe_text(tuned, "\n".join([f"{result.said}.", f"Objective: {occasion.objective}.", *told]))


def _evidence(row: Row, occasion: Occasion) -> Evidence:
    return Evidence(
        grade="tuned here",
        where=occasion.where,
        by="sparkwright verify tune",
        source=f"{occasion.run}: {_figures(row)}",
        date=occasion.date,
    )


def _older(base: Recipe, row: Row) -> Iterator[Evidence]:
    """Yield the evidence of the recipe before, which is of another configuration unless that is kept."""
    for one in base.evidence:
        differs = one.differs if row.index == OWN else f"before tuning: {base.name}"
        told = "; ".join(dict.fromkeys(filter(None, (one.differs, differs))))
        yield msgspec.structs.replace(one, differs=told)


def _figures(row: Row) -> str:
    told = "; ".join(
        f"c={one.level}: {one.rate:.1f} tok/s, TTFT p95 {one.ttft_p95:.2f} s" for one in row.levels
    )
    against = f"; {row.to_own} against the recipe as it was" if row.to_own is not None else ""
    return f"{told}{against}; {len(row.trial.counted)} starts"


def _names(recipe: Recipe) -> Iterator[str]:
    yield from recipe.flags
    yield from recipe.environment
    yield from (f"speculative.{key}" for key in recipe.speculative)


def _reasons(setting: str, result: TuneResult, recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield the name of what a setting decides in *recipe*, and the reason with figures."""
    names = {METHOD: "speculative.method", TOKENS: "speculative.num_speculative_tokens"}
    name = names.get(setting, setting)
    if name in set(_names(recipe)):
        yield name, _reason(setting, result)


def _reason(setting: str, result: TuneResult) -> str:
    """Return the comparison with the best configuration that differs by this setting alone."""
    chosen = result.chosen
    assert chosen is not None  # noqa: S101 - there is a recommended one
    own = chosen.configuration.settings
    alike = [
        row
        for row in result.rows
        if row.configuration.settings.get(setting, own[setting]) != own[setting]
        and {**row.configuration.settings, setting: own[setting]} == dict(own)
    ]
    told = [_compared(row, setting, chosen) for row in alike]
    return "tuned here: " + ("; ".join(told) if told else "chosen together with the other settings")


def _compared(row: Row, setting: str, chosen: Row) -> str:
    value = row.configuration.settings[setting]
    if row.standing.state in _OUT or not row.trial.scores:
        return f"{value}: {row.standing.state}"
    if row.standing.to_best is None or chosen.standing.state is not State.BEST:
        return f"{value}: {row.standing.state}"
    ratio = row.standing.to_best
    return f"with {value} the objective is {ratio}"
