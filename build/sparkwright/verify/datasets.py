"""Prompts of the user's choice: a file of JSON lines with ``messages`` or ``prompt``, in OpenAI's form.

A conversation is sent up to its last message of the user.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from sparkwright.base.digests import digest_of, sha256_file
from sparkwright.base.errors import ConfigError
from sparkwright.engine.cell import Message, Prompt

CATEGORY = "own"
CHATS = "own chats"
"""Category of prompts that are conversations, and are sent to the chat endpoint."""
_ROLES = ("system", "user", "assistant")
_FORMS = """{"messages": [{"role": "user", "content": "…"}]} or {"prompt": "…"} in each line"""


def take(prompts: Sequence[Prompt], count: int, seed: int, salt: str) -> tuple[Prompt, ...]:
    """Return *count* of *prompts*, in turn, each beginning with a nonce of its own."""
    chosen = (prompts[number % len(prompts)] for number in range(count))
    return tuple(
        _with_nonce(prompt, digest_of([prompt.name, seed, salt, number])[:12])
        for number, prompt in enumerate(chosen)
    )


def _with_nonce(prompt: Prompt, nonce: str) -> Prompt:
    """Return *prompt* with *nonce* before the first message of the user."""
    name = f"{prompt.name}/{nonce}"
    for place, message in enumerate(prompt.history):
        if message.role == "user":
            marked = Message(message.role, f"[{nonce}]\n{message.content}")
            history = (*prompt.history[:place], marked, *prompt.history[place + 1 :])
            return msgspec.structs.replace(prompt, name=name, history=history)
    return msgspec.structs.replace(prompt, name=name, text=f"[{nonce}]\n{prompt.text}")


def read_same(path: Path, sha256: str) -> tuple[Prompt, ...]:
    """Return the prompts in *path*, whose digest was recorded.

    Raises:
        ConfigError: the file cannot be used, or is not what it was.
    """
    if not path.is_file():
        raise ConfigError(
            f"{path} cannot be used as prompts",
            because="there is no such file",
            next_step="put it back, or begin a new run without --resume",
        )
    if sha256_file(path) != sha256:
        raise ConfigError(
            f"{path} has changed since the run began",
            because="cells with other prompts cannot be compared with those before",
            next_step="begin a new run in another folder",
        )
    return read_prompts(path)


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Return the prompts in *path*: each conversation up to its last message of the user.

    Raises:
        ConfigError: the file cannot be read, an entry has another form, or there is no entry.
    """
    try:
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines()
    except OSError as error:
        raise ConfigError(f"{path} could not be read", because=error.strerror or str(error)) from error
    prompts = tuple(
        _prompt(path, f"line {number}", line) for number, line in enumerate(lines, 1) if line.strip()
    )
    if not prompts:
        raise _refused(path, "it holds no prompt")
    return prompts


def _prompt(path: Path, place: str, line: bytes) -> Prompt:
    try:
        entry = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _refused(path, f"{place} is not JSON: {error}") from None
    entry = entry if isinstance(entry, dict) else {}
    if isinstance(entry.get("prompt"), str) and entry["prompt"]:
        return Prompt(name=f"{CATEGORY}/{place}", category=CATEGORY, text=entry["prompt"])
    turns = entry.get("messages")
    messages = [_message(path, place, turn) for turn in turns] if isinstance(turns, list) else []
    while messages and messages[-1].role != "user":
        messages.pop()
    if not messages:
        raise _refused(path, f"{place} has no prompt, and no message of a user")
    *history, last = messages
    return Prompt(name=f"{CATEGORY}/{place}", category=CHATS, text=last.content, history=tuple(history))


def _message(path: Path, place: str, turn: Any) -> Message:
    turn = turn if isinstance(turn, dict) else {}
    role, content = turn.get("role"), turn.get("content")
    if isinstance(content, list) and all(_is_text(part) for part in content):
        content = "".join(part["text"] for part in content)
    if role not in _ROLES:
        raise _refused(path, f"{place} has a message of {role!r}; there are {', '.join(_ROLES)}")
    if not isinstance(content, str):
        raise _refused(path, f"{place} has a message whose content is no text")
    return Message(role, content)


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _refused(path: Path, because: str) -> ConfigError:
    return ConfigError(f"{path} cannot be used as prompts", because=because, next_step=f"give {_FORMS}")
