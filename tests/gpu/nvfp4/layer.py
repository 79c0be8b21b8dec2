"""Read one attention layer over an NVFP4 cache by the patched tree's kernels alone."""

from __future__ import annotations

import enum
import logging
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from nvfp4 import coder

BLOCK = 16
SCALES = (0.37, 0.02)  # the layer's, of K and of V


class KVQuantMode(enum.IntEnum):
    """The modes that the kernels ask for, by 0.33's numbers; 0.24 is told its mode of NVFP4 by name."""

    NONE = 0
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4
    NVFP4 = 5

    @property
    def is_nvfp4(self) -> bool:
        """Return whether the cache is packed."""
        return self == KVQuantMode.NVFP4


class Platform:
    """The part of vLLM's platform that the kernels ask for."""

    def __init__(self) -> None:
        self.capability = torch.cuda.get_device_capability()

    def is_cuda(self) -> bool:
        """Return true."""
        return True

    def fp8_dtype(self) -> torch.dtype:
        """Return E4M3."""
        return torch.float8_e4m3fn

    def is_device_capability_family(self, family: int) -> bool:
        """Return whether the card's major capability is that of *family*."""
        return self.capability[0] == family // 10

    def num_compute_units(self, device: int = 0) -> int:
        """Return the number of multiprocessors."""
        return torch.cuda.get_device_properties(device).multi_processor_count


