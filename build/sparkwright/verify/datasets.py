"""Prompts of the user's choice: a file in OpenAI's or in ShareGPT's form, or documents of one length.

Files are JSON lines with ``messages`` or ``prompt``, or one JSON list of such entries; ShareGPT's entries
have ``conversations``. A conversation is sent up to its last message of the user.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from sparkwright.base.digests import digest_of, sha256_file
from sparkwright.base.errors import ConfigError
from sparkwright.engine.cell import Message, Prompt
from sparkwright.verify.corpus import WORDS_PER_TOKEN, Corpus

CATEGORY = "own"
CHATS = "own chats"
"""Category of prompts that are conversations, and are sent to the chat endpoint."""
DOCUMENTS = "documents"
"""Category of a sweep over documents of one length."""
_ROLES: Mapping[str, Literal["system", "user", "assistant"]] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}
_FORMS = (
    """{"messages": [{"role": "user", "content": "…"}]} or {"prompt": "…"} in each line, or ShareGPT JSON"""
)


@dataclass(frozen=True)
class Dataset:
    """The prompts and arrivals of a sweep, where the user chose them.

    Attributes:
        prompts: of a file; none for the corpus's own.
        input_tokens: length of documents that are sent instead; 0 for none.
        rates: requests a second of open loops.
    """

    prompts: tuple[Prompt, ...] = ()
    input_tokens: int = 0
    rates: tuple[float, ...] = ()

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories that take the place of the profile's; none if it has no prompts of its own."""
        if self.prompts:
            return (CATEGORY,)
        return (DOCUMENTS,) if self.input_tokens else ()

    def take(
        self, corpus: Corpus, count: int, seed: int, salt: str, words_per_token: float = -1
    ) -> tuple[Prompt, ...]:
        """Return *count* prompts, each beginning with a nonce of its own.

        Args:
            corpus: source of documents.
            count: number of prompts; those of a file are repeated in turn.
            seed: of nonces and documents.
            salt: separates callers, for example ``sweep own c=8``.
            words_per_token: of the server's tokenizer; an estimate is taken if it is not positive.
        """
        if self.prompts:
            chosen = (self.prompts[number % len(self.prompts)] for number in range(count))
            return tuple(
                _with_nonce(prompt, digest_of([prompt.name, seed, salt, number])[:12])
                for number, prompt in enumerate(chosen)
            )
        known = words_per_token > 0 and math.isfinite(words_per_token)
        words = words_per_token if known else WORDS_PER_TOKEN
        return tuple(
            corpus.document(self.input_tokens, 10_000 * seed + n, salt=salt, words_per_token=words)
            for n in range(count)
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

    Conversations of ShareGPT without any message of a user are left out.

    Raises:
        ConfigError: the file cannot be read, an entry has another form, or there is no entry.
    """
    try:
        data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise ConfigError(f"{path} could not be read", because=error.strerror or str(error)) from error
    prompts = tuple(prompt for prompt in _prompts(path, data) if prompt is not None)
    if not prompts:
        raise _refused(path, "it holds no prompt")
    return prompts


def _prompts(path: Path, data: bytes) -> Iterator[Prompt | None]:
    """Yield the prompt of each entry."""
    if data.lstrip()[:1] == b"[":
        for number, entry in enumerate(_decoded(path, "it", data), 1):
            yield _prompt(path, f"entry {number}", entry)
        return
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            yield _prompt(path, f"line {number}", _decoded(path, f"line {number}", line))


def _decoded(path: Path, place: str, data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _refused(path, f"{place} is not JSON: {error}") from None


def _prompt(path: Path, place: str, entry: Any) -> Prompt | None:
    """Return the prompt of one entry; `None` for a conversation of ShareGPT without a user."""
    if isinstance(entry, dict) and isinstance(entry.get("prompt"), str) and entry["prompt"]:
        return Prompt(name=f"{CATEGORY}/{place}", category=CATEGORY, text=entry["prompt"])
    shared = isinstance(entry, dict) and isinstance(entry.get("conversations"), list)
    turns = entry.get("messages", entry.get("conversations")) if isinstance(entry, dict) else None
    messages = [_message(path, place, turn) for turn in turns] if isinstance(turns, list) else []
    while messages and messages[-1].role != "user":
        messages.pop()
    if not messages and shared:
        return None
    if not messages:
        raise _refused(path, f"{place} has no prompt, and no message of a user")
    *history, last = messages
    return Prompt(name=f"{CATEGORY}/{place}", category=CHATS, text=last.content, history=tuple(history))


def _message(path: Path, place: str, turn: Any) -> Message:
    """Return a message in OpenAI's or in ShareGPT's form."""
    role = turn.get("role", turn.get("from")) if isinstance(turn, dict) else None
    content = turn.get("content", turn.get("value")) if isinstance(turn, dict) else None
    if isinstance(content, list) and all(_is_text(part) for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(role, str) or role not in _ROLES:
        raise _refused(path, f"{place} has a message of {role!r}; there are {', '.join(_ROLES)}")
    if not isinstance(content, str):
        raise _refused(path, f"{place} has a message whose content is no text")
    return Message(_ROLES[role], content)


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _refused(path: Path, because: str) -> ConfigError:
    return ConfigError(f"{path} cannot be used as prompts", because=because, next_step=f"give {_FORMS}")
