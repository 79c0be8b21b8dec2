"""Many requests, in the shape of a cell's load, and the lateness of the event loop that sends them.

Requests are prepared before the first one is sent, except in loops of a given duration: there each is
prepared when it is sent, with its number as salt. Times of a `Load` are in the server's clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from time import perf_counter, perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sparkwright.engine.cell import REFUSED, Cell, Deadlines, Load
from sparkwright.engine.client.endpoint import Endpoint
from sparkwright.engine.client.request import Exchange
from sparkwright.engine.observations import FailureKind, Sample

if TYPE_CHECKING:
    import aiohttp


_LEAST_FAILURES = 8
_LEAST_SILENT = 2
_SILENT = {FailureKind.FIRST_TOKEN, FailureKind.STALL, FailureKind.OVERDUE}  # each takes a whole deadline
_PAUSE_S = 1.0
_TAIL = 0.25  # of an open loop's requests, sent after them so that the last ones do not run alone
_HEAD_S = 0.05  # of the client's clock, until the first arrival: all requests are tasks by then


async def run_load(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    cell: Cell,
    deadlines: Deadlines,
    *,
    speed: float,
) -> list[Sample]:
    """Send the warm-up of *cell* and then its load; returns all samples, in the order of their starts.

    When requests fail one after another, twice as many as run at a time and eight at the least, no more are
    sent: the server is gone, and the samples record the failures. Of requests that timed out, as many as run
    at a time are enough, and two at the least.
    """
    refusable = REFUSED in cell.tags
    make = partial(Exchange, endpoint, load=cell.load, deadlines=deadlines, speed=speed, refusable=refusable)
    return await _LoadRun(session, cell, make, speed).run()


def output_lengths(load: Load) -> list[int]:
    """Return the output tokens of each request: all alike, or for ``drain`` from the longest down."""
    if load.shape != "drain" or load.requests == 1:
        return [load.max_tokens] * load.requests
    span, last = load.max_tokens - load.min_tokens, load.requests - 1
    return [load.max_tokens - (span * i + last // 2) // last for i in range(load.requests)]


def arrivals(rate: float, seed: int) -> Iterator[float]:
    """Yield the moments of a Poisson process, in seconds; the same for the same *rate* and *seed*."""
    gaps = random.Random(f"arrivals {seed}")  # noqa: S311 - a schedule, not a secret
    at = 0.0
    while True:
        at += gaps.expovariate(rate)
        yield at


class _LoadRun:
    """The execution of one load."""

    def __init__(
        self, session: aiohttp.ClientSession, cell: Cell, make: Callable[..., Exchange], speed: float
    ) -> None:
        self._session, self._make, self._speed = session, make, speed
        self._cell, self._load = cell, cell.load
        self._samples: list[Sample] = []
        self._failures = self._silent = 0  # in a row

    async def run(self) -> list[Sample]:
        load = self._load
        if load.shape != "open":
            await self._closed(self._warm_up(), stagger_s=0)
        match load.shape:
            case "closed":
                await self._closed(self._timed() if load.seconds else self._listed(), load.stagger_s)
            case "burst" | "drain":
                await _together(self._send(exchange) for exchange in self._listed())
            case "open":
                await self._open()
        return sorted(self._samples, key=lambda sample: sample.started)

    # Requests -----------------------------------------------------------------------------------------------

    def _exchange(self, number: int, max_tokens: int, salt: str, *, counted: bool = True) -> Exchange:
        prompt = self._cell.prompts[number % len(self._cell.prompts)]
        return self._make(prompt, max_tokens=max_tokens, counted=counted, salt=salt)

    def _warm_up(self) -> list[Exchange]:
        """Return the warm-ups, salted so that they do not put measured prompts into the prefix cache."""
        tokens, key = self._load.max_tokens, self._cell.key
        return [
            self._exchange(number, tokens, f"warm-up {key} {number}", counted=False)
            for number in range(self._load.warm_up)
        ]

    def _listed(self) -> list[Exchange]:
        """Return a request for each prompt; a repeated one gets a salt, or the prefix cache would hold it."""
        once = len(self._cell.prompts)
        return [
            self._exchange(number, length, "" if number < once else str(number))
            for number, length in enumerate(output_lengths(self._load))
        ]

    def _timed(self) -> Iterator[Exchange]:
        end = perf_counter() + self._load.seconds / self._speed
        for number in itertools.count():
            if perf_counter() >= end:
                return
            yield self._exchange(number, self._load.max_tokens, str(number))

    def _arriving(self) -> list[Exchange]:
        """Return an open loop's requests: warm-up, those that count, and a tail that keeps the rate up.

        Every one has a salt of its own: prompts are few, and a step must not find those of another cached.
        """
        load, key = self._load, self._cell.key
        first, last = load.warm_up, load.warm_up + load.requests
        return [
            self._exchange(number, load.max_tokens, f"{key} {number}", counted=first <= number < last)
            for number in range(last + math.ceil(_TAIL * load.requests))
        ]

    # Shapes -------------------------------------------------------------------------------------------------

    @property
    def _gone(self) -> bool:
        at_a_time = self._load.concurrency
        return self._failures >= max(_LEAST_FAILURES, 2 * at_a_time) or self._silent >= max(
            _LEAST_SILENT, at_a_time
        )

    async def _send(self, exchange: Exchange) -> None:
        sample = await exchange.run(self._session)
        self._failures = 0 if sample.failure is None else self._failures + 1
        late = sample.failure is not None and sample.failure.kind in _SILENT
        self._silent = self._silent + 1 if late else 0
        self._samples.append(sample)

    async def _closed(self, exchanges: Iterable[Exchange], stagger_s: float) -> None:
        """Run a closed loop: each client sends one request after another, all from the same *exchanges*."""
        turns = iter(exchanges)
        clients = self._load.concurrency

        async def client(number: int) -> None:
            await asyncio.sleep(stagger_s / self._speed * number / clients)
            for exchange in turns:
                await self._send(exchange)
                if self._gone:
                    return
                if self._failures and self._load.seconds:
                    await asyncio.sleep(_PAUSE_S / self._speed)  # not to hammer a server that refuses

        await _together(client(number) for number in range(clients))

    async def _open(self) -> None:
        """Send each request when it is due, whatever the others do; the tail ends with the counted ones."""
        load, left, over = self._load, self._load.requests, asyncio.Event()
        exchanges = self._arriving()
        begin = perf_counter_ns() + round(_HEAD_S * 1e9)
        for exchange, at in zip(exchanges, arrivals(load.rate, load.seed), strict=False):
            exchange.due = begin + round(at / self._speed * 1e9)

        async def arrive(exchange: Exchange) -> None:
            nonlocal left
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout((exchange.due - perf_counter_ns()) / 1e9):
                    await over.wait()
            if not (over.is_set() or self._gone):
                await self._send(exchange)
            left -= exchange.counted
            if not left or self._gone:
                over.set()

        await _together(arrive(exchange) for exchange in exchanges)


async def _together(coroutines: Iterable[Coroutine[None, None, None]]) -> None:
    """Run all coroutines concurrently; an error of one cancels the others."""
    async with asyncio.TaskGroup() as group:
        for coroutine in coroutines:
            group.create_task(coroutine)


_EVERY_S = 0.05


class LagProbe:
    """A timer every 50 ms whose lateness is recorded; an async context manager."""

    def __init__(self) -> None:
        self._late_ms: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def worst_ms(self) -> float:
        """Return the greatest lateness of a timer, in milliseconds."""
        return max(self._late_ms, default=0.0)

    @property
    def p99_ms(self) -> float:
        """Return the 99th percentile of lateness, in milliseconds."""
        ordered = sorted(self._late_ms)
        return ordered[int(0.99 * (len(ordered) - 1) + 0.5)] if ordered else 0.0

    async def _watch(self) -> None:
        while True:
            due = perf_counter() + _EVERY_S
            try:
                await asyncio.sleep(_EVERY_S)
            finally:
                # When it is over meanwhile, a timer that is overdue counts too.
                self._late_ms.append(max(0.0, perf_counter() - due) * 1e3)
