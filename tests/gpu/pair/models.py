"""The tiny target and drafter that are served: those of `sparkwright.engine.tiny`, for short requests.

vLLM makes the weights up (``load_format="dummy"``) and is given token ids.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from pair.load import ACCEPTED, DRAFTED
from sparkwright.engine.tiny import VOCABULARY, write_tiny_models

MAX_MODEL_LEN = 2048
WINDOW_LAYERS = ["sliding_attention"] * 4 + ["full_attention"]


def words(source: random.Random, count: int) -> list[int]:
    """Return random tokens of the vocabulary, without its special ones."""
    return [source.randrange(3, VOCABULARY - 1) for _ in range(count)]


def write_models(folder: Path) -> tuple[Path, Path]:
    """Write the models under *folder*; return the two folders."""
    return write_tiny_models(folder, max_model_len=2 * MAX_MODEL_LEN)


def write_window_drafter(drafter: Path, name: str, window: int | None) -> Path:
    """Write a copy of *drafter* beside it, with five layers; returns its folder."""
    folder = drafter.with_name(name)
    shutil.copytree(drafter, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] = len(WINDOW_LAYERS)
    if window is not None:
        config |= {"layer_types": WINDOW_LAYERS, "sliding_window": window, "use_sliding_window": True}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder


def pair_arguments(spec: dict[str, Any], *, max_model_len: int = MAX_MODEL_LEN) -> dict[str, Any]:
    """Arguments of vLLM's engines: nothing is downloaded, and no weights are read."""
    return {
        "model": spec["target"],
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "dtype": "bfloat16",
        "seed": 0,
        "max_model_len": max_model_len,
        "gpu_memory_utilization": spec["gpu_memory_utilization"],
        "enforce_eager": spec["eager"],
        "enable_flashinfer_autotune": False,  # not needed for correctness, and takes longer than all the rest
        "speculative_config": {
            "method": "dflash",
            "model": spec["drafter"],
            "num_speculative_tokens": DRAFTED,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": float(1 + ACCEPTED),
            **spec.get("speculative", {}),
        },
        **spec.get("engine", {}),
    }


def cell_arguments(device: str, eager: bool, cache: str) -> dict[str, Any]:  # noqa: FBT001
    """Arguments of engines side by side that are looked into by `fleet.view`; *cache* is a dtype."""
    found = {
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "seed": 0,
        "enforce_eager": eager,
        "kv_cache_dtype": cache,
        "kv_cache_memory_bytes": 1 << (30 if device == "cpu" else 32),
        "enable_prefix_caching": True,
        "disable_log_stats": False,
        "worker_extension_cls": "fleet.view.FleetView",
    }
    own = {"gpu_memory_utilization": 0.08, "enable_flashinfer_autotune": False}
    return found | (own if device == "cuda" else {})
