"""A view into vLLM's worker, mixed into its class by ``worker_extension_cls``: plain types only."""

from __future__ import annotations

from typing import Any

__all__ = ["FleetView"]


def _name(thing: object) -> str:
    return "" if thing is None else f"{type(thing).__module__}.{type(thing).__qualname__}"


class FleetView:
    """A method that `collective_rpc` can call; vLLM allows no name that its worker has already."""

    model_runner: Any
    vllm_config: Any

    def fleet_view(self) -> dict[str, Any]:
        """Return what booted: runner, drafter, backends and caches of layers, captured graphs."""
        import torch
        from vllm.compilation.counter import compilation_counter

        runner, config = self.model_runner, self.vllm_config
        drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
        model = runner.get_model() if hasattr(runner, "get_model") else runner.model
        layers = {}
        for name, layer in config.compilation_config.static_forward_context.items():
            if not hasattr(layer, "attn_backend"):
                continue
            impl = getattr(layer, "impl", None)
            layers[name] = {
                "backend": layer.attn_backend.get_name(),
                "cache": str(getattr(layer, "kv_cache_dtype", "")),
                "kind": _name(layer).rpartition(".")[2],
                "size": getattr(layer, "head_size", None),
                "window": str(getattr(layer, "sliding_window", None)),
                "sinks": getattr(impl, "sinks", None) is not None,
            }
        card = ""
        if torch.cuda.is_available():
            card = str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", ""))
        return {
            "runner": _name(runner),
            "drafter": _name(drafter),
            "model": _name(model),
            "layers": layers,
            "captured": compilation_counter.num_cudagraph_captured,
            "compiled": compilation_counter.num_graphs_seen,
            "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
            "block_size": config.cache_config.block_size,
            "prefix_cache": bool(config.cache_config.enable_prefix_caching),
            "card": card,
        }
