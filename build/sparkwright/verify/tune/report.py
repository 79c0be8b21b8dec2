"""The files of a search, made from its journal alone: page, figures, ranking and the recipe to serve."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import to_json
from sparkwright.recipes import Evidence, Recipe
from sparkwright.recipes.write import recipe_text
from sparkwright.verify.journal import FILE, Manifest
from sparkwright.verify.report import render_csv
from sparkwright.verify.results import REPORT, TABLE, write_files
from sparkwright.verify.run import Run
from sparkwright.verify.tune.page import objective_words, render_tune
from sparkwright.verify.tune.result import Row, TuneResult, conclude_search
from sparkwright.verify.tune.search import Known
from sparkwright.verify.tune.space import METHOD, TOKENS
from sparkwright.verify.tune.strategy import OWN, Ratio, State

RESULT, RECIPE = "tune.json", "recipe.toml"


@dataclass(frozen=True)
class TuneFiles:
    """A search's result and its files.

    Attributes:
        files: each file's path, size in bytes and SHA-256.
    """

    result: TuneResult
    folder: Path
    described: dict[str, Any]
    files: tuple[tuple[Path, int, str], ...]


def write_search(known: Known, folder: Path, manifest: Manifest) -> TuneFiles:
    """Write the page, the figures, the table of cells and the recipe to serve to *folder*.

    Raises:
        StorageError: the disk is full or cannot be written.
    """
    result, options = conclude_search(known), known.search.options
    base = known.search.space.configurations[0].recipe
    observations = tuple(known.measured.values())
    seconds = sum(one.seconds for one in observations)
    told = {"recipe": base.title, **_told(known, manifest)}
    described = describe_result(result)
    rendered = {
        REPORT: render_tune(result, options, told, seconds).encode(),
        RESULT: to_json({**described, "provenance": told}) + b"\n",
    }
    if observations:
        run = Run(manifest={"speed": options.profile.speed}, observations=observations)
        rendered[TABLE] = render_csv(run).encode()
    if text := winner_text(base, result, told, manifest):
        rendered[RECIPE] = text.encode()
    else:
        (folder / RECIPE).unlink(missing_ok=True)
    return TuneFiles(result, folder, described, write_files(folder, rendered, (FILE,)))


def _told(known: Known, manifest: Manifest) -> dict[str, str]:
    """Return the provenance of a search, by name."""
    facts = next(iter(known.facts.values()), None)
    version = facts.version if facts is not None else ""
    machine = "a simulator" if known.search.options.simulator else platform.node() or platform.machine()
    options = {name: _words(value) for name, value in manifest.options.items()}
    return {
        "machine": f"{machine}, vLLM {version}" if version else machine,
        "began": manifest.created,
        "objective": objective_words(known.search.options),
        **{name: value for name, value in manifest.identity.items() if name != "recipe"},
        **{f"option {name}": value for name, value in options.items()},
        **manifest.client,
    }


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} {_words(one)}" for name, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def describe_result(result: TuneResult) -> dict[str, Any]:
    """Return *result* as JSON-ready data."""
    return {
        "outcome": result.outcome.name.lower(),
        "result": result.said,
        "speculation": [
            {
                "configuration": one.configuration,
                "without": one.without,
                "result": one.said,
                "levels": [{"level": level.level, **_ratio(level.ratio)} for level in one.payoffs],
            }
            for one in result.speculation
        ],
        "to-serve": result.chosen.configuration.key if result.chosen is not None else None,
        "not-told-apart": list(result.open),
        "not-told-apart-within": round(result.within, 5),
        "starts": result.starts,
        "ended-at-the-starts-of-the-grid": result.bounded,
        "spread-between-starts": round(result.noise.spread, 5),
        "configurations": [_row(row) for row in result.rows],
    }  # fmt: skip


def _row(row: Row) -> dict[str, Any]:
    return {
        "key": row.configuration.key,
        "name": row.configuration.name,
        "settings": dict(row.configuration.settings),
        "own": row.configuration.own,
        "state": str(row.standing.state),
        "because": row.standing.why,
        "starts": len(row.trial.starts),
        "quality-checked": row.checked,
        "remarks": list(row.remarks),
        "against-the-recipe": _ratio(row.to_own) if row.to_own is not None else None,
        "levels": [
            {
                "level": one.level,
                "tokens-per-s": round(one.rate, 3),
                "ttft-p50-s": round(one.ttft_p50, 4),
                "ttft-p95-s": round(one.ttft_p95, 4),
                "tpot-p50-s": round(one.tpot_p50, 5),
                "on-front": one.on_front,
            }
            for one in row.levels
        ],
        "flags": to_builtins(row.configuration.recipe.flags),
        "speculative": to_builtins(row.configuration.recipe.speculative),
    }


def _ratio(ratio: Ratio) -> dict[str, float]:
    return {"ratio": round(ratio.value, 4), "low": round(ratio.low, 4), "high": round(ratio.high, 4)}


_OUT = {State.REFUSED, State.BREAKS, State.WORSE}


def winner_text(base: Recipe, result: TuneResult, told: Mapping[str, str], manifest: Manifest) -> str:
    """Return the recipe file of the recommended configuration; empty if none is recommended.

    Raises:
        ConfigError: the result is no recipe.
    """
    row = result.chosen
    if row is None:
        return ""
    recipe = row.configuration.recipe
    evidence = Evidence(
        grade="tuned here",
        where=told["machine"],
        by="sparkwright verify tune",
        source=f"{manifest.run}: {_figures(row)}",
        date=manifest.created[:10],
    )
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
        evidence=(evidence, *_older(base, row)),
    )
    speculation = [f"{one.configuration}: {one.said}." for one in result.speculation]
    comment = [f"{result.said}.", f"Objective: {told['objective']}.", *speculation]
    return recipe_text(tuned, "\n".join(comment))


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
