"""Configurations of DFlash drafters, native and in the speculators format, and how their layers attend.

All are read by upstream's own parser and converter.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from vllm.transformers_utils.config import get_config
from vllm.transformers_utils.configs.eagle import EAGLEConfig
from vllm.transformers_utils.configs.speculators import SpeculatorsConfig

HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 32
WINDOW = 20
SLIDING, FULL = "sliding_attention", "full_attention"
MIXED = [SLIDING] * 4 + [FULL]
AUX_LAYERS = (2, 4, 7)  # the target's layers whose output the drafters read
SIZES: dict[str, Any] = {
    "attention_bias": False,
    "head_dim": HEAD_SIZE,
    "hidden_act": "silu",
    "hidden_size": 128,
    "intermediate_size": 256,
    "max_position_embeddings": 4096,
    "num_attention_heads": HEADS,
    "num_hidden_layers": len(MIXED),
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "vocab_size": 512,
}


class Seen(NamedTuple):
    """One layer's attention: the window of its kernel, in tokens, its own included, and its causality."""

    window: int | None
    causal: bool


SLIDES, LOOKS_BACK = Seen(WINDOW, causal=True), Seen(None, causal=False)


def native(options: dict[str, Any] | None = None, **given: Any) -> Any:
    """Return a configuration from a config.json as z-lab writes it, as `SpeculativeConfig` wraps it."""
    dflash_config = {"mask_token_id": 511, "target_layer_ids": [i - 1 for i in AUX_LAYERS], **(options or {})}
    found = {"model_type": "qwen3", "architectures": ["DFlashDraftModel"], **SIZES, **given}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps({**found, "dflash_config": dflash_config}))
        config = get_config(folder, trust_remote_code=False)
    return EAGLEConfig(config, method="dflash", model_type="eagle")


def speculators(layer: dict[str, Any] | None = None, **given: Any) -> Any:
    """Return the same in the format of the speculators library, through upstream's converter."""
    found = {
        "speculators_model_type": "dflash",
        "transformer_layer_config": {**SIZES, "model_type": "qwen3", **(layer or {})},
        "mask_token_id": 511,
        "aux_hidden_state_layer_ids": list(AUX_LAYERS),
        **given,
    }
    return SpeculatorsConfig(**SpeculatorsConfig.extract_transformers_pre_trained_config(found))


def windowed(types: list[str]) -> dict[str, Any]:
    """Return the keys with which a configuration gives its layers *types*, with windows."""
    return {"layer_types": types, "sliding_window": WINDOW, "use_sliding_window": True}


def cases() -> list[tuple[str, Any, list[Seen]]]:
    """Return each way in which a configuration may give windows and causality, with the five layers."""
    types = windowed(MIXED)
    non_causal = [Seen(WINDOW, causal=False)] * 4 + [LOOKS_BACK]
    mixed, all_causal = [SLIDES] * 4 + [LOOKS_BACK], [SLIDES] * 4 + [Seen(None, causal=True)]
    return [
        ("every layer slides", native(**windowed([SLIDING] * 5)), [SLIDES] * 5),
        ("the full layer is not last", native(**windowed(MIXED[::-1])), mixed[::-1]),
        ("all causal", native({"causal": True}, **types), all_causal),
        ("none causal", native({"causal": False}, **types), non_causal),
        ("null is no word", native({"causal": None}, **types), mixed),
        ("all but the first slide", native(**{**windowed(MIXED), "layer_types": None}, max_window_layers=1),
         [LOOKS_BACK] + [SLIDES] * 4),
        ("neither on nor off", native({"swa_window_size": WINDOW}, layer_types=MIXED), mixed),
        ("speculators, layers within", speculators(types), mixed),
        ("speculators, layers beside", speculators(None, **types), mixed),
        ("speculators, causal", speculators(types, sliding_window_non_causal=False), mixed),
        ("speculators, not causal", speculators(types, sliding_window_non_causal=True), non_causal),
        ("speculators, switched off", speculators(types, use_sliding_window=False), [LOOKS_BACK] * 5),
        ("speculators, index without switch", speculators({"sliding_window": 8, "max_window_layers": 0}),
         [LOOKS_BACK] * 5),
        ("speculators, by index", speculators(None, **{**types, "layer_types": None}, max_window_layers=4),
         [LOOKS_BACK] * 4 + [SLIDES]),
        ("speculators, all causal", speculators(types, causal=True), all_causal),
        ("speculators, all by one word", speculators(use_swa=True, swa_window_size=WINDOW),
         [Seen(WINDOW, causal=False)] * 5),
    ]  # fmt: skip
