"""Requests for the list of models, which compute nothing: their duration, and connections that they leave."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp

    from sparkwright.engine.client.endpoint import Endpoint

_REQUESTS = 3
_PATIENCE_S = 30.0


async def time_listing(session: aiohttp.ClientSession, endpoint: Endpoint) -> tuple[float, ...]:
    """Return the durations of three requests for ``/v1/models``, in ms; failed ones are left out.

    Each is from the request to the last byte of the response, on a connection that is open if one was used
    before.
    """
    durations = []
    for _ in range(_REQUESTS):
        begin = perf_counter_ns()
        if await _listed(session, endpoint):
            durations.append((perf_counter_ns() - begin) / 1e6)
    return tuple(durations)


async def open_connections(session: aiohttp.ClientSession, endpoint: Endpoint, count: int) -> None:
    """Leave *count* open connections in the pool of *session*, as far as the server keeps them.

    Without them the first of several requests is sent on a connection that is open, and the others after
    theirs have been made: a server that is idle computes the first one alone.
    """
    await asyncio.gather(*(_listed(session, endpoint) for _ in range(count)))


async def _listed(session: aiohttp.ClientSession, endpoint: Endpoint) -> bool:
    """Request the list of models; returns whether that succeeded."""
    import aiohttp

    try:
        async with (
            asyncio.timeout(_PATIENCE_S),
            session.get(f"{endpoint.url}/v1/models", allow_redirects=False) as response,
        ):
            await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False
    return True
