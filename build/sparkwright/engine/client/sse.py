"""A parser of server-sent events, whatever the sizes of the reads (WHATWG HTML, section 9.2)."""

from __future__ import annotations

from typing import NamedTuple

_MARK = b"\xef\xbb\xbf"
_IGNORED = frozenset({b"id", b"retry"})


class ServerSentEvent(NamedTuple):
    """One event: the value of its ``data`` lines, and its name, which is nearly always empty."""

    data: bytes
    name: bytes = b""


class EventParser:
    """An incremental parser: receives bytes and returns the events that they complete.

    Everything stays bytes, so a character that is split over two reads needs no care. Lines end with LF, CRLF
    or CR; ``id`` and ``retry`` are ignored, and comments too, but those of an event called ``error``, which
    needs no data: some servers tell so why a stream ends.

    Attributes:
        stray: the last line that has no field of an event; empty if there was none.
    """

    def __init__(self) -> None:
        self._rest = b""  # of a line that has not ended
        self._after_cr = False  # a LF that comes now belongs to the line that ended already
        self._begun = False
        self._data: list[bytes] = []
        self._comments: list[bytes] = []
        self._name = b""
        self.stray = b""

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Return the events that *data* completes, in order."""
        if not data:
            return []
        if self._after_cr:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = (self._rest + data).split(b"\n")
        events: list[ServerSentEvent] = []
        for line in lines:
            if line:
                self._take(line)
            else:
                self._begun = True
                self._dispatch(events)
        return events

    def _take(self, line: bytes) -> None:
        if not self._begun:
            self._begun = True
            line = line.removeprefix(_MARK)
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
        elif not field:
            self._comments.append(value)
        elif field not in _IGNORED:
            self.stray = line

    def _dispatch(self, events: list[ServerSentEvent]) -> None:
        told = self._data or (self._comments or [b""] if self._name == b"error" else [])
        if told:
            data = told[0] if len(told) == 1 else b"\n".join(told)
            events.append(ServerSentEvent(data, self._name))
        self._data, self._comments, self._name = [], [], b""
