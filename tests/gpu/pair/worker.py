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
from pair.parts import drafter_of, name_of

_replays = 0


class PairView:
    """Methods that `collective_rpc` can call; vLLM allows no name that its worker has already."""

    model_runner: Any
    vllm_config: Any

    def pair_boot(self) -> dict[str, Any]:
        """Return what booted. From here on, replays of CUDA graphs are counted."""
        _count_replays()
        runner = self.model_runner
        drafter = drafter_of(runner)
        compilation = self.vllm_config.compilation_config
        layers = compilation.static_forward_context
        return {
            "vllm": vllm.__version__,
            "vllm_file": str(Path(vllm.__file__).resolve()),
            "python": sys.version.split()[0],
            "torch": str(torch.__version__),
            "device": torch.cuda.get_device_name(),
            "card": str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", "")),
            "runner": name_of(runner),
            "drafter": name_of(drafter),
            "rejection_sampler": name_of(getattr(runner, "rejection_sampler", None)),
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

    def pair_binaries(self, paths: list[str]) -> dict[str, dict[str, Any]]:
        """Where this process has each extension from, by its path in the wheel.

        ``files``: file and digest of all that is mapped under that path, wherever it lies; ``before``:
        whether vLLM had loaded it by itself before it was asked for here.
        """
        before = _mapped()
        for path in paths:
            importlib.import_module(path.partition(".")[0].replace("/", "."))
        mapped = _mapped()
        return {
            path: {
                "files": [[str(file), digest(file)] for file in mapped if str(file).endswith(f"/{path}")],
                "before": any(str(file).endswith(f"/{path}") for file in before),
            }
            for path in paths
        }

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


def _mapped() -> list[Path]:
    """The files that are mapped into this process (proc(5)), each once."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sorted({Path(line.split(maxsplit=5)[5]) for line in lines if len(line.split()) > 5})


def _rows(drafter: object) -> dict[str, int]:
    """Rows of the buffers that model runner V1's drafter slices at the padded batch."""
    buffers = {name: getattr(drafter, name, None) for name in ("positions", "_slot_mapping_buffer")}
    return {name: len(buffer) for name, buffer in buffers.items() if isinstance(buffer, torch.Tensor)}
