"""Flaws of a text independent of its subject: one token, repetition, garbage, emptiness."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

LEAST_TOKENS = 32
"""Shorter texts are not judged: “Yes.” is a good answer."""
ONE_TOKEN = 0.8
LONGEST_PERIOD = 100
LEAST_REPEATS = 4
REPEATED = 0.5
STRANGE = 0.02
MIXED_SCRIPTS = 0.2


@dataclass(frozen=True)
class Flaw:
    """A flaw of an answer.

    Attributes:
        shown: what of the text shows it.
    """

    kind: Literal["empty", "one token", "repetition", "garbage"]
    shown: str


def flaw(text: str, token_ids: Sequence[int] = (), tokens: int = 0) -> Flaw | None:
    """Return the flaw of a generated text, the plainest first; `None` if there is none.

    Args:
        text: what was generated.
        token_ids: the same as ids; without them words and single marks stand for tokens.
        tokens: how many there were.
    """
    if tokens and not text.strip():
        return Flaw("empty", f"{tokens} tokens without any text")
    units: Sequence[Hashable] = token_ids or _units(text)
    if len(units) < LEAST_TOKENS:
        return None
    return _one_token(units, text) or _garbage(text) or _repetition(units, text)


def _units(text: str) -> list[str]:
    """Return words; in a run of one mark without spaces each mark counts, because ``!!!!`` is no word."""
    units: list[str] = []
    for word in text.split():
        units.extend(word if len(set(word)) == 1 else (word,))
    return units


def _one_token(units: Sequence[Hashable], text: str) -> Flaw | None:
    """Return a flaw if one token or one mark repeats; tokenizers join marks, such as ``!!!`` and ``!``."""
    marks = "".join(text.split())
    for name, items in (("tokens", units), ("characters", marks)):
        if len(items) < LEAST_TOKENS:
            continue
        count = Counter(items).most_common(1)[0][1]
        if count >= ONE_TOKEN * len(items):
            return Flaw("one token", f"{count} of {len(items)} {name} are the same: “{excerpt(text)}”")
    return None


def _garbage(text: str) -> Flaw | None:
    """Return a flaw for characters that no text has, or alphabets that change from word to word."""
    strange = sum(
        char == "\ufffd" or unicodedata.category(char) in {"Cc", "Co", "Cn"}
        for char in text
        if not char.isspace()
    )
    if strange > STRANGE * len(text):
        return Flaw("garbage", f"{strange} of {len(text)} characters are none: “{excerpt(text)}”")
    scripts = [script for word in text.split() if (script := _script(word))]
    changes = sum(a != b for a, b in pairwise(scripts))
    if len(scripts) >= LEAST_TOKENS and changes > MIXED_SCRIPTS * len(scripts):
        return Flaw(
            "garbage", f"the alphabet changes {changes} times in {len(scripts)} words: “{excerpt(text)}”"
        )
    return None


def _script(word: str) -> str:
    """Return the alphabet of a word's first letter, such as ``LATIN``; empty if it has none.

    Chinese and Japanese are written with several, and Greek letters stand in formulas for themselves.
    """
    for char in word:
        if char.isalpha():
            name = unicodedata.name(char, "?").partition(" ")[0]
            name = "CJK" if name in {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "FULLWIDTH"} else name
            return "" if name in {"GREEK", "MATHEMATICAL", "DOUBLE-STRUCK", "SCRIPT"} else name
    return ""


def _repetition(units: Sequence[Hashable], text: str) -> Flaw | None:
    """Return a flaw if the end of the text repeats the same few tokens."""
    longest = min(LONGEST_PERIOD, len(units) // LEAST_REPEATS)
    for period in range(1, longest + 1):
        length = _periodic_end(units, period)
        if length >= max(REPEATED * len(units), LEAST_REPEATS * period, LEAST_TOKENS):
            shown = f"the last {length} of {len(units)} tokens repeat {period}: “{excerpt(text[-400:])}”"
            return Flaw("repetition", shown)
    return None


def _periodic_end(units: Sequence[Hashable], period: int) -> int:
    """Return the number of last tokens that repeat with this period."""
    same = 0
    for at in range(len(units) - 1, period - 1, -1):
        if units[at] != units[at - period]:
            break
        same += 1
    return same + period if same else 0


def excerpt(text: str, most: int = 40) -> str:
    """Return the beginning of *text* in one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[:most] + "…"
