"""The prompts that ship, in any number of salted copies."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from sparkwright.base.config import Model, parse_toml
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import unknown_name
from sparkwright.engine.cell import Prompt
from sparkwright.verify.corpus.document import WORDS_PER_TOKEN, write_document, write_notes, write_task

CATEGORIES = ("code", "math", "reasoning", "prose", "dialogue", "extraction")
FACTS = "facts"
"""Category of known facts, which are no load: see `Corpus.facts`."""
_FORMAT = 1
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w]|\.\d)")
_GROUPED = re.compile(r"(?<=\d)[,\u202f\u00a0](?=\d{3}(?!\d))")  # 1,234: comma or a narrow space
_NOT_A_SIGN = re.compile(r"(?<=[\w)\]])-(?=\d)")  # 12-15 is a range, not a negative number


class CorpusEntry(Model, frozen=True):
    """A prompt as it ships.

    Attributes:
        name: unique within its category.
        text: the user's message.
        expect: a string that a correct answer contains, or empty.
        working: a Python expression with the value of `expect`, which the tests evaluate; only for math.
    """

    name: str
    text: str
    expect: str = ""
    working: str = ""


class _CorpusFile(Model, frozen=True):
    """One category's file."""

    format: Literal[1]
    category: str
    prompt: tuple[CorpusEntry, ...]


@dataclass(frozen=True)
class Corpus:
    """Prompts by category.

    Attributes:
        entries: the shipped prompts, by category.
        known: questions of which every trained model knows the answer.
    """

    entries: Mapping[str, tuple[CorpusEntry, ...]]
    known: tuple[CorpusEntry, ...] = ()

    def prompts(self, category: str, count: int, seed: int, salt: str) -> tuple[Prompt, ...]:
        """Return *count* prompts of *category*, each beginning with a nonce of its own.

        The nonce stands first so that no two prompts share a block of the prefix cache, not even copies of
        the same text, which appear when *count* is larger than the shipped number. The same arguments give
        the same prompts; another *salt* or *seed* gives other nonces, names and another order.

        Args:
            category: one of `CATEGORIES`.
            count: number of prompts.
            seed: seed of their order.
            salt: separates callers, for example ``sweep code c=8``.

        Raises:
            UnknownNameError: no such category.
        """
        if category not in self.entries:
            raise unknown_name("category of prompts", category, list(self.entries))
        entries = self.entries[category]
        order = random.Random(f"{category} {seed} {salt}")  # noqa: S311 - an order, not a secret
        made: list[Prompt] = []
        while len(made) < count:
            for entry in order.sample(entries, min(len(entries), count - len(made))):
                nonce = digest_of([category, entry.name, seed, salt, len(made)])[:12]
                made.append(
                    Prompt(
                        name=f"{category}/{entry.name}/{nonce}",
                        category=category,
                        text=f"[{nonce}]\n{entry.text.strip()}",
                        expect=entry.expect,
                    )
                )
        return tuple(made)

    def facts(self) -> tuple[Prompt, ...]:
        """Return the questions of which every trained model knows the answer, in order.

        They have no nonce: a small model takes one for a part of the question.
        """
        return tuple(
            Prompt(name=f"{FACTS}/{entry.name}", category=FACTS, text=entry.text, expect=entry.expect)
            for entry in self.known
        )

    def document(
        self,
        tokens: int,
        seed: int,
        needle: str = "",
        salt: str = "",
        words_per_token: float = WORDS_PER_TOKEN,
    ) -> Prompt:
        """Return a document of about *tokens* tokens that states a code somewhere, with a question for it.

        See `sparkwright.verify.corpus.document.write_document` for its content and its true length.
        It begins with a nonce, so that documents of different seeds or salts share no block of the prefix
        cache. For a prompt of another length but the same kind, use another number of tokens.

        Args:
            tokens: length of the whole prompt, at least 120.
            seed: seed of its words and of the needle's place and code.
            needle: name that the code belongs to; generated from the seed where it is empty.
            salt: as for `prompts`.
            words_per_token: as for `write_document`.

        Returns:
            The prompt, of category ``extraction``; its `expect` is the code.
        """
        nonce = digest_of(["document", tokens, seed, needle, salt])[:12]
        text, code = write_document(tokens, seed, needle, words_per_token)
        return Prompt(
            name=f"document/{tokens}/{nonce}", category="extraction", text=f"[{nonce}]\n{text}", expect=code
        )

    def notes(self, tokens: int, seed: int, salt: str = "") -> str:
        """Return text of about *tokens* tokens without a question: a shared prefix for prompts.

        It begins with a nonce, as `document` does.
        """
        nonce = digest_of(["notes", tokens, seed, salt])[:12]
        return f"[{nonce}]\n{write_notes(tokens, seed)}\n\n"

    def tasks(self, count: int, seed: int, salt: str) -> tuple[Prompt, ...]:
        """Return *count* small tasks that a healthy model hardly ever gets wrong: sums and look-ups.

        Their `expect` is certain, and one wrong token spoils the answer. Nonces are as in `prompts`.
        """
        made = []
        for number in range(count):
            nonce = digest_of(["task", seed, salt, number])[:12]
            category, text, expect = write_task(seed, salt, number)
            made.append(
                Prompt(
                    name=f"task/{number}/{nonce}", category=category, text=f"[{nonce}]\n{text}", expect=expect
                )
            )
        return tuple(made)


@functools.cache
def load_corpus() -> Corpus:
    """Return the corpus that ships with this package.

    Raises:
        ConfigError: a file of it is damaged.
    """
    return Corpus({name: _entries(name) for name in CATEGORIES}, known=_entries(FACTS))


def _entries(category: str) -> tuple[CorpusEntry, ...]:
    name = f"{category}.toml"
    data = (resources.files("sparkwright.verify.corpus") / name).read_bytes()
    return parse_toml(data, _CorpusFile, newest_format=_FORMAT, name=name).prompt


def holds(expect: str, text: str) -> bool:
    """Tell if *text* contains the answer *expect*.

    A number is compared as a number, so that ``2,315.250`` is ``2315.25`` and ``112`` is not ``12``. Anything
    else must stand in the text as it is but for its case, and not as a part of a longer word.

    Args:
        expect: the answer, such as ``2315.25`` or ``HL-2291-B``; nothing is expected where it is empty.
        text: the generated text.
    """
    plain = text.replace("\u2212", "-")
    if not _NUMBER.fullmatch(expect):
        pattern = rf"(?<!\w){re.escape(expect)}(?!\w)"
        return re.search(pattern, plain, re.IGNORECASE) is not None
    numbers = _NUMBER.findall(_NOT_A_SIGN.sub(" ", _GROUPED.sub("", plain)))
    return any(float(number) == float(expect) for number in numbers)
