"""A view into vLLM's worker, mixed into its class by ``worker_extension_cls``: plain types only."""

from __future__ import annotations

from typing import Any

from pair.parts import drafter_of, name_of


def _window(impl: object) -> int | None:
    """Return the places that a layer's kernel sees, its own included; None for all.

    Kernels have a pair of places to the left and to the right, without their own; -1 is all.
    """
    told = getattr(impl, "sliding_window", None)
    left = told[0] if isinstance(told, (tuple, list)) else told
    return None if left is None or left < 0 else int(left) + 1


class FleetView:
    """A method that `collective_rpc` can call; vLLM allows no name that its worker has already."""

    model_runner: Any
    vllm_config: Any

    def fleet_view(self) -> dict[str, Any]:
        """Return what booted: runner, drafter, captured graphs; of each layer backend, cache, window."""
        from vllm.compilation.counter import compilation_counter

        runner, config = self.model_runner, self.vllm_config
        drafter = drafter_of(runner)
        own = set(getattr(drafter, "_draft_attn_layer_names", None) or ())
        layers = {}
        for name, layer in config.compilation_config.static_forward_context.items():
            if not hasattr(layer, "attn_backend"):
                continue
            impl = getattr(layer, "impl", None)
            layers[name] = {
                "backend": layer.attn_backend.get_name(),
                "cache": str(getattr(layer, "kv_cache_dtype", "")),
                "kind": name_of(layer).rpartition(".")[2],
                "size": getattr(layer, "head_size", None),
                "sinks": getattr(impl, "sinks", None) is not None,
                "draft": name in own,
                "window": _window(impl),
            }
        return {
            "runner": name_of(runner),
            "drafter": name_of(drafter),
            "layers": layers,
            "captured": compilation_counter.num_cudagraph_captured,
            "prefix_cache": bool(config.cache_config.enable_prefix_caching),
        }
