"""The warm-up's rounds, and a server that fails in it: against the simulator's engine behind HTTP."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kit import Recorder

from sparkwright.base.errors import ServerError
from sparkwright.engine.cell import Deadlines
from sparkwright.engine.client.endpoint import Endpoint, open_session
from sparkwright.engine.observations import BootFacts
from sparkwright.recipes.recipe import Recipe
from sparkwright.serve.warmup import Limits, WarmUp, rounds, warm_up
from sparkwright.verify.simulator.faults import parse_faults
from sparkwright.verify.simulator.machine import Clock, Log
from sparkwright.verify.simulator.server import listening
from sparkwright.verify.simulator.settings import Settings
from sparkwright.verify.simulator.stream import TraceFile

SPEED = 60.0
LIMITS = Limits(requests=4, step_tokens=64, model_len=2048)


class TestRounds:
    def test_they_grow_to_every_limit(self) -> None:
        found = rounds(Limits(requests=24, step_tokens=2048, model_len=49152))
        singles = [one.words for one in found if one.requests == 1 and not one.chat and not one.temperature]
        assert singles == sorted(singles)
        assert singles[-1] == 4096, "more than a step: prefilled in chunks"
        batches = [one.requests for one in found if one.requests > 1]
        assert batches == [2, 4, 8, 16, 24]
        assert sum(one.chat for one in found) == 1
        assert sum(one.temperature > 0 for one in found) == 1

    def test_limits_come_from_the_recipe_then_from_the_server(self) -> None:
        recipe = Recipe(format=1, name="r", title="R", model="m", flags={"max-num-seqs": 3})
        limits = Limits.of(recipe, BootFacts(max_num_seqs=9, max_model_len=1000))
        assert limits == Limits(requests=3, step_tokens=2048, model_len=1000)


@contextlib.asynccontextmanager
async def simulated(folder: Path, *faults: str) -> AsyncIterator[Endpoint]:
    """A simulated server in this process, many times faster than a card."""
    settings = Settings(speed=SPEED, engine=False, faults=parse_faults(faults), truth=folder / "truth.jsonl")
    clock, truth = Clock(SPEED), TraceFile(settings.truth)
    log = Log(folder / "log", clock, (os.getpid(), os.getpid()))
    try:
        async with listening(settings, clock, log, truth) as (_, url):
            yield Endpoint(url, settings.model)
    finally:
        truth.close()
        log.close()


def warmed(folder: Path, *faults: str, limit_s: float = 600.0) -> WarmUp:
    async def run() -> WarmUp:
        async with simulated(folder, *faults) as endpoint, open_session(endpoint) as session:
            return await warm_up(session, endpoint, LIMITS, Deadlines(), speed=SPEED, limit_s=limit_s)

    return asyncio.run(run())


class TestSending:
    def test_every_round_is_sent(self, tmp_path: Path, heard: Recorder) -> None:
        done = warmed(tmp_path)
        planned = rounds(LIMITS)
        assert done.rounds == len(planned)
        assert done.requests == sum(one.requests for one in planned)
        told = [event.data for event in heard.events if event.kind == "warmup.round"]
        assert [data["requests"] for data in told] == [one.requests for one in planned]
        assert done.slowest_s >= max(data["first_token_s"] for data in told)

    def test_a_request_that_fails_fails_the_warm_up(self, tmp_path: Path) -> None:
        with pytest.raises(ServerError, match="failed its warm-up"):
            warmed(tmp_path, "crash-at=2")

    def test_no_round_begins_after_the_limit(self, tmp_path: Path, heard: Recorder) -> None:
        done = warmed(tmp_path, limit_s=0.0)
        assert done.rounds < len(rounds(LIMITS))
        assert any(event.kind == "warning" for event in heard.events)
