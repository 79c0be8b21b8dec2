"""Prompts of given lengths in the server's tokens, which a fit to a few counted ones predicts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from sparkwright.base.digests import digest_of
from sparkwright.engine.cell import Message, Prompt
from sparkwright.verify.corpus.document import WORDS_PER_TOKEN, write_notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.engine.observations import Sample

SHORT, LONG = 100, 1500
"""Words of the counted texts."""
_COUNTED = 3  # of each length
PROBE = "."
"""Question of the requests that only put a context into the cache; some servers refuse an empty one."""
_CATEGORY = "protocol"
_SPARE = 40  # words: a text is cut to its length, so more is written


class TokenFit(NamedTuple):
    """Tokens of a request by the words of its text.

    Attributes:
        each: tokens of a word.
        alone: tokens of a request without words: the template's, and those of the nonce.
        pair: the same of a request with a system message.
    """

    each: float
    alone: float
    pair: float

    def words(self, tokens: int, *, pair: bool = False) -> int:
        """Return the words of a request's text, or of its system message, for so many tokens of it."""
        return max(1, round((tokens - (self.pair if pair else self.alone)) / self.each))

    def plain_words(self, tokens: int) -> int:
        """Return the words that have so many tokens by themselves."""
        return max(1, round(tokens / self.each))


USUAL = TokenFit(each=1 / WORDS_PER_TOKEN, alone=12.0, pair=18.0)
"""Assumed where the server counts no tokens."""


def sizing_prompts(seed: int) -> tuple[Prompt, ...]:
    """Return the prompts whose tokens are counted: short ones, long ones, and short ones of two messages."""
    alone = [
        make_prompt(f"size {words} {number}", seed, words=words)
        for words in (SHORT, LONG)
        for number in range(_COUNTED)
    ]
    pairs = [
        make_prompt(f"size pair {number}", seed, words=SHORT, context=SHORT) for number in range(_COUNTED)
    ]
    return (*alone, *pairs)


def fit_tokens(samples: Sequence[Sample], seed: int) -> TokenFit:
    """Return the fit to the counts of `sizing_prompts`; `USUAL` if one of them has none."""
    counts = {sample.prompt: sample.prompt_tokens for sample in samples if sample.failure is None}
    known = [counts.get(prompt.name, 0) for prompt in sizing_prompts(seed)]
    if not all(known):
        return USUAL
    short, long, pair = (sum(known[at : at + _COUNTED]) / _COUNTED for at in range(0, 3 * _COUNTED, _COUNTED))
    each = (long - short) / (LONG - SHORT)
    if each <= 0:
        return USUAL
    return TokenFit(each=each, alone=short - SHORT * each, pair=pair - 2 * SHORT * each)


def make_prompt(name: str, seed: int, *, words: int, context: int = 0) -> Prompt:
    """Return a chat's prompt of *words* words, with *context* words in a system message if not 0.

    The first message begins with a nonce, so that no block of it is in a prefix cache.
    """
    nonce = digest_of([_CATEGORY, name, seed])[:12]
    number = int(nonce, 16)
    if not context:
        return Prompt(name=name, category=_CATEGORY, text=f"[{nonce}]\n{_text(words, number)}")
    system = Message("system", f"[{nonce}]\n{_text(context, number)}")
    return Prompt(name=name, category=_CATEGORY, text=_text(words, number + 1), history=(system,))


def probe_of(prompt: Prompt) -> Prompt:
    """Return the request that puts the context of *prompt* into the prefix cache."""
    return Prompt(name=f"{prompt.name} context", category=_CATEGORY, text=PROBE, history=prompt.history)


def _text(words: int, seed: int) -> str:
    """Return exactly *words* words of notes."""
    notes = write_notes.__wrapped__(int((words + _SPARE) / WORDS_PER_TOKEN), seed)
    return "".join(re.findall(r"\S+\s*", notes)[:words]).rstrip()
