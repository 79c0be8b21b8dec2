"""Preflight before ``verify`` and its comparisons start servers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from sparkwright.recipes.recipe import Recipe, load_recipe
from sparkwright.serve.preflight.checkpoint import find_folder
from sparkwright.serve.preflight.facts import AskOptions, PreflightRequest
from sparkwright.serve.preflight.finding import Finding, warn_or_refuse
from sparkwright.serve.preflight.run import run_preflight
from sparkwright.store.paths import open_store
from sparkwright.verify.options import VerifyOptions, recipe_and_use

_OF_THE_MACHINE = frozenset({"card", "driver", "port"})


def check_before_verify(options: VerifyOptions, *, offline: bool, force: bool) -> None:
    """Refuse to verify by a recipe whose server would not start; what does not stop it becomes a warning.

    Of a model that is not on this machine, the machine alone is judged; recipes with generated weights are
    left to the server. The port is any free one.

    Args:
        options: of the run.
        offline: the server will use no network.
        force: start in spite of predictions.

    Raises:
        PreflightError: it would not start, or the host not survive it.
    """
    if not options.recipe or options.url or options.simulator:
        return
    named = [(options.recipe, options.use)]
    named += [recipe_and_use(options.against_recipe)] if options.against_recipe else []
    python, wheel = (Path(one) if one else None for one in (options.python, options.wheel))
    for one in named:
        warn_or_refuse(_found(load_recipe(*one), python, wheel, offline=offline), force=force)


def refusal_of(recipe: Recipe, python: Path, *, offline: bool) -> str:
    """Return why *recipe* should not be started with the vLLM of *python* on this machine, or empty."""
    refused = (one for one in _found(recipe, python, None, offline=offline) if one.level == "refuse")
    return "; ".join(f"{one.what}: {one.because}" for one in refused)


def _found(recipe: Recipe, python: Path | None, wheel: Path | None, *, offline: bool) -> Sequence[Finding]:
    """Return what preflight finds: of a model that is not here, the machine alone; none of made-up ones."""
    if recipe.made_up:
        return ()
    environment = {**os.environ, **({"HF_HUB_OFFLINE": "1"} if offline else {})}
    found = run_preflight(
        PreflightRequest(
            recipe=recipe, python=python, wheel=wheel, environment=environment, ask=ask_options()
        )
    )
    here = find_folder(recipe.model, environment) is not None
    return found if here else [one for one in found if one.check in _OF_THE_MACHINE]


def ask_options() -> AskOptions:
    """Return the question to a release for its options, with the store that records its answers."""
    from sparkwright.engine.release import ask_installed

    return partial(ask_installed, open_store())
