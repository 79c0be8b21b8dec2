"""Measurement of one cell: counters before and after, the load in between, log, host and canary."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from sparkwright.base.errors import SparkwrightError
from sparkwright.engine.cell import WATCHED, Cell
from sparkwright.engine.client.endpoint import open_session
from sparkwright.engine.client.load import LagProbe, run_load
from sparkwright.engine.client.request import canary
from sparkwright.engine.metrics.scrape import fetch_snapshot, quiesce
from sparkwright.engine.observations import HostSample, MetricsSnapshot, Observation
from sparkwright.engine.server.compiling import CompileWatch
from sparkwright.engine.server.host import is_here, sample_host
from sparkwright.verify.profiles import Profile
from sparkwright.verify.servers import MeasuredServer

if TYPE_CHECKING:
    import aiohttp


# Period at which counters and the machine are sampled, in the server's clock; its minimum in the client's.
_SERIES_S = 5.0
_LEAST_S = 0.25
# Polls, and seconds between them, in which a server that no longer answers may turn out to have ended.
_LOOKS, _LOOK_S = 40, 0.05
_HEALTH_S = 10.0

# Errors of unreadable counters; other observations show what is wrong with the server.
_UNREADABLE = (SparkwrightError, OSError, TimeoutError, ValueError)


async def measure(server: MeasuredServer, cell: Cell, profile: Profile) -> Observation:
    """Send *cell*'s requests and return the observation; a failing server raises no error."""
    deadlines, speed = profile.deadlines, profile.speed
    mark = server.mark
    wall, own = time.time(), time.monotonic()
    async with open_session(server.endpoint) as session:
        before, unread = await _counters(session, server, profile)
        compilers = CompileWatch(server.pid) if server.pid is not None and WATCHED in cell.tags else None
        async with LagProbe() as lag, _watching(session, server, speed) as (series, host):
            with compilers or contextlib.nullcontext():
                samples = await run_load(session, server.endpoint, cell, deadlines, speed=speed)
        after, still_unread = await _counters(session, server, profile)
        why = await canary(session, server.endpoint, deadlines, speed)
        if why:
            await _until_reaped(server)
        health = await _health(session, server) if why and server.died is None else -1
    return Observation(
        cell=cell,
        samples=tuple(sorted(samples, key=lambda sample: sample.started)),
        before=before,
        after=after,
        series=tuple(series),
        host=tuple(host),
        lag_ms=(lag.worst_ms, lag.p99_ms),
        log=server.errors_since(mark),
        canary=why,
        died=server.died,
        unread=unread or still_unread,
        clock_step_s=(time.time() - wall) - (time.monotonic() - own),
        compiled=compilers.compiled if compilers is not None else None,
        health=health,
    )


async def _until_reaped(server: MeasuredServer) -> None:
    """Wait a moment for a server that may have ended: its connections close before its status is known."""
    for _ in range(_LOOKS):
        if server.died is not None:
            return
        await asyncio.sleep(_LOOK_S)


async def _counters(
    session: aiohttp.ClientSession, server: MeasuredServer, profile: Profile
) -> tuple[MetricsSnapshot | None, str]:
    """Return the counters of the idle server, or `None` and the reason."""
    try:
        return await quiesce(session, server.endpoint, profile.deadlines, profile.speed), ""
    except _UNREADABLE as error:
        return None, str(error) or type(error).__name__


async def _card_reading(session: aiohttp.ClientSession, server: MeasuredServer) -> str | None:
    """Return readings of a simulated card, `None` for the card of this machine, empty for one elsewhere."""
    import aiohttp

    endpoint = server.endpoint
    if not endpoint.card:
        return None if server.pid is not None or is_here(endpoint.url) else ""
    try:
        async with session.get(f"{endpoint.url}{endpoint.card}") as response:
            return await response.text() if response.ok else ""
    except (*_UNREADABLE, aiohttp.ClientError):
        return ""


async def _health(session: aiohttp.ClientSession, server: MeasuredServer) -> int:
    """Return the HTTP status of the server's own word on its health; -1 without an answer."""
    import aiohttp

    try:
        async with asyncio.timeout(_HEALTH_S), session.get(f"{server.endpoint.url}/health") as response:
            return response.status
    except (*_UNREADABLE, aiohttp.ClientError):
        return -1


@contextlib.asynccontextmanager
async def _watching(
    session: aiohttp.ClientSession, server: MeasuredServer, speed: float
) -> AsyncIterator[tuple[list[MetricsSnapshot], list[HostSample]]]:
    """Sample the counters and the machine periodically until the block ends."""
    series: list[MetricsSnapshot] = []
    host: list[HostSample] = []

    async def look() -> None:
        while True:
            await asyncio.sleep(max(_SERIES_S / speed, _LEAST_S))
            with contextlib.suppress(*_UNREADABLE):
                series.append(await fetch_snapshot(session, server.endpoint))
            host.append(await sample_host(server.pid, await _card_reading(session, server)))

    looking = asyncio.create_task(look())
    try:
        yield series, host
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
