"""Prompts out of Python's own installation: pieces of source and prose to continue, explain or repeat.

What the engines are asked comes from modules that no training prompt is cut from.
"""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

LONGEST, SHORTEST = 1400, 48
"""Tokens of a training prompt."""
ASKED_LONGEST, ASKED_SHORTEST = 1750, 300
"""Tokens of a prompt of the engines."""
MODULES = (
    "argparse", "ast", "asyncio.base_events", "bdb", "calendar", "cmd", "codecs", "collections",
    "configparser", "contextlib", "copy", "csv", "dataclasses", "datetime", "difflib", "dis", "doctest",
    "enum", "filecmp", "fnmatch", "ftplib",
)  # fmt: skip
"""Modules that the engines are asked about."""
WISHES = (
    "Explain this code.",
    "Repeat this code with comments.",
    "Write tests for this code.",
    "Summarize the following text.",
    "What is this about?",
)


def taught() -> str:
    """Return the text that training prompts are cut from: Python's sources without what is held out.

    The second half of the language reference belongs to it, the first half to `asked`.
    """
    folder = Path(os.__file__).parent
    left_out = {name.partition(".")[0] for name in MODULES}
    left_out |= {"site-packages", "dist-packages", "test", "idlelib", "pydoc_data"}
    found = [
        file.read_text(encoding="utf-8", errors="replace")
        for file in sorted(folder.rglob("*.py"))
        if file.relative_to(folder).parts[0].removesuffix(".py") not in left_out
    ]
    return "\n\n".join(found) + reference()[1]


def reference() -> tuple[str, str]:
    """Return the two halves of the language reference; nothing where an installation has none."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return "", ""
    text = "\n\n".join(topics[name] for name in sorted(topics))
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


def lessons(tokenizer: Any, seed: int) -> Iterator[list[int]]:
    """Yield training prompts without an end: half of them conversations, half texts to be continued."""
    draw, text = random.Random(seed), taught()
    while True:
        begin = draw.randrange(max(1, len(text) - 6 * LONGEST))
        tokens = int(SHORTEST * (LONGEST / SHORTEST) ** draw.random())  # each octave as likely as another
        piece = cut(tokenizer, text, begin, tokens)
        yield rendered(tokenizer, draw.choice(WISHES) if draw.random() < 0.5 else "", piece)


def asked(tokenizer: Any, count: int) -> list[list[int]]:
    """Return *count* prompts for the engines, of held-out text, longer ones beside shorter ones."""
    draw, found = random.Random("asked"), []
    sources = "\n\n".join(inspect.getsource(import_module(name)) for name in MODULES)
    texts = [one for one in (sources, reference()[0]) if one]
    for number in range(count):
        text = texts[number % len(texts)]
        size = int(ASKED_SHORTEST * (ASKED_LONGEST / ASKED_SHORTEST) ** ((7 * number % count + 0.5) / count))
        piece = cut(tokenizer, text, draw.randrange(len(text) - 6 * size), size)
        found.append(rendered(tokenizer, WISHES[number % len(WISHES)] if number % 2 else "", piece))
    return found
