"""A tokenizer without data files: byte-level BPE whose merges are common words and letters' combinations.

Every text has tokens and every token a text. English has about three characters a token with it, so that
lengths, salts and shared prefixes behave as with a real one. The format is that of Hugging Face's
``tokenizers`` library; the alphabet is GPT-2's, which gives each byte a printable character.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from typing import Any

UNKNOWN, BEGIN, END = 0, 1, 2
_SPECIAL = ("<unk>", "<s>", "</s>")
_MASK = "<mask>"
_SPACE = "Ġ"  # a blank, in the alphabet of bytes
# By how often English has them, roughly; the order decides which of two overlapping merges comes first.
_LETTERS = "etaoinsrhldcumfpgwybvkxjqz"
_WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an "
    "they which one you were all her she there would their we him been has when who will more no if out so "
    "said what up its about into than them can only other time new some could these two may then do first "
    "any my now such like our over man me even most made after also did many before must through years where "
    "much your way well down should because each just those people how too little state good very make world "
    "still own see men work long here get both between life being under never day same another know while "
    "last might us great old year off come since against go came right used take three number code value "
    "list return function result question answer write read given find show example system data name"
)


def alphabet() -> list[str]:
    """Return the printable character of each byte, by the byte's value (as GPT-2 has it)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    places = {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    return [places[byte] for byte in range(256)]


def tokenizer(size: int) -> dict[str, Any]:
    """Return ``tokenizer.json`` of exactly *size* tokens, the last of which is the drafter's mask."""
    count = size - len(_SPECIAL) - 256 - 1
    tokens, merges = _merged(count)
    vocabulary = {token: number for number, token in enumerate((*_SPECIAL, *alphabet(), *tokens, _MASK))}
    special = {**dict(zip(_SPECIAL, range(len(_SPECIAL)), strict=True)), _MASK: size - 1}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(number, token) for token, number in special.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": [f"{left} {right}" for left, right in merges],
        },
    }


def tokenizer_config(max_model_len: int) -> dict[str, Any]:
    """Return ``tokenizer_config.json``, with a chat template."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": _SPECIAL[UNKNOWN],
        "bos_token": _SPECIAL[BEGIN],
        "eos_token": _SPECIAL[END],
        "model_max_length": max_model_len,
        "clean_up_tokenization_spaces": False,
        "chat_template": (
            "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}"
        ),
    }


def _merged(count: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Return *count* new tokens, and the merges that form them, in order of rank."""
    tokens: dict[str, None] = {}
    merges: list[tuple[str, str]] = []
    for left, right in islice(_ranked_merges(), 100 * count):
        if len(tokens) == count:
            return list(tokens), merges
        # A second merge to the same token would add no token.
        if left + right not in tokens:
            tokens[left + right] = None
            merges.append((left, right))
    raise ValueError(f"there are not {count} merges")


def _ranked_merges() -> Iterator[tuple[str, str]]:
    """Return merges in order of rank: words by letters, then pairs of letters, then letters after pairs."""
    for word in _WORDS.split():
        whole = _SPACE + word
        for end in range(1, len(whole)):
            yield whole[:end], whole[end]
    for first in (_SPACE, *_LETTERS):
        for second in _LETTERS:
            yield first, second
    capitals, digits = _LETTERS.upper(), "0123456789"
    yield from product(_SPACE, capitals + digits)
    yield from product(digits, digits)
    yield from product(capitals, _LETTERS)
    for pair in product(_LETTERS, _LETTERS):
        for letter in _LETTERS[:12]:
            yield "".join(pair), letter


def _added(number: int, token: str) -> dict[str, Any]:
    return {
        "id": number,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
