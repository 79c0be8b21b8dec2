"""Chunks of another form than OpenAI's, read as what they plainly mean; each oddity is named.

Gateways rewrite what they pass on: ids become null, whole numbers 12.0, text a list of parts. No verdict
needs those fields in their form. What is left of another form afterwards is an error.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from sparkwright.base.events import warn

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

    Args:
        value: an object or a list; others hold nothing.
        within: name of the object that it is a member of.
        odd: what was odd.
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