def load(tree: Path) -> tuple[Any, Any]:
    """Import the reader of *tree* and its NVFP4 module, with stand-ins for the rest of vLLM."""
    import triton
    import triton.language as tl

    def module(name: str, **names: Any) -> None:
        made = types.ModuleType(name)
        vars(made).update(names)
        made.__path__ = [str(tree.joinpath(*name.split(".")))]
        sys.modules[name] = made

    module("vllm")
    module("vllm.envs", VLLM_BATCH_INVARIANT=False)
    sys.modules["vllm"].envs = sys.modules["vllm.envs"]  # type: ignore[attr-defined]
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.platforms", current_platform=Platform())
    module("vllm.triton_utils", tl=tl, triton=triton)
    module("vllm.utils")
    module("vllm.utils.torch_utils", nvfp4_kv_cache_full_dim=lambda head: head // 2 + head // 16)
    for name in ("vllm.v1", "vllm.v1.attention", "vllm.v1.attention.ops"):
        module(name)
    module("vllm.v1.kv_cache_interface", KVQuantMode=KVQuantMode)
    from vllm.v1.attention.ops import triton_nvfp4_kv as kv
    from vllm.v1.attention.ops import triton_unified_attention as reader

    return reader, kv


@dataclass(frozen=True)
class Case:
    """Requests with *lengths* tokens in all, the last *queries* of them new; one layer of heads.

    Its buffers are made for heads of *builder* where these are larger, as a target's beside its drafter's.
    """

    queries: tuple[int, ...]
    lengths: tuple[int, ...]
    heads: int = 32
    kv_heads: int = 8
    size: int = 128
    builder: int = 0
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    causal: bool = True
    dtype: torch.dtype = torch.bfloat16

    @property
    def blocks(self) -> int:
        """Return how many blocks the requests need."""
        return sum(-(-length // BLOCK) for length in self.lengths)

    def __str__(self) -> str:
        count, query, length = len(self.queries), max(self.queries), max(self.lengths)
        kind = "decode" if query == 1 else f"drafts of {query}"
        found = f"{kind}, {length // 1024}k x {count}, {self.heads}/{self.kv_heads} heads of {self.size}"
        found += ", sinks" if self.sinks else ""
        return found + (f", window of {self.window}" if self.window else "")


class Layer:
    """A cache in NVFP4 with made-up tokens, and the buffers of one layer."""

    def __init__(self, reader: Any, kv: Any, case: Case, blocks: int, *, seed: int) -> None:
        self.reader, self.kv, self.blocks = reader, kv, blocks
        # 0.33 has two rows of bytes for a head in NVFP4, 0.24 a dimension for K and V: the same pages.
        in_rows = hasattr(reader, "MAX_3D_QUERY_LEN")
        self.pages = torch.full(
            (blocks, 2, BLOCK * case.kv_heads * case.size * 9 // 16), 0x7F, dtype=torch.uint8, device="cuda"
        )  # NaN as scales
        width = case.size * 9 // 16
        self.packed = (
            self.pages.view(blocks, BLOCK, 2 * case.kv_heads, width).transpose(1, 2)
            if in_rows
            else self.pages.view(blocks, 2, BLOCK, case.kv_heads, width)
        )
        self.scales = torch.tensor(SCALES, device="cuda")
        source = torch.Generator(device="cuda").manual_seed(seed)
        some = min(blocks, 256)
        size = (some * BLOCK, case.kv_heads, case.size)
        key, value = (torch.randn(size, generator=source, device="cuda").to(case.dtype) for _ in range(2))
        slots = torch.arange(some * BLOCK, device="cuda")
        kv.nvfp4_reshape_and_cache(key, value, self.packed, slots, *self.scales)
        self.written = some, (key, value)
        for begin in range(some, blocks, some):
            self.pages[begin : begin + some] = self.pages[: min(some, blocks - begin)]
        largest = max(case.size, case.builder)
        self.buffers = kv.nvfp4_segment_buffers(case.heads, largest, case.dtype, torch.device("cuda"))
        self.sinks = torch.linspace(-1, 1, case.heads, device="cuda") if case.sinks else None

    def attend(self, case: Case, step: Step, output: torch.Tensor) -> None:
        """Read *step* of *case* by vLLM's wrapper of the kernel."""
        key, value = self.kv.nvfp4_code_views(self.packed)
        outputs, maxima, sums = self.buffers
        few = 128 // case.kv_heads  # requests that upstream splits the decode of
        self.reader.unified_attention(
            step.query, key, value, output,
            cu_seqlens_q=step.starts, max_seqlen_q=max(case.queries),
            seqused_k=step.lengths, max_seqlen_k=max(case.lengths),
            softmax_scale=case.size**-0.5, causal=case.causal,
            window_size=(case.window - 1, 0 if case.causal else case.window - 1),
            block_table=step.table, softcap=case.softcap, q_descale=None,
            k_descale=self.scales[0], v_descale=self.scales[1],
            seq_threshold_3D=few, num_par_softmax_segments=16,
            softmax_segm_output=outputs, softmax_segm_max=maxima, softmax_segm_expsum=sums,
            sinks=self.sinks, kv_quant_mode=KVQuantMode.NVFP4,
        )  # fmt: skip


class Step:
    """Queries, lengths and block table of one step."""

    def __init__(self, case: Case, blocks: int, seed: int) -> None:
        source = torch.Generator(device="cuda").manual_seed(seed)
        rows = sum(case.queries)
        query = torch.randn(rows, case.heads, case.size, generator=source, device="cuda")
        self.query = query.to(case.dtype)
        self.starts = torch.tensor([0, *case.queries], device="cuda").cumsum(0).int()
        self.lengths = torch.tensor(case.lengths, dtype=torch.int32, device="cuda")
        need = [-(-length // BLOCK) for length in case.lengths]
        width = -(-max(need) // 16) * 16
        order = torch.randperm(blocks, generator=source, device="cuda").int()
        self.table = torch.zeros(len(need), width, dtype=torch.int32, device="cuda")
        taken = 0
        for row, count in zip(self.table, need, strict=True):
            row[:count] = order[taken : taken + count]
            taken += count


def wrong_bytes(layer: Layer) -> int:
    """Count the bytes of the written blocks that are not those of a coder that looks values up in tables."""
    some, sides = layer.written
    written = layer.pages[:some].flatten(1)
    wanted = torch.full_like(written, 0x7F)
    slots = torch.arange(some * BLOCK, device="cuda")
    for side, (x, scale) in enumerate(zip(sides, layer.scales, strict=True)):
        coder.write(wanted, coder.encode(x, float(scale)), slots, BLOCK, side)
    return int((wanted != written).sum())


def decoded(layer: Layer, case: Case, row: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values (tokens x heads x values, float64) of the request with the blocks *row*."""
    pages = layer.pages[row[: -(-length // BLOCK)].long()]
    codes_bytes = BLOCK * case.kv_heads * case.size // 2
    found = []
    signed = [*coder.MAGNITUDES, *(-code for code in coder.MAGNITUDES)]
    table = torch.tensor(signed, dtype=torch.float64, device="cuda")
    for side in (0, 1):
        flat = pages[:, side]
        codes = flat[:, :codes_bytes].reshape(-1, case.kv_heads, case.size // 2)
        scales = flat[:, codes_bytes:].reshape(-1, case.kv_heads, case.size // 16)
        values = torch.stack([table[(codes & 15).long()], table[(codes >> 4).long()]], -1).flatten(-2)
        scale = scales.contiguous().view(torch.float8_e4m3fn).double().repeat_interleave(16, -1)
        found.append((values * scale * float(layer.scales[side]))[:length])
    return found[0], found[1]


def expected(layer: Layer, case: Case, step: Step) -> torch.Tensor:
    """Attention in float64 over the decoded cache."""
    parts = []
    group = case.heads // case.kv_heads
    for row, query, length in zip(step.table, step.query.split(case.queries), case.lengths, strict=True):
        key, value = (x.repeat_interleave(group, 1) for x in decoded(layer, case, row, length))
        scores = torch.einsum("qhd,khd->hqk", query.double(), key) * case.size**-0.5
        if case.softcap:
            scores = case.softcap * torch.tanh(scores / case.softcap)
        at = torch.arange(length, device="cuda")
        distance = at[length - len(query) :][:, None] - at
        seen = distance >= 0 if case.causal else torch.ones_like(distance, dtype=torch.bool)
        if case.window:
            seen &= distance.abs() < case.window
        scores = scores.masked_fill(~seen, -torch.inf)
        if layer.sinks is not None:
            scores = torch.cat([scores, layer.sinks.double()[:, None, None].expand(-1, len(query), 1)], -1)
        parts.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :length], value))
    return torch.cat(parts)


@contextmanager
def segmented(layer: Layer, segments: int | None) -> Iterator[None]:
    """Have contexts split into *segments*; None leaves the number to the code under test."""
    if segments is None:
        yield
        return
    _, heads, width = layer.buffers[0].shape
    rows = (1 << 16) * heads
    big = [torch.full((rows * each,), torch.nan, device="cuda") for each in (width, 1, 1)]
    with (
        mock.patch.object(layer.reader, "nvfp4_segments", return_value=segments),
        mock.patch.object(layer, "buffers", big),
    ):
        yield
