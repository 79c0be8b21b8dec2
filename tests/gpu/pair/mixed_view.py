"""A view into vLLM's worker for caches of several formats: plants stale bytes, and watches what is done.

Mixed into the worker's class by ``worker_extension_cls``; runs in the engine's process.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch

from pair.caches import Region, distinct
from pair.worker import PairView

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MixedView"]

STALE = 0xFF  # NaN as fp8, as a 16-bit number, and as an NVFP4 scale
CHECKED_CALLS = 60
LOGITS = 1024  # of a row


class MixedView(PairView):
    """Methods that `collective_rpc` can call."""

    @torch.inference_mode()
    def mix_weights(self) -> int:
        """Give every engine the same weights, with activations of ordinary size; return how many tensors.

        vLLM's dummy weights are so small that an fp8 cache would hold zeros.
        """
        seen: set[int] = set()
        for whose, model in (("target", self.model_runner.model), ("drafter", _drafter(self).model)):
            for name, parameter in model.named_parameters():
                if parameter.data_ptr() in seen or not parameter.is_floating_point():
                    continue
                seen.add(parameter.data_ptr())
                _fill(f"{whose}.{name}", parameter.data)
        fused = getattr(getattr(_drafter(self).model, "model", None), "_build_fused_kv_buffers", None)
        if fused is None:
            raise LookupError("the drafter has no fused weights of its context")
        fused()
        return len(seen)

    @torch.inference_mode()
    def mix_poison(self) -> int:
        """Fill all blocks but the first, which belongs to nobody, with stale bytes; return how many bytes."""
        total = 0
        for pages in self._pages():
            pages[1:].fill_(STALE)
            total += pages[1:].numel()
        torch.cuda.synchronize()
        return total

    @torch.inference_mode()
    def mix_watch(self) -> None:
        """From here on, look at what is zeroed and at what target and drafter compute."""
        runner = self.model_runner
        self.mix_zeroed = {"calls": 0, "blocks": 0, "missed": 0, "touched": 0}
        self.mix_logits = {}
        self.mix_rows: list[list[float]] = []
        zeroer = getattr(runner, "_kv_block_zeroer", None) or getattr(runner, "kv_block_zeroer", None)
        if zeroer is not None:
            zeroer.zero_block_ids = self._checked(zeroer.zero_block_ids)
        for whose, model in (("target", runner.model), ("drafter", _drafter(self).model)):
            self.mix_logits[whose] = [0, torch.zeros((), dtype=torch.int64, device="cuda")]
            model.compute_logits = self._counted(whose, model.compute_logits)

    def mix_take_drafts(self) -> list[float]:
        """The logits of the first draft since the last call, some of each row; empty for none."""
        rows, self.mix_rows = self.mix_rows, []
        return rows[0] if rows else []

    def mix_seen(self) -> dict[str, Any]:
        """Return what was seen since `mix_watch`."""
        layers = self.vllm_config.compilation_config.static_forward_context
        targets = self.vllm_config.model_config.get_num_layers(self.vllm_config.parallel_config)
        names = [name for name, layer in layers.items() if hasattr(layer, "kv_cache_dtype")]
        return {
            "layers": {
                name: {
                    "dtype": layers[name].kv_cache_dtype,
                    "backend": layers[name].attn_backend.get_name(),
                    "window": layers[name].sliding_window,
                    "draft": int(name.split("layers.")[1].split(".")[0]) >= targets,
                }
                for name in names
            },
            "groups": [spec for group in self._plan().kv_cache_groups for spec in _specs(group)],
            "blocks": self._plan().num_blocks,
            "zeroed": self.mix_zeroed,
            "logits": {
                whose: {"rows": seen[0], "nan": int(seen[1])} for whose, seen in self.mix_logits.items()
            },
        }

    def _plan(self) -> Any:
        """The KV cache configuration."""
        return self.model_runner.kv_cache_config

    def _caches(self) -> list[torch.Tensor]:
        layers = self.vllm_config.compilation_config.static_forward_context.values()
        return [
            layer.kv_cache for layer in layers if isinstance(getattr(layer, "kv_cache", None), torch.Tensor)
        ]

    def _pages(self) -> list[torch.Tensor]:
        """Every region of memory that layers' caches lie in, once, as bytes: (blocks, bytes of a page)."""
        blocks = self._plan().num_blocks

        def as_bytes(cache: torch.Tensor, found: Region) -> torch.Tensor:
            whole = torch.empty(0, dtype=torch.uint8, device=cache.device).set_(cache.untyped_storage())
            return whole[found.start : found.start + blocks * found.page].view(blocks, found.page)

        return distinct(self._caches(), blocks, as_bytes)

    def _checked(self, zero: Callable[[list[int]], None]) -> Callable[[list[int]], None]:
        """Zeroing that is looked at: all of the new blocks, and nothing else."""

        def watched(ids: list[int]) -> None:
            seen = self.mix_zeroed
            seen["calls"] += 1
            seen["blocks"] += len(ids)
            if seen["calls"] > CHECKED_CALLS or not ids:
                zero(ids)
                return
            before = [_sums(pages) for pages in self._pages()]
            zero(ids)
            blocks = self._plan().num_blocks
            new = torch.tensor(sorted(set(ids)), device="cuda")
            for cache in self._caches():
                ratio = cache.shape[0] // blocks
                parts = (new[:, None] * ratio + torch.arange(ratio, device="cuda")).flatten()
                stale = cache[parts].contiguous().view(torch.uint8).flatten(1).any(1)
                seen["missed"] += int(stale.sum())
            for pages, old in zip(self._pages(), before, strict=True):
                changed = _sums(pages) != old
                changed[new] = False
                seen["touched"] += int(changed.sum())

        return watched

    def _counted(self, whose: str, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Logits that are looked at."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            logits = compute(*args, **kwargs)
            if logits is not None:
                seen = self.mix_logits[whose]
                seen[0] += len(logits)
                seen[1] += logits.isnan().any(1).sum()
                if whose == "drafter" and not self.mix_rows and not torch.cuda.is_current_stream_capturing():
                    self.mix_rows.append(logits[:3, :LOGITS].float().flatten().tolist())
            return logits

        return watched


def _drafter(worker: PairView) -> Any:
    runner = worker.model_runner
    return getattr(runner, "drafter", None) or runner.speculator


def _fill(name: str, tensor: torch.Tensor) -> None:
    """Weights that hang on the name alone; norms of queries and keys make attention choose."""
    if tensor.dim() == 1:
        tensor.fill_(0.0 if name.endswith("bias") else 1.5 if "q_norm" in name or "k_norm" in name else 1.0)
        return
    source = torch.Generator(device=tensor.device).manual_seed(zlib.crc32(name.encode()))
    values = torch.randn(tensor.shape, generator=source, device=tensor.device, dtype=torch.float32)
    spread = 0.05 if "embed" in name else tensor.shape[-1] ** -0.5
    tensor.copy_(values * spread)


def _sums(pages: torch.Tensor) -> torch.Tensor:
    """A number for each page that changes when the page does, nearly always."""
    return pages.view(torch.int32).sum(1, dtype=torch.int64)


def _specs(group: Any) -> list[dict[str, Any]]:
    """The specs of a cache group: how many layers, and the bytes of a page and of what is in it."""
    inner = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    specs = list(inner.values()) if inner else [group.kv_cache_spec]
    return [
        {
            "kind": type(spec).__name__,
            "layers": 1 if inner else len(group.layer_names),
            "block": spec.block_size,
            "mode": spec.kv_quant_mode.name,
            "page": spec.page_size_bytes,
            "values": spec.real_page_size_bytes,
        }
        for spec in specs
    ]
