"""A view into vLLM's worker: which layers keep which cache, and how large the pool is."""

from __future__ import annotations

import math
from typing import Any

from pair.worker import PairView

__all__ = ["CacheView"]


class CacheView(PairView):
    """Methods that `collective_rpc` can call."""

    def nvfp4_caches(self) -> dict[str, Any]:
        """Backend, cache type, shape and strides of each layer's cache; the pool's blocks and bytes."""
        config = self.vllm_config
        layers = {}
        for name, layer in config.compilation_config.static_forward_context.items():
            cache = getattr(layer, "kv_cache", None)
            if isinstance(cache, list | tuple):
                cache = cache[0]
            if cache is None:
                continue
            layers[name] = {
                "backend": layer.attn_backend.get_name(),
                "dtype": layer.kv_cache_dtype,
                "shape": list(cache.shape),
                "strides": list(cache.stride()),
                "bytes": math.prod(cache.shape) * cache.element_size(),
            }
        return {
            "layers": layers,
            "blocks": config.cache_config.num_gpu_blocks,
            "block_size": config.cache_config.block_size,
            "cache_dtype": config.cache_config.cache_dtype,
        }
