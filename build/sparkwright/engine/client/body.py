"""Response bodies that are read whole, up to a limit, since a server may send without end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkwright.base.errors import EndpointError

if TYPE_CHECKING:
    import aiohttp

MOST_BYTES = 16 << 20
"""Of any page that is read whole. The counters of a vLLM with many engines are some hundred kB, the token ids
of a long document a few more."""

_READ = 1 << 16


async def read_body(response: aiohttp.ClientResponse) -> bytes:
    """Return the whole body of *response*.

    Raises:
        EndpointError: it is longer than `MOST_BYTES`; the connection is closed.
    """
    parts: list[bytes] = []
    size = 0
    while part := await response.content.read(_READ):
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            response.close()
            raise EndpointError(
                f"{response.url} is not read to its end",
                because=f"it is longer than {MOST_BYTES >> 20} MiB",
                next_step="check which server listens there: no page of vLLM is that long",
            )
    return b"".join(parts)
