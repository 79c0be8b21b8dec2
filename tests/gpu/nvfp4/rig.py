"""One attention layer of vLLM's Triton backend, without a model: its cache, its metadata and its two calls.

What a model runner would hand to the layer is made by vLLM's own code: the page's size by its spec, the
cache's view by its own reshaping, the metadata by the backend's builder. The cache lies between two
guards whose bytes nothing may touch. `prepare` must be called before anything else, and imports vLLM.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

__all__ = ["PLAIN", "Batch", "Features", "Layer", "Shape", "prepare", "table"]

GUARD = 4096  # bytes before and after a cache
POISON = 0xFF  # a byte that is not a number as an E4M3 scale and two of -6 as codes


def prepare(device: str) -> None:
    """Let vLLM be imported on *device*: ``cuda``, or ``cpu`` with Triton's interpreter.

    vLLM replaces Triton by a placeholder when no driver is active. A driver that can do nothing
    satisfies it; the interpreter never talks to it.
    """
    if device != "cpu":
        return
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.backends import backends
    from triton.runtime import driver

    backends["nvidia"].driver.is_active = staticmethod(lambda: True)
    driver.set_active(types.SimpleNamespace())
    from vllm.platforms import current_platform

    type(current_platform).num_compute_units = classmethod(lambda cls, device_id=0: 48)  # a GB10's


@dataclass(frozen=True)
class Shape:
    """A layer's sizes.

    *layout* is vLLM's name: NHD (a slot's heads together) or HND (a head's slots). *padding* is what a page
    has behind its keys and values, in bytes, as where layers of different precision share a pool.
    """

    q_heads: int = 32
    kv_heads: int = 8
    head: int = 128
    block: int = 16
    layout: str = "NHD"
    padding: int = 0

    def __str__(self) -> str:
        padded = f", {self.padding} bytes behind each" if self.padding else ""
        heads = f"{self.q_heads}/{self.kv_heads} heads of {self.head}"
        return f"{heads}, blocks of {self.block}, {self.layout}{padded}"


@dataclass(frozen=True)
class Features:
    """The attention of a layer beyond plain causal attention."""

    window: int | None = None
    softcap: float = 0.0
    sinks: bool = False
    alibi: bool = False
    causal: bool = True


PLAIN = Features()


@dataclass(frozen=True)
class Batch:
    """Requests of one step, by tokens: *contexts* are in the cache already, *queries* are new."""

    contexts: tuple[int, ...]
    queries: tuple[int, ...]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each request after the step."""
        return [context + query for context, query in zip(self.contexts, self.queries, strict=True)]

    @property
    def starts(self) -> list[int]:
        """Row of each request's first new token, and the number of rows."""
        starts = [0]
        for query in self.queries:
            starts.append(starts[-1] + query)
        return starts

    def blocks(self, block: int) -> int:
        """Return the number of blocks that the requests need in all."""
        return sum(-(-length // block) for length in self.lengths)


def table(batch: Batch, block: int, free: Sequence[int] | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a block table (requests x blocks, int32) that takes the *free* blocks in turn; block 0 pads it.

    Its width is a multiple of 8, as vLLM's is wherever the longest request is one of 128 tokens: upstream's
    kernel looks up the block of every token of a tile, also behind a request.
    """
    width = max(-(-length // block) for length in batch.lengths)
    width = -(-width // 8) * 8
    rows = torch.zeros(len(batch.queries), width, dtype=torch.int32)
    pool, taken = torch.as_tensor(free, dtype=torch.int32), 0
    for row, length in zip(rows, batch.lengths, strict=True):
        need = -(-length // block)
        row[:need] = pool[taken : taken + need]
        taken += need
    return rows.to(device)


def slots_of(row: torch.Tensor, block: int, first: int, last: int) -> torch.Tensor:
    """Return the slots (int64) of a request's tokens from *first* up to *last*, by its block-table row."""
    positions = torch.arange(first, last, device=row.device)
    return row[positions // block].long() * block + positions % block


@dataclass
class Layer:
    """One layer with its cache, of *blocks* blocks.

    Attributes:
        cache_dtype: vLLM's ``--kv-cache-dtype``.
        dtype: of queries, keys and values.
        raw: the cache's memory with its guards, as bytes.
        cache: what vLLM hands to the backend: blocks x 2 x slots x heads x bytes or values.
    """

    cache_dtype: str
    shape: Shape
    blocks: int
    device: torch.device
    dtype: torch.dtype = torch.bfloat16
    features: Features = PLAIN
    scales: tuple[float, float] = (1.0, 1.0)
    seed: int = 0
    sinks: torch.Tensor | None = None
    slopes: list[float] | None = None
    spec: Any = None
    impl: Any = None
    holder: torch.nn.Module = field(default_factory=torch.nn.Module)
    raw: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    cache: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    builder: Any = None

    def __post_init__(self) -> None:
        """Make the implementation, the cache and the metadata's builder, as a model runner does."""
        from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend as Backend
        from vllm.v1.attention.backends.utils import set_kv_cache_layout

        shape, features = self.shape, self.features
        set_kv_cache_layout(shape.layout)
        source = torch.Generator().manual_seed(self.seed)
        if features.sinks:
            self.sinks = torch.randn(shape.q_heads, generator=source).to(self.device)
        if features.alibi:
            self.slopes = [2.0 ** (-8.0 * (head + 1) / shape.q_heads) for head in range(shape.q_heads)]
        self.impl = Backend.get_impl_cls()(
            shape.q_heads,
            shape.head,
            shape.head**-0.5,
            shape.kv_heads,
            self.slopes,
            features.window,
            self.cache_dtype,
            features.softcap or None,
            sinks=self.sinks,
        )
        if self.slopes is not None:
            self.impl.alibi_slopes = self.impl.alibi_slopes.to(self.device)
        self._make_holder()
        self._make_cache(Backend)
        self.builder = Backend.get_builder_cls()(self.spec, ["layer"], self._config(), self.device)

    def _make_holder(self) -> None:
        """The module that owns the scales, as `Attention` does."""
        for name, value in (("k", self.scales[0]), ("v", self.scales[1]), ("q", 1.0), ("prob", 1.0)):
            self.holder.register_buffer(f"_{name}_scale", torch.tensor(value, device=self.device))
            setattr(self.holder, f"_{name}_scale_float", value)
        self.holder.kv_cache_dtype = self.cache_dtype

    def _make_cache(self, backend: Any) -> None:
        from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
        from vllm.v1.kv_cache_interface import FullAttentionSpec, get_kv_quant_mode
        from vllm.v1.worker.gpu.attn_utils import _reshape_attention_kv_cache

        shape = self.shape
        stored = self.dtype if self.cache_dtype == "auto" else STR_DTYPE_TO_TORCH_DTYPE[self.cache_dtype]
        spec = FullAttentionSpec(
            block_size=shape.block,
            num_kv_heads=shape.kv_heads,
            head_size=shape.head,
            head_size_v=shape.head,
            dtype=stored,
            kv_quant_mode=get_kv_quant_mode(self.cache_dtype),
            sliding_window=self.features.window,
        )
        if shape.padding:
            spec = replace(spec, page_size_padded=spec.page_size_bytes + shape.padding)
        self.spec = spec
        size = self.blocks * self.page_bytes
        self.raw = torch.zeros(size + 2 * GUARD, dtype=torch.int8, device=self.device)
        logical = backend.get_kv_cache_shape(
            self.blocks, shape.block, shape.kv_heads, shape.head, cache_dtype_str=self.cache_dtype
        )
        order = backend.get_kv_cache_stride_order()
        inside = self.raw[GUARD : GUARD + size]
        self.cache = _reshape_attention_kv_cache(inside, self.spec, logical, order, self.blocks, None)

    def _config(self) -> Any:
        from vllm.config import CUDAGraphMode

        shape = self.shape
        model = types.SimpleNamespace(
            get_num_attention_heads=lambda _: shape.q_heads,
            get_num_kv_heads=lambda _: shape.kv_heads,
            get_head_size=lambda: shape.head,
            dtype=self.dtype,
            max_model_len=131072,
        )
        sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]  # vLLM's own, up to 512
        compilation = types.SimpleNamespace(
            cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE,
            cudagraph_capture_sizes=sizes,
            static_forward_context={"layer": types.SimpleNamespace(num_heads=shape.q_heads)},
        )
        return types.SimpleNamespace(
            model_config=model,
            parallel_config=types.SimpleNamespace(),
            compilation_config=compilation,
            cache_config=types.SimpleNamespace(cache_dtype=self.cache_dtype, block_size=shape.block),
            speculative_config=None,
        )

    @property
    def page_bytes(self) -> int:
        """Bytes of one block, keys and values, by vLLM's spec."""
        return int(self.spec.page_size_bytes)

    @property
    def bytes(self) -> torch.Tensor:
        """The cache's memory without guards (blocks x bytes of a page, uint8)."""
        return self.raw[GUARD:-GUARD].view(torch.uint8).view(self.blocks, self.page_bytes)

    def poison(self) -> None:
        """Fill cache and guards with `POISON`."""
        self.raw.view(torch.uint8).fill_(POISON)

    def guards_held(self) -> bool:
        """Tell if the guards have the bytes that `poison` wrote."""
        edges = torch.cat([self.raw[:GUARD], self.raw[-GUARD:]]).view(torch.uint8)
        return bool((edges == POISON).all())

    def write(self, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Store keys and values (tokens x heads x values) in their slots; a slot of -1 is padding."""
        if self.device.type == "cpu" and self.cache_dtype == "auto":  # vLLM asks for the card's capability
            slot, within = slots // self.shape.block, slots % self.shape.block
            self.cache[slot, 0, within], self.cache[slot, 1, within] = key, value
            return
        self.impl.do_kv_cache_update(self.holder, key, value, self.cache, slots)

    def metadata(self, batch: Batch, blocks: torch.Tensor) -> Any:
        """Return what the backend's builder makes of *batch*, whose block table is *blocks*."""
        from vllm.v1.attention.backend import CommonAttentionMetadata

        starts = torch.tensor(batch.starts, dtype=torch.int32)
        rows = zip(blocks, batch.contexts, batch.lengths, strict=True)
        slots = torch.cat([slots_of(row, self.shape.block, first, last) for row, first, last in rows])
        common = CommonAttentionMetadata(
            query_start_loc=starts.to(self.device),
            query_start_loc_cpu=starts,
            seq_lens=torch.tensor(batch.lengths, dtype=torch.int32, device=self.device),
            num_reqs=len(batch.queries),
            num_actual_tokens=batch.starts[-1],
            max_query_len=max(batch.queries),
            max_seq_len=max(batch.lengths),
            block_table_tensor=blocks,
            slot_mapping=slots,
            causal=self.features.causal,
        )
        return self.builder.build(0, common)

    def query_as_served(self, query: torch.Tensor) -> torch.Tensor:
        """Return the query as `Attention.forward` hands it on: with an FP8 cache on CUDA it is FP8 too."""
        if self.impl.supports_quant_query_input and self.cache_dtype.startswith("fp8"):
            return query.clamp(-448, 448).to(torch.float8_e4m3fn)
        return query

    def attend(self, query: torch.Tensor, metadata: Any, output: torch.Tensor) -> torch.Tensor:
        """Return the backend's `forward` (tokens x heads x values), into *output*."""
        empty = query[:, : self.shape.kv_heads]
        self.impl.forward(self.holder, query, empty, empty, self.cache, metadata, output)
        return output


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
