"""One run, from its plan to its results."""

from __future__ import annotations

import asyncio
import platform
from dataclasses import replace
from pathlib import Path

import msgspec

from sparkwright.recipes.evidence import Evidence
from sparkwright.recipes.write import recipe_text
from sparkwright.store import open_store
from sparkwright.verify.checks.settings import BEST, arm_of
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.plan import Plan
from sparkwright.verify.ranking import OWN
from sparkwright.verify.results import Results, write_files, write_results
from sparkwright.verify.setup import Refusal, prepare
from sparkwright.verify.space import TOKENS
from sparkwright.verify.suite import run_plan


def run_verification(
    plan: Plan,
    folder: Path,
    api_key: str = "",
    *,
    offline: bool = False,
    refusal: Refusal | None = None,
) -> Results:
    """Run *plan*, or what is left of it, and write the results to *folder*; arguments as for `prepare`.

    Raises:
        ServerError: no server came up.
        StorageError: the disk is full or cannot be written.
    """

    async def run() -> None:
        await run_plan(*await prepare(plan, folder, api_key, offline=offline, refusal=refusal), folder)

    with open_store().running():  # so that no environment of a server is pruned meanwhile
        asyncio.run(run())
    results = write_results(folder)
    return write_tuned(results, plan.options) if plan.options.vary else results


# The recipe of a comparison of settings -----------------------------------------------------------------


RECIPE = "recipe.toml"


def write_tuned(results: Results, options: VerifyOptions) -> Results:
    """Write the recipe of the recommended configuration beside the other *results*, if there is one.

    Raises:
        ConfigError: the result is no recipe.
        StorageError: the disk is full or cannot be written.
    """
    configurations = options.configurations
    best, *rows = results.run.findings
    arms = {arm_of(configurations, index): one for index, one in enumerate(configurations)}
    chosen = arms.get(str(best.measured.get(BEST)))
    if chosen is None:
        (results.folder / RECIPE).unlink(missing_ok=True)
        return results
    base, recipe = configurations[OWN].recipe, chosen.recipe
    row = next(one for one in rows if one.name == chosen.name)
    told = [f"{name}: {value}" for name, value in row.measured.items() if " c=" in name]
    figures = "; ".join([*told, f"{row.measured['starts']} starts"])
    version = next((one.version for one in results.run.facts.values() if one.version), "")
    machine = "a simulator" if options.simulator else platform.node() or platform.machine()
    evidence = Evidence(
        grade="tuned here",
        where=f"{machine}, vLLM {version}" if version else machine,
        by="sparkwright verify compare --vary",
        source=f"{results.folder.name}: {figures}",
        date=str(results.run.manifest["started"])[:10],
    )
    settings = {"speculative.num_speculative_tokens" if one == TOKENS else one for one in chosen.settings}
    names = [*recipe.flags, *recipe.environment, *(f"speculative.{key}" for key in recipe.speculative)]
    tuned = msgspec.structs.replace(
        recipe,
        name=f"{base.name}-tuned",
        title=f"{base.title}, tuned",
        uses={},
        band="",
        reference=(),
        profile={},
        why={
            name: f"tuned here: {row.cause}" if name in settings else base.why.get(name, f"as in {base.name}")
            for name in names
        },
        evidence=(evidence,),
    )
    text = recipe_text(tuned, f"{best.cause}.")
    files = write_files(results.folder, {RECIPE: text.encode()})
    return replace(results, files=(*results.files, *files))
