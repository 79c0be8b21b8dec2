"""Texts that occur nowhere else, from a seed: English-like notes with one fact hidden in them, small tasks.

The sentences come from a small grammar over common words, so that tokenizers treat them as English and a
reader may follow them, but no model has seen them before.
"""

from __future__ import annotations

import functools
import random
import tomllib
from importlib import resources

WORDS_PER_TOKEN = 0.8
"""Words of a document for each token of it. By Qwen3's tokenizer, documents come to 96 to 98 % of the
requested tokens from 2,000 on, and to 111 % at 200, where nonce and question weigh more."""

_LEAST_TOKENS = 120


@functools.cache
def _words() -> dict[str, list[str]]:
    """Return ``words.toml``: words of the notes by kind."""
    return tomllib.loads((resources.files(__package__) / "words.toml").read_text(encoding="utf-8"))


def write_document(
    tokens: int, seed: int, needle: str = "", words_per_token: float = WORDS_PER_TOKEN
) -> tuple[str, str]:
    """Return a document that ends with a question about it, and the answer.

    Its length is a number of words, because no tokenizer is available; the true count comes back in the
    server's ``usage``. With the *words_per_token* of the server's tokenizer it is within 2 % of *tokens*
    where nonce, template and question weigh little: from some thousand tokens on. The needle
    stands at a random place between a tenth and nine tenths of the text, as ``The code for NAME is CODE.``

    Args:
        tokens: length of the whole prompt.
        seed: seed of everything random in it.
        needle: NAME; one is chosen where it is empty.
        words_per_token: words per token of documents like these.

    Returns:
        The text, and CODE (six digits).

    Raises:
        ValueError: *tokens* is too small for the question and a few sentences.
    """
    if tokens < _LEAST_TOKENS:
        raise ValueError(f"a document needs at least {_LEAST_TOKENS} tokens, not {tokens}")
    random_ = random.Random(f"document {tokens} {seed}")  # noqa: S311 - words, not secrets
    name = needle or random_.choice(_words()["needles"])
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
