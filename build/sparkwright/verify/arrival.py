"""TCP sockets with kernel timestamps of arrival, independent of the delays of the reading program.

A program reads bytes after its other work, and on a busy machine after that of other programs: milliseconds
later than they arrived. Linux records the arrival of each packet (``SO_TIMESTAMPNS``, see socket(7)) and
delivers it with the bytes.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from asyncio import BaseTransport

_TIMESTAMPS: Final = 35  # SO_TIMESTAMPNS and SCM_TIMESTAMPNS, which Python does not name
_TIMESPEC: Final = struct.Struct("@ll")
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_TIMESPEC.size)


class ArrivalSocket(socket.socket):
    """A socket that records the arrival of the bytes read last, and the start of the message sent last.

    For a read of several packets, the last of them counts: a recorded time may be too late, by less than
    without kernel timestamps, and never too early.

    Attributes:
        arrived_ns: arrival, as of `time.perf_counter_ns`, never before that of an earlier read; the time of
            the read if there is no kernel timestamp. 0 before the first.
        sent_ns: time just before the kernel received the first bytes that were sent after the last read; on
            an HTTP connection the start of a request or an answer. 0 before the first.
        last_sent_ns: the same for the bytes sent last.
    """

    arrived_ns = 0
    sent_ns = 0
    last_sent_ns = 0
    _sending = False

    def accept(self) -> tuple[ArrivalSocket, Any]:
        """Accept a connection that records arrivals too."""
        connection, address = super().accept()
        return _known(ArrivalSocket(fileno=connection.detach())), address

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Send *data* and record the start."""
        self._begin()
        return super().send(data, flags)

    def sendmsg(self, buffers: Any, *more: Any) -> int:
        """Send *buffers* and record the start; newer asyncio sends several pieces at once."""
        self._begin()
        return super().sendmsg(buffers, *more)

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Receive bytes and record their arrival."""
        data, notes, _, _ = self.recvmsg(bufsize, _ANCILLARY_BYTES, flags)
        self._note(notes)
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive bytes into *buffer* and record their arrival; asyncio reads so below TLS."""
        target = memoryview(buffer).cast("B")
        count, notes, _, _ = self.recvmsg_into([target[: nbytes or len(target)]], _ANCILLARY_BYTES, flags)
        self._note(notes)
        return count

    def _begin(self) -> None:
        self.last_sent_ns = time.perf_counter_ns()
        if not self._sending:
            self._sending, self.sent_ns = True, self.last_sent_ns

    def _note(self, notes: list[tuple[int, int, bytes]]) -> None:
        arrived = time.perf_counter_ns()
        for level, kind, data in notes:
            if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMPS):
                seconds, nanoseconds = _TIMESPEC.unpack_from(data)
                arrived = min(arrived, seconds * 1_000_000_000 + nanoseconds + _since_wall_clock())
        self.arrived_ns = max(self.arrived_ns, arrived)
        self._sending = False


def _since_wall_clock() -> int:
    """Return `time.perf_counter_ns` less the wall clock, which kernel timestamps use.

    An interrupt between the two readings makes the difference too large, so the least of a few is taken.
    """
    return -max(time.time_ns() - time.perf_counter_ns() for _ in range(3))


# asyncio hands out a proxy of its socket, which has the same file number.
_OPEN: Final[WeakValueDictionary[int, ArrivalSocket]] = WeakValueDictionary()


def _known(made: ArrivalSocket) -> ArrivalSocket:
    _OPEN[made.fileno()] = made
    return made


def make_socket(address: tuple[int, int, int, Any, Any]) -> ArrivalSocket:
    """Return a socket for *address*, as of `socket.getaddrinfo`; for clients, before they connect."""
    family, kind, protocol, _, _ = address
    made = ArrivalSocket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, _TIMESTAMPS, 1)
    return _known(made)


def listen(host: str, port: int, backlog: int) -> ArrivalSocket:
    """Return a socket that listens at the first address of *host*; its connections record arrivals.

    Raises:
        OSError: the address is unknown, or taken.
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
    """Return the socket below *transport* if it records arrivals."""
    proxy = transport.get_extra_info("socket") if transport is not None else None
    return _OPEN.get(proxy.fileno()) if proxy is not None else None
