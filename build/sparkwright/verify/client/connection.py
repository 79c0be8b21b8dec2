"""Connections that note when the bytes which they read had come to their sockets.

A task that waits for bytes is woken after all that the loop has to do before it: with 64 streams, every other
stream's bytes. So the moment is the kernel's, see `sparkwright.verify.arrival`; it is taken in the protocol,
since bytes that come later change it. Should a later aiohttp make its protocols in another way, the moments
are those of the tasks again, and a test says so.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from aiohttp import TCPConnector
from aiohttp.client_proto import ResponseHandler

from sparkwright.verify.arrival import arrivals_of, make_socket

if TYPE_CHECKING:
    from asyncio import BaseTransport
    from collections.abc import Callable

    from aiohttp import ClientResponse

    from sparkwright.verify.arrival import ArrivalSocket


class _Protocol(ResponseHandler):
    """One connection's protocol, with the moment in nanoseconds at which what it last read had come."""

    read_at = 0
    socket: ArrivalSocket | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Find the socket that notes."""
        self.socket = arrivals_of(transport)
        super().connection_made(transport)

    @property
    def sent_ns(self) -> int:
        """See `ArrivalSocket`; 0 where nothing is noted."""
        return self.socket.sent_ns if self.socket is not None else 0

    def data_received(self, data: bytes) -> None:
        """Note the moment, then read as ever; without *data* it is called only to go on after a pause."""
        if data:
            self.read_at = self.socket.arrived_ns if self.socket is not None else perf_counter_ns()
        super().data_received(data)


class StampingConnector(TCPConnector):
    """Makes connections that note when what they read had come."""

    def __init__(self, **options: Any) -> None:
        super().__init__(socket_factory=make_socket, **options)
        self._factory = self._make  # type: ignore[assignment]

    def _make(self) -> _Protocol:
        return _Protocol(loop=self._loop)


def read_clock(response: ClientResponse) -> Callable[[], int]:
    """What tells, in nanoseconds, when the bytes last read had come by the connection of *response*.

    To be asked for at once: the connection leaves the response when its last byte is there. Where nothing is
    noted, it tells the present moment.
    """
    protocol = _protocol(response)
    if protocol is None:
        return perf_counter_ns
    return lambda: protocol.read_at


def sent_at(response: ClientResponse) -> int:
    """When the first bytes of the request that *response* answers were given to the kernel, in nanoseconds.

    To be asked for at once, as `read_clock`; 0 where nothing is noted. On a TLS connection that was made for
    this request, it may be a moment of the handshake.
    """
    protocol = _protocol(response)
    return protocol.sent_ns if protocol is not None else 0


def _protocol(response: ClientResponse) -> _Protocol | None:
    protocol = response.connection.protocol if response.connection is not None else None
    return protocol if isinstance(protocol, _Protocol) else None
