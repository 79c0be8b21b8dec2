"""Prompts from a file of the user's: OpenAI messages or plain prompts as JSON lines, or ShareGPT's JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from sparkwright.base.errors import ConfigError
from sparkwright.verify.cell import Message, Prompt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

CATEGORY = "own"
CHATS = "own chats"
"""Category of prompts that are conversations, and are sent to the chat endpoint."""
_ROLES: Mapping[str, Literal["system", "user", "assistant"]] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}
_FORMS = (
    """{"messages": [{"role": "user", "content": "…"}]} or {"prompt": "…"} in each line, or ShareGPT JSON"""
)


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Return the prompts in *path*: each conversation up to its last message of the user.

    Raises:
        ConfigError: the file cannot be read, an entry has another form, or there is no entry.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} could not be read", because=error.strerror or str(error)) from error
    entries = list(_entries(path, data))
    prompts = tuple(_prompt(path, place, entry) for place, entry in entries)
    if not prompts:
        raise _refused(path, "it holds no prompt")
    return prompts


def _entries(path: Path, data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield each entry with its place in the file."""
    if data.lstrip()[:1] == b"[":
        yield from ((f"entry {number}", one) for number, one in enumerate(_decoded(path, data, "it"), 1))
        return
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            yield f"line {number}", _decoded(path, line, f"line {number}")


def _decoded(path: Path, data: bytes, place: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _refused(path, f"{place} is not JSON: {error}") from error


def _prompt(path: Path, place: str, entry: Any) -> Prompt:
    """Return the prompt of one entry."""
    if isinstance(entry, dict) and isinstance(entry.get("prompt"), str) and entry["prompt"]:
        return Prompt(name=f"{CATEGORY}/{place}", category=CATEGORY, text=entry["prompt"])
    turns = entry.get("messages", entry.get("conversations")) if isinstance(entry, dict) else None
    messages = [_message(path, place, turn) for turn in turns] if isinstance(turns, list) else []
    while messages and messages[-1].role != "user":
        messages.pop()
    if not messages:
        raise _refused(path, f"{place} has no prompt, and no message of a user")
    *history, last = messages
    return Prompt(name=f"{CATEGORY}/{place}", category=CHATS, text=last.content, history=tuple(history))


def _message(path: Path, place: str, turn: Any) -> Message:
    """Return a message in OpenAI's or in ShareGPT's form."""
    role = turn.get("role", turn.get("from")) if isinstance(turn, dict) else None
    content = turn.get("content", turn.get("value")) if isinstance(turn, dict) else None
    if not isinstance(role, str) or role not in _ROLES:
        raise _refused(path, f"{place} has a message of {role!r}; there are {', '.join(_ROLES)}")
    if not isinstance(content, str):
        raise _refused(path, f"{place} has a message whose content is no text")
    return Message(_ROLES[role], content)


def _refused(path: Path, because: str) -> ConfigError:
    return ConfigError(f"{path} cannot be used as prompts", because=because, next_step=f"give {_FORMS}")
