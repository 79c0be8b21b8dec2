"""A stream of server-sent events (WHATWG HTML, section 9.2), and chunks in it of another form than OpenAI's.

Gateways rewrite what they pass on: ids become null, whole numbers 12.0, text a list of parts. No verdict
needs those fields in their form, so that they are read as what they plainly mean, and each oddity is named.
What is left of another form afterwards is an error.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from sparkwright.base.events import warn

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


_WORDS = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a float",
    str: "a text",
    list: "a list",
    dict: "an object",
}
_LABELS = ("id", "object")
_WHOLE = frozenset({"prompt_tokens", "completion_tokens", "cached_tokens", "index", "token_ids"})
_EXACT = 1 << 53  # floats from here on stand for several whole numbers
_TEXTS = frozenset({"content", "reasoning", "reasoning_content", "text"})


def straightened(data: bytes) -> tuple[Any, set[str]]:
    """Return the message in *data* in OpenAI's form, as far as its meaning is plain, and what was odd.

    Raises:
        msgspec.DecodeError: it is no JSON.
    """
    message = msgspec.json.decode(data)
    odd: set[str] = set()
    if message is None:
        return {}, {"a message is null"}
    if not isinstance(message, dict):
        return message, odd
    for name in _LABELS:
        if name in message and not isinstance(message[name], str):
            odd.add(_named(name, message.pop(name)))
    if "choices" in message and message["choices"] in (None, {}):
        odd.add(_named("choices", message["choices"]))
        message["choices"] = []
    _straighten(message, "", odd)
    return message, odd


@lru_cache(maxsize=256)
def warn_once(message: str) -> None:
    """Warn the user, once for each *message*: thousands of requests may show the same."""
    warn(message)


def _named(name: str, value: Any) -> str:
    return f"`{name}` is {_WORDS[type(value)]}"


def _straighten(value: Any, within: str, odd: set[str]) -> None:
    """Make whole numbers of floats that are whole, and texts of lists of their parts, at any depth.

    What is added to *odd* names one of the fields that are read here, never others that a server invents.
    """
    members = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, member in list(members):
        name = within if isinstance(value, list) else key
        meant: Any = None
        if name in _WHOLE and isinstance(member, float) and member.is_integer() and abs(member) < _EXACT:
            meant = int(member)
        elif name in _TEXTS and isinstance(member, list) and within != "logprobs":
            meant = _joined(member)
        if meant is None:
            _straighten(member, name, odd)
        else:
            odd.add(_named(name, member))
            value[key] = meant


def _joined(parts: list[Any]) -> str | None:
    """Return the text of a list of parts, `None` if one is no text."""
    texts: list[Any] = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "".join(texts) if all(isinstance(text, str) for text in texts) else None
