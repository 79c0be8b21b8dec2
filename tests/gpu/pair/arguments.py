"""What vLLM is asked for to serve the pair, whichever way its engine is driven."""

from __future__ import annotations

from typing import Any

from pair.load import ACCEPTED, DRAFTED
from pair.models import CACHE_BYTES, MAX_MODEL_LEN


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
        "kv_cache_memory_bytes": CACHE_BYTES,
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
