"""Searches on arithmetic servers: a response surface with noise, refusals, late tokens and wrong answers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
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
from sparkwright.engine.client import Endpoint
from sparkwright.engine.observations import BootFacts, HostSample, Observation
from sparkwright.verify.profile import Profile
from sparkwright.verify.tune import search as search_module
from sparkwright.verify.tune.options import TuneOptions
from sparkwright.verify.tune.search import Known, run_search
from sparkwright.verify.tune.setup import prepare_search
from sparkwright.verify.tune.space import Configuration

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
    """The servers of a search.

    Attributes:
        slower: factor on a step's time by settings.
        later: factor on the time to the first token.
        refuses: configurations that do not start.
        wrong: configurations whose answers are wrong.
        short: configurations that leave little memory.
        luck: standard deviation between starts.
        seed: of that.
        stop_after: cells after which the search is stopped.
        starts: configurations and numbers that were started, in order.
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
    async def start(self, configuration: Configuration, place: str) -> AsyncIterator[StartedServer]:
        self.starts.append(place)
        settings = effective(configuration)
        if self.refuses(settings):
            raise ServerError("the server ended while it started", because="CUDA out of memory")
        number = int(digest_of([place, self.seed])[:8], 16)
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
    """One start of an arithmetic server, as the search sees it."""

    surface: Surface
    server: Server
    settings: Mapping[str, Any]
    facts: BootFacts = field(default_factory=boot_facts)
    log_seen: bool = True
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


def effective(configuration: Configuration) -> dict[str, Any]:
    """Return the flags of a configuration, and its drafted tokens."""
    recipe = configuration.recipe
    tokens = recipe.speculative.get("num_speculative_tokens", 0)
    return {**recipe.flags, TOKENS: tokens, "method": recipe.speculative.get("method", "none")}


def options(**changes: Any) -> TuneOptions:
    """Return options of a small search; simulators are replaced by a `Surface`."""
    usual: dict[str, Any] = {
        "recipe": RECIPE,
        "simulator": True,
        "vary": {TOKENS: (0, 1, 3), "max-num-seqs": (16, 32)},
        "levels": (1, 8),
        "requests": 8,
        "max_tokens": 48,
        "categories": ("code", "prose"),
        "quality": False,
    }
    return TuneOptions(**{**usual, **changes})


def searched(
    folder: Path,
    surface: Surface,
    monkeypatch: pytest.MonkeyPatch,
    asked: TuneOptions | None = None,
    **more: Any,
) -> Known:
    """Run the search in *folder* on *surface*, or what is left of it."""

    async def measure(server: StartedServer, cell: Cell, profile: Profile) -> Observation:
        return server.measure(cell)

    monkeypatch.setattr(search_module, "measure", measure)
    search, manifest = prepare_search(asked or options(), folder, **more)
    replaced = dataclasses.replace(search, start=surface.start)  # type: ignore[arg-type]
    return asyncio.run(run_search(replaced, folder, manifest))
