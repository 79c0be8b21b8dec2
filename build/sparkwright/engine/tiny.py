"""A tiny Qwen3 target and a DFlash drafter for it, generated: configurations and a tokenizer, no weights.

vLLM generates the weights (``--load-format dummy``). The sizes are the smallest that use the same kernels as
a real pair: heads of 128, grouped queries, three auxiliary hidden states.

The tokenizer is byte-level BPE without data files: its merges are common words and letters' combinations.
Every text has tokens and every token a text. English has about three characters a token with it, so that
lengths, salts and shared prefixes behave as with a real one. The format is that of Hugging Face's
``tokenizers`` library; the alphabet is GPT-2's, which gives each byte a printable character.

Standard library only, so that programs on other machines can use it from a copy of the sources.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
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


VOCABULARY = 8192
MAX_MODEL_LEN = 65536
_MASK_TOKEN = VOCABULARY - 1
_TARGET_LAYERS = 8
_DRAFTER_LAYERS = 2


def write_tiny_models(folder: Path, *, max_model_len: int = MAX_MODEL_LEN) -> tuple[Path, Path]:
    """Write ``target`` and ``drafter`` under *folder*; returns the two folders.

    Existing files are overwritten, with the same content.
    """
    shared = _shared(max_model_len)
    target = {**shared, "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": _TARGET_LAYERS}
    drafter = {
        **shared,
        # Another name than DFlash… would be taken for an EAGLE head.
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": _DRAFTER_LAYERS,
        "num_target_layers": _TARGET_LAYERS,
        "dflash_config": {"mask_token_id": _MASK_TOKEN, "target_layer_ids": [1, 3, 6]},
    }
    words = {
        "tokenizer.json": tokenizer(VOCABULARY),
        "tokenizer_config.json": tokenizer_config(max_model_len),
    }
    return (
        _write(folder / "target", {"config.json": target, **words}),
        _write(folder / "drafter", {"config.json": drafter, **words}),
    )


def _shared(max_model_len: int) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "initializer_range": 0.02,
        "intermediate_size": 2048,
        "max_position_embeddings": max_model_len,
        "model_type": "qwen3",
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }


def _write(folder: Path, files: dict[str, dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    return folder
