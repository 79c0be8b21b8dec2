"""Settings compared on arithmetic servers: a surface with noise, refusals, late tokens and wrong answers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from verify_kit import Server, boot_facts

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ServerError
from sparkwright.engine.cell import Cell
from sparkwright.engine.client.endpoint import Endpoint
from sparkwright.engine.observations import BootFacts, HostSample, Observation
from sparkwright.recipes.recipe import Recipe
from sparkwright.verify import suite
from sparkwright.verify.check import PROFILES, Profile
from sparkwright.verify.checks.settings import arm_of
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.plan import plan_of
from sparkwright.verify.results import Results, write_results
from sparkwright.verify.runner import write_tuned
from sparkwright.verify.setup import prepare

RECIPE = "qwen3.8-27b-mtp"
TOKENS = "num-speculative-tokens"


class StoppedError(Exception):
    """Stands for a kill between two cells."""


def nothing(settings: Mapping[str, Any]) -> bool:
    """Tell that no configuration is affected."""
    return False


def same(settings: Mapping[str, Any]) -> float:
    """Return the same for all configurations."""
    return 1.0


@dataclass
class Surface:
    """The servers of a comparison.

    Attributes:
        slower: factor on a step's time by settings.
        later: factor on the time to the first token.
        refuses: configurations that do not start.
        wrong: configurations whose answers are wrong.
        short: configurations that leave little memory.
        luck: standard deviation between starts.
        seed: of that.
        stop_after: cells after which it is stopped.
        starts: arms and numbers that were started, in order.
        cells: those that were measured.
    """

    slower: Callable[[Mapping[str, Any]], float] = same
    later: Callable[[Mapping[str, Any]], float] = same
    refuses: Callable[[Mapping[str, Any]], bool] = nothing
    wrong: Callable[[Mapping[str, Any]], bool] = nothing
    short: Callable[[Mapping[str, Any]], bool] = nothing
    luck: float = 0.01
    seed: int = 0
    stop_after: int = 10_000
    starts: list[str] = field(default_factory=list)
    cells: list[tuple[str, int, str]] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def start(self, arm: str, recipe: Recipe, boot: int) -> AsyncIterator[StartedServer]:
        self.starts.append(f"{arm}-{boot}")
        settings = effective(recipe)
        if self.refuses(settings):
            raise ServerError("the server ended while it started", because="CUDA out of memory")
        number = int(digest_of([arm, boot, self.seed])[:8], 16)
        factor = float(np.random.default_rng(number).lognormal(0, self.luck)) if self.luck else 1.0
        server = Server(
            seed=number if self.luck else 0,
            k=int(settings[TOKENS]),
            step_ms=50 * factor * self.slower(settings),
            ttft_ms=120 * self.later(settings),
        )
        yield StartedServer(self, server, settings)


@dataclass
class StartedServer:
    """One start of an arithmetic server, as the suite sees it."""

    surface: Surface
    server: Server
    settings: Mapping[str, Any]
    facts: BootFacts = field(default_factory=boot_facts)
    restartable: bool = True
    died: int | None = None
    pid: int | None = None
    endpoint: Endpoint = field(default_factory=lambda: Endpoint("http://localhost:9", "m"))

    def measure(self, cell: Cell) -> Observation:
        if len(self.surface.cells) >= self.surface.stop_after:
            raise StoppedError
        self.surface.cells.append((cell.arm, cell.boot, cell.name))
        seen = self.server.measure(cell)
        if self.surface.wrong(self.settings):
            samples = tuple(msgspec.structs.replace(one, text="the list of keys") for one in seen.samples)
            seen = msgspec.structs.replace(seen, samples=samples)
        left = 500.0 if self.surface.short(self.settings) else 9000.0
        return msgspec.structs.replace(seen, host=(HostSample(at=1, memory_available_mib=left),))


def effective(recipe: Recipe) -> dict[str, Any]:
    """Return the flags of *recipe*, and its drafted tokens."""
    tokens = recipe.speculative.get("num_speculative_tokens", 0)
    return {**recipe.flags, TOKENS: tokens, "method": recipe.speculative.get("method", "none")}


def options(**changes: Any) -> VerifyOptions:
    """Return options of a small comparison; simulators are replaced by a `Surface`."""
    usual: dict[str, Any] = {
        "profile": "demo",
        "recipe": RECIPE,
        "simulator": True,
        "vary": {TOKENS: (0, 1, 3), "max-num-seqs": (16, 32)},
        "levels": (1, 8),
        "max_tokens": 48,
        "categories": ("code", "prose"),
    }
    return VerifyOptions(**{**usual, **changes})


def compared(
    folder: Path, surface: Surface, monkeypatch: pytest.MonkeyPatch, asked: VerifyOptions, *, judged: bool
) -> Results:
    """Compare settings on *surface* in *folder*, or what is left to measure; answers only where *judged*."""

    async def measure(server: StartedServer, cell: Cell, profile: Profile) -> Observation:
        return server.measure(cell)

    monkeypatch.setattr(suite, "measure", measure)
    plan = plan_of(asked, msgspec.structs.replace(PROFILES["demo"], speed=1.0, comparison_requests=8))
    plan = dataclasses.replace(
        plan, context=dataclasses.replace(plan.context, made_up=plan.context.made_up or not judged)
    )
    found = asked.configurations
    arms = {
        arm_of(found, index): functools.partial(surface.start, arm_of(found, index), one.recipe)
        for index, one in enumerate(found)
    }

    async def run() -> None:
        prepared, manifest = await prepare(plan, folder)
        await suite.run_plan(dataclasses.replace(prepared, arms=arms), manifest, folder)

    asyncio.run(run())
    return write_tuned(write_results(folder), asked)
