"""Duration of a request that computes nothing: the list of models."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp

    from sparkwright.verify.client.endpoint import Endpoint

_REQUESTS = 3
_PATIENCE_S = 30.0


async def time_listing(session: aiohttp.ClientSession, endpoint: Endpoint) -> tuple[float, ...]:
    """Return the durations of three requests for ``/v1/models``, in ms; failed ones are left out.

    Each is from the request to the last byte of the response, on a connection that is open if one was used
    before.
    """
    import aiohttp

    durations = []
    for _ in range(_REQUESTS):
        begin = perf_counter_ns()
        try:
            async with (
                asyncio.timeout(_PATIENCE_S),
                session.get(f"{endpoint.url}/v1/models", allow_redirects=False) as response,
            ):
                await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            continue
        durations.append((perf_counter_ns() - begin) / 1e6)
    return tuple(durations)
