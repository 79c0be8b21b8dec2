"""Connections that note when bytes were read from their sockets.

A task that waits for bytes is woken after all that the loop has to do before it: with 64 streams, every other
stream's bytes. aiohttp offers no hook nearer to the socket than its protocol, so that is subclassed. Should a
later aiohttp make its protocols in another way, the moments are those of the tasks again, and a test says so.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from aiohttp import TCPConnector
from aiohttp.client_proto import ResponseHandler

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import ClientResponse

__all__ = ["StampingConnector", "read_clock"]


class _Protocol(ResponseHandler):
    """One connection's protocol, with the moment of its last read in nanoseconds."""

    read_at = 0

    def data_received(self, data: bytes) -> None:
        """Note the moment, then read as ever; without *data* it is called only to go on after a pause."""
        if data:
            self.read_at = perf_counter_ns()
        super().data_received(data)


class StampingConnector(TCPConnector):
    """Makes connections that note when they read."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = self._make  # type: ignore[assignment]

    def _make(self) -> _Protocol:
        return _Protocol(loop=self._loop)


def read_clock(response: ClientResponse) -> Callable[[], int]:
    """What tells the moment of the last read, in nanoseconds, of the connection that *response* comes by.

    To be asked for at once: the connection leaves the response when its last byte is there. Where reads are
    not noted, it tells the present moment.
    """
    protocol = response.connection.protocol if response.connection is not None else None
    if not isinstance(protocol, _Protocol):
        return perf_counter_ns
    return lambda: protocol.read_at
