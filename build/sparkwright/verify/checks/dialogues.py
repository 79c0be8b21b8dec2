"""Conversations, tools and schemas of `traffic`: small tasks that models of any size understand."""

from __future__ import annotations

from typing import Any

import msgspec

from sparkwright.engine.cell import Message, Prompt, Tool

_TALKS = {
    "travel": (
        "I plan a trip to Zürich in winter. Name two things to pack.",
        "Repeat this sentence exactly: “Zoë ordered a crème brûlée in Zürich 🙂.”",
        "Now say in one sentence why somebody would travel there.",
    ),
    "cooking": (
        "How do I keep rice from sticking to the pot? Answer briefly.",
        "Repeat this sentence exactly: “我喜欢米饭和茶。”",
        "And how long does rice take to cook?",
    ),
    "garden": (
        "Which vegetables grow in the shade? Name three.",
        "Repeat this sentence exactly: “Ёжик и мёд — żółta łódź.”",
        "Which of them should I plant first? One sentence.",
    ),
    "music": (
        "What is the difference between a violin and a viola? Answer briefly.",
        "Repeat this sentence exactly: “東京で🎻を聞きました。”",
        "Which of the two is larger?",
    ),
}
"""Messages of the user, by subject; the second ones hold characters of two to four bytes."""

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


def _asked(kind: str, *texts: str) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(name=f"{kind}/{number}", category="extraction", text=text) for number, text in enumerate(texts)
    )


SINGLE = _asked(
    "single",
    "Use get_weather: what will the weather be in “Oslo” for 3 days, in celsius?",
    "Use get_weather: what will the weather be in “São Paulo” for 5 days, in celsius?",
    "Use get_weather: what will the weather be in “New York” for 2 days, in fahrenheit?",
    "Use get_weather: what will the weather be in “Kraków” for 7 days, in celsius?",
)
PARALLEL = _asked(
    "parallel",
    "Call get_weather once for each of these cities: Oslo, Lima, Kyoto. Take 3 days and celsius.",
    "Call get_weather once for each of these cities: Málaga and Zürich. Take 5 days and celsius.",
    "Call get_weather once for each of these cities: Boston, Denver, Austin. Take 2 days and fahrenheit.",
)
SCHEMA = _object(
    name=_TEXT,
    age={"type": "integer", "minimum": 0, "maximum": 120},
    colour={"type": "string", "enum": ["red", "green", "blue"]},
    tags={"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 3},
)
STRUCTURED_PROMPTS = _asked(
    "structured",
    "“Zoë” is 31 years old and likes green. Return her name, age and colour, and one tag, as JSON.",
    "“Paul” is 54 years old and likes blue. Return his name, age and colour, and one tag, as JSON.",
    "“Łukasz” is 8 years old and likes red. Return his name, age and colour, and one tag, as JSON.",
)
