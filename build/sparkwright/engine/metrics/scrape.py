"""Fetching counters from a running server, and waiting until it is idle."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

from sparkwright.base.errors import EndpointError, UndecidedError
from sparkwright.engine.cell import Deadlines
from sparkwright.engine.client.endpoint import Endpoint, read_body
from sparkwright.engine.metrics.counters import ensure_same_process
from sparkwright.engine.metrics.snapshot import COUNTERS, parse_snapshot
from sparkwright.engine.observations import MetricsSnapshot

if TYPE_CHECKING:
    import aiohttp


_DEADLINE_S = 10.0
_POLL_S = 0.1  # of the server's seconds
_LEAST_POLL_S = 0.01
_OK = 200


class NotQuietError(UndecidedError):
    """The server is not idle after the deadline, though no client waits for a response.

    Attributes:
        last: the counters as last fetched.
        because: requests that run or wait; without any, the counters that still change.
    """

    def __init__(self, last: MetricsSnapshot, seconds: float, moving: str = "") -> None:
        self.last = last
        busy = f"{last.running:.0f} requests ran and {last.waiting:.0f} waited after {seconds:g} s"
        super().__init__(
            "the server did not become idle",
            because=busy
            if last.running or last.waiting
            else f"nothing ran after {seconds:g} s, and {moving}",
            next_step="make sure that no other client uses it; without one, its engine hangs",
        )


async def fetch_snapshot(session: aiohttp.ClientSession, endpoint: Endpoint) -> MetricsSnapshot:
    """Return the server's counters now.

    It requests plain text: Python's front end would write OpenMetrics with ``_`` for the ``:`` in names.

    Raises:
        EndpointError: there is no response, or it is no Prometheus text.
    """
    import aiohttp

    url = f"{endpoint.url}/metrics"
    timeout = aiohttp.ClientTimeout(total=_DEADLINE_S)
    try:
        async with session.get(url, timeout=timeout, headers={"Accept": "text/plain"}) as response:
            body = (await read_body(response)).decode()
            at = time.perf_counter_ns()
    except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError) as error:
        because = str(error) or type(error).__name__
        raise EndpointError(f"{url} could not be read", because=because) from error
    if response.status != _OK:
        raise EndpointError(f"{url} could not be read", because=f"the server answered {response.status}")
    return parse_snapshot(body, at, url)


async def quiesce(
    session: aiohttp.ClientSession, endpoint: Endpoint, deadlines: Deadlines, speed: float
) -> MetricsSnapshot:
    """Wait until no request runs or waits, and return the counters of that moment.

    vLLM sends a response before it counts it, and its gauges are those of the last step: the server is idle
    once two snapshots in a row are idle and equal.

    Raises:
        NotQuietError: it did not become idle in time.
        CountersResetError: its counters decreased meanwhile.
        EndpointError: it does not respond, or exposes no counters of vLLM's.
    """
    give_up = time.perf_counter() + deadlines.quiesce_s / speed
    earlier = previous = None
    while True:
        current = await fetch_snapshot(session, endpoint)
        if min(current.running, current.waiting) < 0:
            raise EndpointError(
                f"{endpoint.url} does not expose vLLM's metrics",
                because="vllm:num_requests_running and vllm:num_requests_waiting are not there",
                next_step="start vLLM without --disable-log-stats",
            )
        if earlier is not None:
            ensure_same_process(earlier, current)
        idle = current.running == 0 and current.waiting == 0
        if idle and previous is not None and _same(previous, current):
            return current
        if time.perf_counter() > give_up:
            raise NotQuietError(current, deadlines.quiesce_s, _moving(earlier, current))
        earlier, previous = current, current if idle else None
        await asyncio.sleep(max(_POLL_S / speed, _LEAST_POLL_S))


def _moving(earlier: MetricsSnapshot | None, later: MetricsSnapshot) -> str:
    """Return the difference between two snapshots in words."""
    if earlier is None:
        return "one read of its counters took as long"
    fields = [name for name in later.__struct_fields__ if name != "at"]
    moved = [name for name in fields if getattr(earlier, name) != getattr(later, name)]
    names = ", ".join(COUNTERS.get(name, name) for name in moved)
    return f"its counters still change: {names}" if moved else "its counters were the same just once"


def _same(one: MetricsSnapshot, other: MetricsSnapshot) -> bool:
    """Tell if two snapshots are equal but for their time."""
    return msgspec.structs.replace(one, at=0) == msgspec.structs.replace(other, at=0)
