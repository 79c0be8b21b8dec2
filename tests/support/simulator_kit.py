"""A simulated server in the test's own process: its engine alone, or behind real HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from sparkwright.verify.simulator.engine import Engine, Request
from sparkwright.verify.simulator.faults import parse_faults
from sparkwright.verify.simulator.machine import Clock, Driver, Log
from sparkwright.verify.simulator.params import make_request, parse_params
from sparkwright.verify.simulator.server import listening
from sparkwright.verify.simulator.settings import Settings, StepCosts
from sparkwright.verify.simulator.stream import TraceFile

QUICK = StepCosts(base=20, request=1, context=0, prefill=0.01)


def settings(*faults: str, **changes: Any) -> Settings:
    """Return settings of a small, quick server with *faults*."""
    return replace(Settings(costs=QUICK, faults=parse_faults(faults)), **changes)


def body(text: str, max_tokens: int = 64, **fields: Any) -> dict[str, Any]:
    """Return the body of a completion: greedy, up to *max_tokens*."""
    return {"prompt": text, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True} | fields


def prompt(number: int, words: int = 20) -> str:
    """Return a prompt that differs from its first block on."""
    return f"[{number:012x}]\nWrite a Python function" + " that sorts" * words


@dataclass
class Bench:
    """An engine and its simulated time."""

    engine: Engine
    now: float = 0.0
    added: int = 0

    @classmethod
    def of(cls, *faults: str, **changes: Any) -> Bench:
        return cls(Engine(settings(*faults, **changes)))

    def add(self, text: str, max_tokens: int = 64, **fields: Any) -> Request:
        self.added += 1
        params = parse_params(body(text, max_tokens, **fields), self.engine.settings, chat=False)
        request = make_request(params, self.engine.settings, self.added)
        self.engine.add(request)
        return request

    def step(self) -> None:
        self.now += self.engine.step(self.now).seconds

    def drain(self, most: int = 100_000) -> None:
        """Step until nothing is left to do."""
        for _ in range(most):
            if not self.engine.busy:
                return
            self.step()
        raise AssertionError("the engine never comes to an end")

    def serve(self, many: int, max_tokens: int = 64, **fields: Any) -> list[Request]:
        """Run *many* different requests at once, to their end."""
        requests = [self.add(prompt(self.added + 1), max_tokens, **fields) for _ in range(many)]
        self.drain()
        return requests


# Behind HTTP ---------------------------------------------------------------------------------------------


@dataclass
class Served:
    """A server that listens."""

    driver: Driver
    url: str
    session: aiohttp.ClientSession

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url + path) as response:
            return response.status, await response.text()

    async def post(self, path: str, data: Any) -> tuple[int, Any]:
        async with self.session.post(self.url + path, json=data) as response:
            return response.status, await response.json()

    async def raw(self, path: str, data: Any) -> tuple[int, list[bytes]]:
        """Return the pieces of a stream as they were read."""
        async with self.session.post(self.url + path, json=data) as response:
            return response.status, [piece async for piece in response.content.iter_any()]


def parsed(text: str) -> Iterator[Any]:
    for line in text.splitlines():
        if line.startswith("data: "):
            try:
                yield json.loads(line[6:])
            except ValueError:
                yield line[6:]


@asynccontextmanager
async def served(folder: Path, *faults: str, **changes: Any) -> AsyncIterator[Served]:
    """Run a server with *faults* in this process, a hundred times as fast as the clock."""
    chosen = settings(*faults, **({"speed": 100.0, "engine": False} | changes))
    log, truth = folder / "log", folder / "truth.jsonl"
    clock = Clock(chosen.speed)
    writer, trace = Log(log, clock, (1, 2)), TraceFile(truth)
    try:
        async with (
            listening(chosen, clock, writer, trace) as (driver, url),
            aiohttp.ClientSession() as session,
        ):
            yield Served(driver, url, session)
    finally:
        writer.close()
        trace.close()
