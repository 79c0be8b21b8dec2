"""A view into vLLM's worker, mixed into its class by ``worker_extension_cls``.

Runs in the engine's process. What it returns travels as msgpack: plain types only.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.compilation.counter import compilation_counter

from pair.install import digest

__all__ = ["PairView"]

_replays = 0


class PairView:
    """Methods that `collective_rpc` can call; vLLM allows no name that its worker has already."""

    model_runner: Any
    vllm_config: Any

    def pair_boot(self) -> dict[str, Any]:
        """What booted. From here on, replays of CUDA graphs are counted."""
        _count_replays()
        runner = self.model_runner
        drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
        compilation = self.vllm_config.compilation_config
        layers = compilation.static_forward_context
        return {
            "vllm": vllm.__version__,
            "vllm_file": str(Path(vllm.__file__).resolve()),
            "python": sys.version.split()[0],
            "torch": str(torch.__version__),
            "device": torch.cuda.get_device_name(),
            "runner": _name(runner),
            "drafter": _name(drafter),
            "rejection_sampler": _name(getattr(runner, "rejection_sampler", None)),
            "attention": {name: layer.attn_backend.get_name() for name, layer in layers.items()},
            "cudagraph_mode": str(compilation.cudagraph_mode),
            "capture_sizes": list(compilation.cudagraph_capture_sizes or []),
            "captured": compilation_counter.num_cudagraph_captured,
            "graph_memory_estimate": getattr(self, "cudagraph_memory_estimate", None),
            "drafter_rows": _rows(drafter),
        }

    def pair_modules(self, paths: list[str]) -> dict[str, list[str]]:
        """File and digest of each module, by its path in the wheel, as this process imports it."""
        found = {}
        for path in paths:
            module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
            file = Path(str(module.__file__)).resolve()
            found[path] = [str(file), digest(file)]
        return found

    def pair_take_replays(self) -> int:
        """CUDA graphs replayed since the last call."""
        global _replays
        taken, _replays = _replays, 0
        return taken


def _count_replays() -> None:
    replay = torch.cuda.CUDAGraph.replay

    def counting(graph: torch.cuda.CUDAGraph) -> None:
        global _replays  # noqa: PLW0603 - one worker a process
        _replays += 1
        replay(graph)

    torch.cuda.CUDAGraph.replay = counting  # type: ignore[method-assign]


def _name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _rows(drafter: object) -> dict[str, int]:
    """Rows of the buffers that model runner V1's drafter slices at the padded batch."""
    buffers = {name: getattr(drafter, name, None) for name in ("positions", "_slot_mapping_buffer")}
    return {name: len(buffer) for name, buffer in buffers.items() if isinstance(buffer, torch.Tensor)}
