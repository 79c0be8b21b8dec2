"""Conversations, questions, tools and schemas of checks of chats; texts are in ``corpus/chats.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import msgspec

from sparkwright.engine.cell import Message, Prompt, Tool
from sparkwright.verify import corpus

_CHATS = tomllib.loads((resources.files(corpus) / "chats.toml").read_text(encoding="utf-8"))
_TALKS: Mapping[str, Sequence[str]] = _CHATS["talks"]
TURNS = min(map(len, _TALKS.values()))


def first_turn(seed: int) -> tuple[Prompt, ...]:
    """Return the first message of each conversation, with a number that differs by *seed*."""
    return tuple(
        Prompt(name=f"1/{subject}", category="dialogue", text=f"(Conversation {seed}.) {texts[0]}")
        for subject, texts in _TALKS.items()
    )


def next_turn(prompt: Prompt, answer: str) -> Prompt:
    """Return the message that follows the *answer* to *prompt*, with all messages before it."""
    turn, _, subject = prompt.name.partition("/")
    said = (Message(role="user", content=prompt.text), Message(role="assistant", content=answer))
    return msgspec.structs.replace(
        prompt,
        name=f"{int(turn) + 1}/{subject}",
        text=_TALKS[subject][int(turn)],
        history=(*prompt.history, *said),
    )


def _object(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these properties, all of them required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_TEXT = {"type": "string", "minLength": 1, "maxLength": 40}  # small models do not end strings
TOOLS_OFFERED = (
    Tool(
        name="get_weather",
        description="Return the weather forecast for a city.",
        parameters=_object(
            city=_TEXT,
            days={"type": "integer", "minimum": 1, "maximum": 14},
            unit={"type": "string", "enum": ["celsius", "fahrenheit"]},
        ),
    ),
    Tool(
        name="set_reminder",
        description="Store a reminder of the user's.",
        parameters=_object(text=_TEXT, hours={"type": "integer", "minimum": 1}),
    ),
)


def questions(kind: str, category: str, begin: str = "", name: str = "") -> tuple[Prompt, ...]:
    """Return the questions of one *kind*, each with this *begin*; *name* or the kind begins their names."""
    return tuple(
        Prompt(name=f"{name or kind}/{number}", category=category, text=f"{begin}{text}")
        for number, text in enumerate(_CHATS[kind])
    )


SINGLE, PARALLEL, STRUCTURED_PROMPTS = (
    questions(kind, "extraction") for kind in ("single", "parallel", "structured")
)
SCHEMA = _object(
    name=_TEXT,
    age={"type": "integer", "minimum": 0, "maximum": 120},
    colour={"type": "string", "enum": ["red", "green", "blue"]},
    tags={"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 3},
)
