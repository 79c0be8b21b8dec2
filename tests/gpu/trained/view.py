"""A view into vLLM's worker, mixed into its class by ``worker_extension_cls``: plain types only."""

from __future__ import annotations

from typing import Any


class TrainedView:
    """A method that `collective_rpc` can call; vLLM allows no name that its worker has already."""

    model_runner: Any
    vllm_config: Any

    def trained_view(self) -> dict[str, Any]:
        """Return the runner, the drafter, and backend, cache and window of each layer of attention."""
        runner = self.model_runner
        drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
        own = set(getattr(drafter, "_draft_attn_layer_names", None) or ())
        layers = []
        for name, layer in self.vllm_config.compilation_config.static_forward_context.items():
            if not hasattr(layer, "attn_backend"):
                continue
            layers.append({
                "name": name,
                "draft": name in own,
                "backend": layer.attn_backend.get_name(),
                "cache": str(getattr(layer, "kv_cache_dtype", "")),
                "window": self.trained_window(layer),
            })  # fmt: skip
        return {
            "runner": f"{type(runner).__module__}.{type(runner).__qualname__}",
            "drafter": drafter and f"{type(drafter).__module__}.{type(drafter).__qualname__}",
            "layers": layers,
        }

    @staticmethod
    def trained_window(layer: Any) -> int | None:
        """Return the places that a layer's kernel sees, its own included; None for all.

        Kernels have a pair of places to the left and to the right, without their own; -1 is all.
        """
        told = getattr(layer.impl, "sliding_window", None)
        left = told[0] if isinstance(told, (tuple, list)) else told
        return None if left is None or left < 0 else int(left) + 1
