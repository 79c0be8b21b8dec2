"""TCP sockets that tell when bytes came to them and left them, whatever else their program had to do.

A program learns of bytes after all else that it has to do, and on a busy machine after what others do: that
is milliseconds in which its clock runs and nothing has happened. Linux notes when each packet came
(``SO_TIMESTAMPNS``, see socket(7)) and tells it with the bytes.
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
_ROOM: Final = socket.CMSG_SPACE(_TIMESPEC.size)


class ArrivalSocket(socket.socket):
    """Notes when the bytes that were last read had come, and when a turn to speak began.

    Where one read takes what several packets brought, it is the last of them that counts: a moment may be
    told too late, by less than a reader without these notes would be late, and never too early.

    Attributes:
        arrived_ns: that moment as of `time.perf_counter_ns`, never before the one told for an earlier read;
            that of the read where the kernel notes nothing. 0 before the first.
        sent_ns: just before the kernel was given the first bytes that were sent after the last read; on a
            HTTP connection that is a request's beginning, or an answer's. 0 before the first.
        last_sent_ns: the same of what was sent last.
    """

    arrived_ns = 0
    sent_ns = 0
    last_sent_ns = 0
    _sending = False

    def accept(self) -> tuple[ArrivalSocket, Any]:
        """As ever; connections note arrivals too."""
        connection, address = super().accept()
        return _known(ArrivalSocket(fileno=connection.detach())), address

    def send(self, data: Any, flags: int = 0, /) -> int:
        """As ever, and note when it began."""
        self._begin()
        return super().send(data, flags)

    def sendmsg(self, buffers: Any, *more: Any) -> int:
        """As ever, and note when it began; newer asyncio sends several pieces so."""
        self._begin()
        return super().sendmsg(buffers, *more)

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """As ever, and note when it came."""
        data, notes, _, _ = self.recvmsg(bufsize, _ROOM, flags)
        self._note(notes)
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """As ever, and note when it came; this is how asyncio reads below TLS."""
        room = memoryview(buffer).cast("B")
        count, notes, _, _ = self.recvmsg_into([room[: nbytes or len(room)]], _ROOM, flags)
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
                arrived = min(arrived, seconds * 1_000_000_000 + nanoseconds + _since_the_day_clock())
        self.arrived_ns = max(self.arrived_ns, arrived)
        self._sending = False


def _since_the_day_clock() -> int:
    """What `time.perf_counter_ns` is ahead of the clock of the day, which is the kernel's.

    Whoever is interrupted between the two readings takes the difference for too large: the least of a few.
    """
    return -max(time.time_ns() - time.perf_counter_ns() for _ in range(3))


# asyncio hands out no socket itself, but a stand-in that has its number.
_OPEN: Final[WeakValueDictionary[int, ArrivalSocket]] = WeakValueDictionary()


def _known(made: ArrivalSocket) -> ArrivalSocket:
    _OPEN[made.fileno()] = made
    return made


def make_socket(address: tuple[int, int, int, Any, Any]) -> ArrivalSocket:
    """A socket for *address*, as `socket.getaddrinfo` tells it; for clients, before they connect."""
    family, kind, protocol, _, _ = address
    made = ArrivalSocket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, _TIMESTAMPS, 1)
    return _known(made)


def listen(host: str, port: int, backlog: int) -> ArrivalSocket:
    """A socket that listens at the first address of *host*; its connections note arrivals.

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
    """The socket below *transport* if it notes arrivals."""
    stand_in = transport.get_extra_info("socket") if transport is not None else None
    return _OPEN.get(stand_in.fileno()) if stand_in is not None else None
