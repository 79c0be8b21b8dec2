"""TCP sockets that record when bytes arrived at them and when bytes were sent, independent of the event loop.

A program reads bytes only after its other work, and on a busy machine after that of other programs: its own
clock then runs milliseconds late. Linux timestamps each packet as it arrives (``SO_TIMESTAMPNS``, see
socket(7)) and returns the timestamp with the bytes.
"""

from __future__ import annotations

import socket
import struct
import time
from asyncio import BaseTransport
from typing import Any, Final
from weakref import WeakValueDictionary

_SO_TIMESTAMPNS: Final = 35  # also SCM_TIMESTAMPNS; Python's socket module names neither
_TIMESPEC: Final = struct.Struct("@ll")
_ANCILLARY_SIZE: Final = socket.CMSG_SPACE(_TIMESPEC.size)


class ArrivalSocket(socket.socket):
    """A socket that records the arrival of the bytes last read, and the start of sending.

    Where one read returns the bytes of several packets, the last of them counts: a time may be late, by less
    than without timestamps, and never early.

    Attributes:
        arrived_ns: arrival of the bytes last read, as of `time.perf_counter_ns`, never before that of an
            earlier read; the time of the read where the kernel has no timestamp. 0 before the first read.
        sent_ns: just before the first send after the last read; on an HTTP connection that is the beginning
            of a request, or of a response. 0 before the first send.
        last_sent_ns: just before the last send.
    """

    arrived_ns = 0
    sent_ns = 0
    last_sent_ns = 0
    _sending = False

    def accept(self) -> tuple[ArrivalSocket, Any]:
        """Same as `socket.accept`; the connection is an `ArrivalSocket` too."""
        connection, address = super().accept()
        return _register(ArrivalSocket(fileno=connection.detach())), address

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Same as `socket.send`; records the start time."""
        self._record_send()
        return super().send(data, flags)

    def sendmsg(self, buffers: Any, *more: Any) -> int:
        """Same as `socket.sendmsg`, which asyncio uses from Python 3.12 on; records the start time."""
        self._record_send()
        return super().sendmsg(buffers, *more)

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Same as `socket.recv`; records the arrival time."""
        data, ancillary, _, _ = self.recvmsg(bufsize, _ANCILLARY_SIZE, flags)
        self._record_arrival(ancillary)
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Same as `socket.recv_into`, which asyncio uses below TLS; records the arrival time."""
        view = memoryview(buffer).cast("B")
        count, ancillary, _, _ = self.recvmsg_into([view[: nbytes or len(view)]], _ANCILLARY_SIZE, flags)
        self._record_arrival(ancillary)
        return count

    def _record_send(self) -> None:
        self.last_sent_ns = time.perf_counter_ns()
        if not self._sending:
            self._sending, self.sent_ns = True, self.last_sent_ns

    def _record_arrival(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        arrived = time.perf_counter_ns()
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                seconds, nanoseconds = _TIMESPEC.unpack_from(data)
                arrived = min(arrived, seconds * 1_000_000_000 + nanoseconds + _clock_offset_ns())
        self.arrived_ns = max(self.arrived_ns, arrived)
        self._sending = False


def _clock_offset_ns() -> int:
    """Return the offset of `time.perf_counter_ns` from the time of day, which the kernel's timestamps have.

    An interruption between the two readings makes the difference too large: the least of three counts.
    """
    return -max(time.time_ns() - time.perf_counter_ns() for _ in range(3))


# By file descriptor, since asyncio's transports expose a `TransportSocket` in place of the socket itself.
_OPEN: Final[WeakValueDictionary[int, ArrivalSocket]] = WeakValueDictionary()


def _register(made: ArrivalSocket) -> ArrivalSocket:
    _OPEN[made.fileno()] = made
    return made


def make_socket(address: tuple[int, int, int, Any, Any]) -> ArrivalSocket:
    """Return a socket for *address*, an entry of `socket.getaddrinfo`; a socket factory for aiohttp."""
    family, kind, protocol, _, _ = address
    made = ArrivalSocket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    return _register(made)


def listen(host: str, port: int, backlog: int) -> ArrivalSocket:
    """Return a socket that listens at the first address of *host*; its connections record arrivals.

    Raises:
        OSError: the address is unknown, or in use.
    """
    address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    made = make_socket(address)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address[4])
        made.listen(backlog)
    except OSError:
        made.close()
        raise
    return made


def arrivals_of(transport: BaseTransport | None) -> ArrivalSocket | None:
    """Return the socket of *transport* if it is an `ArrivalSocket`."""
    exposed = transport.get_extra_info("socket") if transport is not None else None
    if exposed is None:
        return None
    found = _OPEN.get(exposed.fileno())
    # A closed socket that is still referred to may have had the same descriptor.
    return found if found is not None and found.fileno() == exposed.fileno() else None
