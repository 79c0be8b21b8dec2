"""Documents whose prompts have an exact number of tokens, around multiples of the KV cache's block size.

No tokenizer is available here. A trial request of a document shows the tokens that it has; words that are one
token each in the tokenizers in use then make up the rest. A document's mark and code have as many digits each
time, so that another document of the same words has as many tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from sparkwright.base.digests import digest_of
from sparkwright.engine.capabilities import SPECULATION
from sparkwright.engine.cell import Prompt
from sparkwright.verify.check import Context
from sparkwright.verify.corpus.document import write_notes

OFFSETS = (-1, 0, 1)
"""Tokens from a multiple of the block size: one short of it, exactly so many, and one more."""

USUAL_BLOCK = 16
"""vLLM's block size on CUDA where nothing asks for another."""

_LEAST_TOKENS = 160  # for notes, a fact and a question
_MULTIPLES = (0, 1, 3)  # added to the smallest multiple
_LONGEST = 8192  # where the server does not name its longest request
_FILLED = 0.7  # of the wanted tokens that notes take by an estimate; words make up the rest
_NAMES = ("Marrowgate", "Tindlehope", "Osterwick", "Quillhaven", "Silverholt", "Hollowmere")
# Common words, each of which is one token after a space in the tokenizers of Llama, Qwen, Gemma and GPT-2.
_WORDS = """
the of and to in is that it for on was with as be by this are at from or an have not they which one had were
all their there been has when who will more no if out so up what about into than time only could these two may
then do first any my now such like our over man me even most made after also did
"""


@dataclass(frozen=True)
class Sizing:
    """One document whose length is to be a *multiple* of blocks of *block* tokens."""

    block: int
    multiple: int

    @property
    def name(self) -> str:
        """Name within a run, such as ``16x10``."""
        return f"{self.block}x{self.multiple}"


def block_sizes(context: Context) -> tuple[int, ...]:
    """Return the tokens of blocks to test, the largest last; hybrids may have several."""
    return context.main.block_sizes or (USUAL_BLOCK,)


def sizings(context: Context, answer_tokens: int) -> tuple[Sizing, ...]:
    """Return the documents to size: three multiples of each block size, as far as requests may be so long.

    A drafter that reads hidden states has the last cached block computed again, so that there is one more.
    """
    longest = context.main.max_model_len
    longest = (longest if longest > 0 else _LONGEST) - answer_tokens - max(OFFSETS)
    least = 2 if SPECULATION in context.lacks else 3
    found = []
    for block in block_sizes(context):
        first = max(least, -(-_LEAST_TOKENS // block))
        found += [Sizing(block, first + more) for more in _MULTIPLES if (first + more) * block <= longest]
    return tuple(found)


def write_sized(sizing: Sizing, seed: int, salt: str, words: int = 0, label: str = "") -> Prompt:
    """Return a document of *sizing* with *words* more words, a token each; `expect` is the code in it.

    Another *salt* gives another mark and code, of as many tokens; *label* is the end of its name.
    """
    random_ = random.Random(f"sized {sizing.name} {seed}")  # noqa: S311 - words, not secrets
    name = random_.choice(_NAMES)
    number = int(digest_of(["sized", sizing.name, seed, salt])[:15], 16)
    mark, code = f"{number % 10**12:012d}", f"{100_000 + number // 10**12 % 900_000}"
    tokens = max(1, int(_FILLED * (sizing.block * sizing.multiple - _LEAST_TOKENS / 2)))
    notes = write_notes(tokens, seed + sizing.block * sizing.multiple)
    head, _, rest = notes.partition("\n\n")
    padding = "".join(f" {word}" for word in random_.choices(_WORDS.split(), k=words))
    text = (
        f"Record {mark}.\n{head}\n\nThe code for {name} is {code}.\n\n{rest}\nIndex:{padding}\n\n"
        f"Question: What is the code for {name}?\nAnswer: The code for {name} is"
    )
    return Prompt(name=f"sized/{sizing.name}{label}/{mark}", category="extraction", text=text, expect=code)


def missing_words(sizing: Sizing, tokens: int, offset: int, longest: int) -> int | None:
    """Return the words that bring a document of *tokens* to a multiple of the block size and *offset*.

    Where it is longer than was wanted, the next multiple is taken; `None` if that is beyond *longest*.
    """
    multiple = max(sizing.multiple, -(-(tokens - offset) // sizing.block))
    wanted = multiple * sizing.block + offset
    return wanted - tokens if wanted <= longest else None
