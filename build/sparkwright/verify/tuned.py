"""The recipe file of the configuration that a comparison of settings recommends."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace

import msgspec

from sparkwright.engine.findings import Finding
from sparkwright.recipes import Evidence, Recipe
from sparkwright.recipes.write import recipe_text
from sparkwright.verify.checks.settings import BEST, arm_of
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.ranking import OWN
from sparkwright.verify.results import Results, write_files
from sparkwright.verify.space import METHOD, TOKENS

RECIPE = "recipe.toml"
_WRITTEN = {METHOD: "speculative.method", TOKENS: "speculative.num_speculative_tokens"}


def write_tuned(results: Results, options: VerifyOptions) -> Results:
    """Write the recipe of the recommended configuration beside the other *results*, if there is one.

    Raises:
        StorageError: the disk is full or cannot be written.
    """
    text = tuned_text(results, options)
    if not text:
        (results.folder / RECIPE).unlink(missing_ok=True)
        return results
    files = write_files(results.folder, {RECIPE: text.encode()})
    return replace(results, files=(*results.files, *files))


def tuned_text(results: Results, options: VerifyOptions) -> str:
    """Return the recipe file of the recommended configuration; empty if none is recommended.

    Raises:
        ConfigError: the result is no recipe.
    """
    configurations = options.configurations
    best, *rows = results.run.findings
    arms = {arm_of(configurations, index): index for index in range(len(configurations))}
    index = arms.get(str(best.measured.get(BEST)))
    if index is None:
        return ""
    base, chosen = configurations[OWN].recipe, configurations[index]
    row = next(one for one in rows if one.name == chosen.name)
    manifest = results.run.manifest
    version = next((one.version for one in results.run.facts.values() if one.version), "")
    machine = "a simulator" if options.simulator else platform.node() or platform.machine()
    evidence = Evidence(
        grade="tuned here",
        where=f"{machine}, vLLM {version}" if version else machine,
        by="sparkwright verify compare --vary",
        source=f"{results.folder.name}: {_figures(row)}",
        date=str(manifest["started"])[:10],
    )
    recipe = chosen.recipe
    settings = {_WRITTEN.get(name, name) for name in chosen.settings}
    reason = f"tuned here: {row.cause}"
    tuned = msgspec.structs.replace(
        recipe,
        name=f"{base.name}-tuned",
        title=f"{base.title}, tuned",
        uses={},
        band="",
        reference=(),
        profile={},
        why={
            name: reason if name in settings else base.why.get(name, f"as in {base.name}")
            for name in _names(recipe)
        },
        evidence=(evidence, *_older(base, own=index == OWN)),
    )
    return recipe_text(tuned, f"{best.cause}.")


def _older(base: Recipe, *, own: bool) -> Iterator[Evidence]:
    """Yield the evidence of the recipe before, which is of another configuration unless that is kept."""
    for one in base.evidence:
        before = "" if own else f"before tuning: {base.name}"
        yield msgspec.structs.replace(one, differs="; ".join(filter(None, (one.differs, before))))


def _figures(row: Finding) -> str:
    told = [f"{name}: {value}" for name, value in row.measured.items() if " c=" in name]
    return "; ".join([*told, f"{row.measured['starts']} starts"])


def _names(recipe: Recipe) -> Iterator[str]:
    yield from recipe.flags
    yield from recipe.environment
    yield from (f"speculative.{key}" for key in recipe.speculative)
