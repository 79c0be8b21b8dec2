"""The configurations of a tiny Qwen3 target and of a DFlash drafter for it.

There are no weights: vLLM generates them (``--load-format dummy``). The sizes are the smallest that use the
same kernels as a real pair: heads of 128, grouped queries, three auxiliary hidden states.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparkwright.engine.tiny.tokenizer import BEGIN, END, tokenizer, tokenizer_config

VOCABULARY = 8192
MAX_MODEL_LEN = 65536
_MASK_TOKEN = VOCABULARY - 1
_TARGET_LAYERS = 8
_DRAFTER_LAYERS = 2


def write_tiny_models(folder: Path, *, max_model_len: int = MAX_MODEL_LEN) -> tuple[Path, Path]:
    """Write ``target`` and ``drafter`` under *folder*; returns the two folders.

    Existing files are overwritten, with the same content.

    Args:
        folder: destination; created if missing.
        max_model_len: tokens of the longest request.
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
