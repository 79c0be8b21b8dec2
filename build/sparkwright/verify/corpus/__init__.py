"""The prompts: this project's own by category, and long documents and tasks generated from a seed.

Prompts that ship are in the TOML files beside this one, and are sent in any number of salted copies. Nothing
is downloaded. Sentences of generated texts come from a small grammar over common words, so that tokenizers
treat them as English and a reader may follow them, but no model has seen them before.
"""

from __future__ import annotations

import functools
import random
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from sparkwright.base.config import Model, parse_toml
from sparkwright.base.digests import digest_of
from sparkwright.base.errors import unknown_name
from sparkwright.engine.cell import Prompt

# Texts that occur nowhere else, from a seed ------------------------------------------------------------


WORDS_PER_TOKEN = 0.8
"""Words of a document for each token of it. By Qwen3's tokenizer, documents come to 96 to 98 % of the
requested tokens from 2,000 on, and to 111 % at 200, where nonce and question weigh more."""

_LEAST_TOKENS = 120


@functools.cache
def _words() -> dict[str, list[str]]:
    """Return ``words.toml``: words of the notes by kind."""
    return tomllib.loads((resources.files(__name__) / "words.toml").read_text(encoding="utf-8"))


def write_document(tokens: int, seed: int, words_per_token: float = WORDS_PER_TOKEN) -> tuple[str, str]:
    """Return a document that ends with a question about it, and the answer.

    Its length is a number of words, because no tokenizer is available; the true count comes back in the
    server's ``usage``. With the *words_per_token* of the server's tokenizer it is within 2 % of *tokens*
    where nonce, template and question weigh little: from some thousand tokens on. The needle
    stands at a random place between a tenth and nine tenths of the text, as ``The code for NAME is CODE.``

    Returns:
        The text, and CODE (six digits).

    Raises:
        ValueError: *tokens* is too small for the question and a few sentences.
    """
    if tokens < _LEAST_TOKENS:
        raise ValueError(f"a document needs at least {_LEAST_TOKENS} tokens, not {tokens}")
    random_ = random.Random(f"document {tokens} {seed}")  # noqa: S311 - words, not secrets
    name = random_.choice(_words()["needles"])
    code = str(random_.randrange(100_000, 1_000_000))
    question = (
        f"These were the notes. What is the code for {name}? Give the code first. Then sum up in your own "
        "words what the notes say about people, work and weather, in about three hundred words."
    )
    fact = f"The code for {name} is {code}."
    budget = int(tokens * words_per_token) - len(f"{question} {fact}".split())
    sentences = _sentences(budget, random_)
    sentences.insert(int(len(sentences) * random_.uniform(0.1, 0.9)), fact)
    return f"{_paragraphs(sentences, random_)}\n\n{question}", code


@functools.lru_cache(maxsize=64)  # every round of a soak uses the same prefixes
def write_notes(tokens: int, seed: int) -> str:
    """Return notes of about *tokens* tokens without a fact or a question, for prompts to begin with."""
    random_ = random.Random(f"notes {tokens} {seed}")  # noqa: S311 - words, not secrets
    return _paragraphs(_sentences(int(tokens * WORDS_PER_TOKEN), random_), random_)


def _sentences(words: int, random_: random.Random) -> list[str]:
    """Return sentences of about *words* words together."""
    made: list[str] = []
    left = words
    while left > 0:
        made.append(_sentence(random_))
        left -= len(made[-1].split())
    return made


def _sentence(random_: random.Random) -> str:
    """Return one sentence."""
    if random_.random() < 0.2:  # noqa: PLR2004 - one in five is a remark
        return random_.choice(_words()["remarks"]).format(
            n=random_.randrange(20, 900), m=random_.randrange(4, 20)
        )
    kinds = ("people", "verbs", "things", "times", "ends")
    who, did, what, when, end = (random_.choice(_words()[kind]) for kind in kinds)
    text = random_.choice(
        (
            f"{when}, {who} {did} {what}, {end}.",
            f"{who} {did} {what} {when}, {end}.",
            f"{when} {who} {did} {what}.",
            f"{who} {did} {what}, {end}.",
        )
    )
    return text[0].upper() + text[1:]


def _paragraphs(sentences: list[str], random_: random.Random) -> str:
    """Return the sentences in paragraphs of four to nine."""
    blocks: list[str] = []
    start = 0
    while start < len(sentences):
        end = start + random_.randrange(4, 10)
        blocks.append(" ".join(sentences[start:end]))
        start = end
    return "\n\n".join(blocks)


# Small tasks with one correct answer: sums, and look-ups in a list ----------------------------------------

_NAMES = (
    "Alder", "Birch", "Cedar", "Damson", "Elder", "Fir", "Gorse", "Hazel", "Ivy", "Juniper", "Larch", "Maple",
    "Olive", "Poplar", "Rowan", "Sorrel", "Tansy", "Willow", "Yarrow", "Zinnia",
)  # fmt: skip


def write_task(seed: int, salt: str, number: int) -> tuple[str, str, str]:
    """Return task *number*: its category, text and answer. Even ones are sums, odd ones look-ups."""
    random_ = random.Random(f"task {seed} {salt} {number}")  # noqa: S311 - numbers, not secrets
    return _look_up(random_) if number % 2 else _sum(random_)


def _sum(random_: random.Random) -> tuple[str, str, str]:
    a, b = random_.randrange(1200, 9800), random_.randrange(1200, 9800)
    sign = random_.choice("+-")
    result = a + b if sign == "+" else a - b
    return "math", f"Work this out and answer with the number alone: {a} {sign} {b}", str(result)


def _look_up(random_: random.Random) -> tuple[str, str, str]:
    names = random_.sample(_NAMES, 8)
    codes = random_.sample(range(100_000, 1_000_000), 8)
    facts = "\n".join(f"The code for {name} is {code}." for name, code in zip(names, codes, strict=True))
    asked = random_.randrange(8)
    question = f"What is the code for {names[asked]}? Answer with the number alone."
    return "extraction", f"{facts}\n\n{question}", str(codes[asked])


# The prompts that ship -----------------------------------------------------------------------------------


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
    """Prompts by category."""

    entries: Mapping[str, tuple[CorpusEntry, ...]]
    known: tuple[CorpusEntry, ...] = ()

    def prompts(self, category: str, count: int, seed: int, salt: str) -> tuple[Prompt, ...]:
        """Return *count* prompts of *category*, each beginning with a nonce of its own.

        The nonce stands first so that no two prompts share a block of the prefix cache, not even copies of
        the same text, which appear when *count* is larger than the shipped number. The same arguments give
        the same prompts; another *salt* or *seed* gives other nonces, names and another order.

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
        salt: str = "",
        words_per_token: float = WORDS_PER_TOKEN,
    ) -> Prompt:
        """Return a document of about *tokens* tokens that states a code somewhere, with a question for it.

        See `write_document` for its content and its true length.
        It begins with a nonce, so that documents of different seeds or salts share no block of the prefix
        cache. For a prompt of another length but the same kind, use another number of tokens.

        Returns:
            The prompt, of category ``extraction``; its `expect` is the code.
        """
        # The empty word held a code of the caller's choice: nonces stay those of recorded runs.
        nonce = digest_of(["document", tokens, seed, "", salt])[:12]
        text, code = write_document(tokens, seed, words_per_token)
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
    data = (resources.files(__name__) / name).read_bytes()
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
