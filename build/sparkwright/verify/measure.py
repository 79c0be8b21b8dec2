"""Measuring one cell: counters before and after, the load in between, and everything around it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sparkwright.base.errors import SparkwrightError
from sparkwright.verify.client import LagProbe, canary, open_session, run_load
from sparkwright.verify.metrics import fetch_snapshot, quiesce
from sparkwright.verify.model import Observation
from sparkwright.verify.server import sample_host

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import aiohttp

    from sparkwright.verify.client import Endpoint
    from sparkwright.verify.model import BootFacts, Cell, HostSample, MetricsSnapshot, Sample
    from sparkwright.verify.profile import Profile

# How often counters and the machine are looked at: of the server's clock, and at least so long of ours.
_SERIES_S = 5.0
_LEAST_S = 0.25
# For how long a server that no longer answers is given to be seen to have ended: so often, so long apart.
_LOOKS, _LOOK_S = 40, 0.05

# What counters that cannot be had look like; that the server is in trouble shows elsewhere.
_UNREADABLE = (SparkwrightError, OSError, TimeoutError, ValueError)


class MeasuredServer(Protocol):
    """A server that answers, whoever started it."""

    @property
    def endpoint(self) -> Endpoint:
        """Where it answers."""
        ...

    @property
    def facts(self) -> BootFacts:
        """What it said when it started."""
        ...

    @property
    def log_seen(self) -> bool:
        """Whether its log can be read."""
        ...

    @property
    def restartable(self) -> bool:
        """Whether another start of it is another process."""
        ...

    @property
    def pid(self) -> int | None:
        """Its process, if it runs on this machine."""
        ...

    @property
    def died(self) -> int | None:
        """Its exit status, once it has ended; `None` before, and where that cannot be known."""
        ...

    @property
    def mark(self) -> int:
        """A place in its log, for `errors_since`."""
        ...

    def errors_since(self, mark: int) -> tuple[str, ...]:
        """Lines of its log after *mark* that tell of an error."""
        ...


@dataclass
class _Watch:
    """What is seen of a server while it works."""

    series: list[MetricsSnapshot] = field(default_factory=list)
    host: list[HostSample] = field(default_factory=list)


async def measure(
    server: MeasuredServer, cell: Cell, profile: Profile, *, on_sample: Callable[[Sample], None] | None = None
) -> Observation:
    """Send *cell*'s requests and note all that is seen; never raises for what the server does.

    Args:
        server: what is measured.
        cell: what is sent.
        profile: deadlines, and the server's clock.
        on_sample: told of each request that is over.
    """
    deadlines, speed = profile.deadlines, profile.speed
    mark = server.mark
    wall, own = time.time(), time.monotonic()
    async with open_session(server.endpoint) as session:
        before, unread = await _counters(session, server, profile)
        async with LagProbe() as lag, _watching(session, server, speed) as watch:
            samples = await run_load(
                session, server.endpoint, cell, deadlines, speed=speed, on_sample=on_sample
            )
        after, still_unread = await _counters(session, server, profile)
        why = await canary(session, server.endpoint, deadlines, speed)
        if why:
            await _until_reaped(server)
    return Observation(
        cell=cell,
        samples=tuple(sorted(samples, key=lambda sample: sample.started)),
        before=before,
        after=after,
        series=tuple(watch.series),
        host=tuple(watch.host),
        lag_ms=(lag.worst_ms, lag.p99_ms),
        log=server.errors_since(mark),
        canary=why,
        died=server.died,
        unread=unread or still_unread,
        clock_step_s=(time.time() - wall) - (time.monotonic() - own),
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
    """The server's counters when nothing runs any more; without them, why they cannot be had."""
    try:
        return await quiesce(session, server.endpoint, profile.deadlines, profile.speed), ""
    except _UNREADABLE as error:
        return None, str(error) or type(error).__name__


@contextlib.asynccontextmanager
async def _watching(
    session: aiohttp.ClientSession, server: MeasuredServer, speed: float
) -> AsyncIterator[_Watch]:
    """Look at the counters and the machine now and again, for as long as the block takes."""
    watch = _Watch()

    async def look() -> None:
        while True:
            await asyncio.sleep(max(_SERIES_S / speed, _LEAST_S))
            with contextlib.suppress(*_UNREADABLE):
                watch.series.append(await fetch_snapshot(session, server.endpoint))
            watch.host.append(await sample_host(server.pid))

    looking = asyncio.create_task(look())
    try:
        yield watch
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
