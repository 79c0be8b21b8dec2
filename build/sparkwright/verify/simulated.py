"""Simulated servers in the place of real ones: one for each arm of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from sparkwright.engine.observations import BootFacts
from sparkwright.engine.server import start_server
from sparkwright.engine.servers import Arms, MeasuredServer
from sparkwright.recipes import load_recipe
from sparkwright.verify.options import VerifyOptions, recipe_and_use
from sparkwright.verify.profile import Profile
from sparkwright.verify.simulator.faults import parse_faults
from sparkwright.verify.simulator.machine import CARD_PAGE
from sparkwright.verify.simulator.settings import Settings, simulator_arguments


def start_simulator(
    arguments: Iterable[str], faults: Iterable[str], folder: Path, profile: Profile, *, card: str = ""
) -> AbstractAsyncContextManager[MeasuredServer]:
    """Return one start of a simulator with *arguments* and *faults*; its files are written to *folder*."""
    argv = [sys.executable, "-m", "sparkwright.verify.simulator.main", "--host", "{host}", "--port", "{port}"]
    argv += [*arguments, "--speed", str(profile.speed)]
    for fault in faults:
        argv += ["--fault", fault]
    return start_server(
        argv,
        folder=folder,
        speed=profile.speed,
        deadlines=profile.deadlines,
        known=BootFacts(capability="12.1", total_gib=Settings.total_gib, utilization=Settings.utilization),
        card=card,
    )


def simulated(options: VerifyOptions, profile: Profile, folder: Path) -> tuple[Arms, str, dict[str, str]]:
    """Return simulated servers of both arms, their title, and their identity."""
    _ = parse_faults(options.faults)  # an unknown one is refused before anything starts

    by_recipes = _by_recipes(options)

    def start(arm: str, boot: int) -> AbstractAsyncContextManager[MeasuredServer]:
        k = 0 if arm == "baseline" and not options.against else options.speculative_tokens
        arguments = [*(by_recipes.get(arm) or ("--k", str(k))), "--reasoning"]
        arguments += ["--dialect", options.dialect, "--seed", str(options.seed + boot)]
        arguments += ["--runner", options.runner] if options.runner else []
        faults = options.faults if arm == "main" else ()
        place = folder / "servers" / f"{arm}-{boot}"
        return start_simulator(arguments, faults, place, profile, card=CARD_PAGE)

    identity = {
        "simulator": f"{options.dialect} k={options.speculative_tokens} {options.runner}",
        "faults": " ".join(options.faults),
        "seed": str(options.seed),
    }
    if by_recipes:
        identity |= {f"{arm} recipe": " ".join(arguments) for arm, arguments in by_recipes.items()}
    broken = f" with {', '.join(options.faults)}" if options.faults else ""
    arms = {arm: partial(start, arm) for arm in ("main", "baseline")}
    return Arms(arms), f"simulated vLLM {options.dialect}{broken}", identity


def _by_recipes(options: VerifyOptions) -> dict[str, tuple[str, ...]]:
    """Return the simulator's arguments of each arm where two recipes are compared; else none."""
    if not options.against_recipe:
        return {}
    named = (options.recipe, options.use), recipe_and_use(options.against_recipe)
    return {
        arm: simulator_arguments(load_recipe(*one))
        for arm, one in zip(("main", "baseline"), named, strict=True)
    }
