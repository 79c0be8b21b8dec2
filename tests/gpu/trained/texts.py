"""Prompts out of Python's own installation: pieces of source and prose to continue, explain or repeat.

What the engines are asked comes from modules that no training prompt is cut from.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))
from kv_quality.texts import MODULES, QUESTIONS, prose, sources
from kv_quality.training import SUBJECTS, TASKS

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LONGEST", "SHORTEST", "asked", "lessons", "rendered"]

LONGEST, SHORTEST = 1400, 48
"""Tokens of a training prompt."""
ASKED_LONGEST, ASKED_SHORTEST = 1750, 300
"""Tokens of a prompt of the engines."""
WISHES = (
    "Explain this code.",
    "Repeat this code with comments.",
    "Write tests for this code.",
    "Summarize the following text.",
    "What is this about?",
)
CHARACTERS = 3
"""About how many a token has, at the least."""


def held_out() -> set[str]:
    """Return the top-level names of the modules that the engines are asked about."""
    return {name.split(".", 1)[0] for name in MODULES}


def taught() -> str:
    """Return the text that training prompts are cut from: Python's sources without what is held out.

    The second half of the language reference belongs to it, the first half to `asked`.
    """
    folder, found = Path(os.__file__).parent, []
    for file in sorted(folder.rglob("*.py")):
        top = file.relative_to(folder).parts[0].removesuffix(".py")
        if top in held_out() or top in {"site-packages", "dist-packages", "test", "idlelib", "pydoc_data"}:
            continue
        found.append(file.read_text(encoding="utf-8", errors="replace"))
    return "\n\n".join(found) + reference()[1]


def reference() -> tuple[str, str]:
    """Return the two halves of the language reference; nothing where an installation has none."""
    try:
        text = prose()
    except ImportError:
        return "", ""
    return text[: len(text) // 2], text[len(text) // 2 :]


def rendered(tokenizer: Any, wish: str, piece: str) -> list[int]:
    """Return the tokens of a prompt: the *piece* alone, or, with a *wish*, a conversation's first turn."""
    if not wish:
        return list(tokenizer(piece, add_special_tokens=False)["input_ids"])
    message = {"role": "user", "content": f"{wish}\n\n{piece}".strip()}
    text = tokenizer.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def cut(tokenizer: Any, text: str, begin: int, tokens: int) -> str:
    """Return the piece of *text* at *begin* that has about so many *tokens*."""
    some = tokenizer(text[begin : begin + 6 * tokens], add_special_tokens=False)["input_ids"][:tokens]
    return str(tokenizer.decode(some))


def length(draw: random.Random, shortest: int, longest: int) -> int:
    """Return a length, each octave as likely as another."""
    return int(shortest * (longest / shortest) ** draw.random())


def lessons(tokenizer: Any, seed: int) -> Iterator[list[int]]:
    """Yield training prompts without an end: half of them conversations, half texts to be continued."""
    draw, text = random.Random(seed), taught()
    while True:
        if draw.random() < 0.15:
            yield rendered(tokenizer, draw.choice(TASKS).format(draw.choice(SUBJECTS)), "")
            continue
        begin = draw.randrange(max(1, len(text) - 6 * LONGEST))
        piece = cut(tokenizer, text, begin, length(draw, SHORTEST, LONGEST))
        yield rendered(tokenizer, draw.choice(WISHES) if draw.random() < 0.5 else "", piece)


def asked(tokenizer: Any, count: int) -> list[list[int]]:
    """Return *count* prompts for the engines, of held-out text, longer ones beside shorter ones."""
    draw, found = random.Random("asked"), []
    texts = [one for one in (sources(), reference()[0]) if one]
    for number in range(count):
        text = texts[number % len(texts)]
        size = int(ASKED_SHORTEST * (ASKED_LONGEST / ASKED_SHORTEST) ** ((7 * number % count + 0.5) / count))
        piece = cut(tokenizer, text, draw.randrange(len(text) - 6 * size), size)
        wish = (
            f"{QUESTIONS[number % len(QUESTIONS)]} Then: {WISHES[number % len(WISHES)]}"
            if number % 8 == 7
            else WISHES[number % len(WISHES)]
        )
        found.append(rendered(tokenizer, wish if number % 2 else "", piece))
    return found
