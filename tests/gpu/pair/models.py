"""The configurations of a tiny Qwen3 target and of a DFlash drafter for it.

There are no weights and no tokenizer: vLLM makes the weights up (``load_format="dummy"``) and
is given token ids. The sizes are the smallest that take the same kernels as a real pair:
heads of 128, grouped queries, three auxiliary hidden states.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MAX_MODEL_LEN", "VOCABULARY", "write_models"]

VOCABULARY = 8192
MAX_MODEL_LEN = 2048
_MASK_TOKEN = VOCABULARY - 1
_TARGET_LAYERS = 8
_SHARED: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 2048,
    "max_position_embeddings": 2 * MAX_MODEL_LEN,
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


def write_models(folder: Path) -> tuple[Path, Path]:
    """Write ``target/config.json`` and ``drafter/config.json`` under *folder*; return the two folders."""
    target = {**_SHARED, "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": _TARGET_LAYERS}
    drafter = {
        **_SHARED,
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": 2,
        "num_target_layers": _TARGET_LAYERS,
        "dflash_config": {"mask_token_id": _MASK_TOKEN, "target_layer_ids": [1, 3, 6]},
    }
    return _write(folder / "target", target), _write(folder / "drafter", drafter)


def _write(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder
