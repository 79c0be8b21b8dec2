"""Caches of the tree under test: how they lie in memory, and where upstream finds what is in them.

0.24.0 has a dimension for K and V, 0.33.0 lays both of a head into one row, or an NVFP4 head's into two rows
of bytes. Both have upstream's own views of the codes and scales in a page, which the carry has to agree with.
"""

# ruff: noqa: SLF001 - FlashInfer's views are private to its backend

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from vllm.v1.attention.backends import utils
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.kv_cache_interface import FullAttentionSpec, get_kv_quant_mode

if TYPE_CHECKING:
    from attending import Shape

Pair = tuple[torch.Tensor, torch.Tensor]

NOBODY = 0x7F  # as a scale, NaN
ROWS = not hasattr(TritonAttentionBackend, "get_kv_cache_shape")  # 0.33.0's
DTYPES = {"int8_per_token_head": torch.int8}


def empty_cache(shape: Shape, blocks: int) -> torch.Tensor:
    """A cache as the runner makes it, in the order of the layout; unwritten scales are NaN."""
    dtype = shape.dtype if shape.cache_dtype == "auto" else DTYPES.get(shape.cache_dtype, torch.uint8)
    sizes, order = (_rows if ROWS else _sides)(shape, blocks, dtype)
    memory = torch.empty([sizes[i] for i in order], dtype=dtype)
    memory.view(torch.uint8).fill_(NOBODY if dtype == torch.uint8 else 0)
    return memory.permute([order.index(i) for i in range(len(order))])


def _sides(shape: Shape, blocks: int, _: torch.dtype) -> tuple[Any, Any]:
    cast("Any", utils).set_kv_cache_layout(shape.layout)
    backend = cast("Any", TritonAttentionBackend)
    sizes = backend.get_kv_cache_shape(
        blocks, shape.block_size, shape.kv_heads, shape.head_size, shape.cache_dtype
    )
    return sizes, backend.get_kv_cache_stride_order()


def _rows(shape: Shape, blocks: int, dtype: torch.dtype) -> tuple[Any, Any]:
    spec = FullAttentionSpec(
        block_size=shape.block_size,
        num_kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        dtype=dtype,
        kv_quant_mode=get_kv_quant_mode(shape.cache_dtype),
    )
    spec = cast("Any", TritonAttentionBackend).customize_spec(spec)
    content = spec.state_content_size_bytes // dtype.itemsize
    sizes = (blocks, spec.num_heads, shape.block_size, content)
    return sizes, (0, 1, 2, 3) if shape.layout == "HND" else (0, 2, 1, 3)


def sides(cache: torch.Tensor, head_size: int) -> Pair:
    """K and V of a cache that is not packed: block, slot, head, value."""
    if not ROWS:
        return cache[:, 0], cache[:, 1]
    key, value = cache.transpose(1, 2).split(head_size, dim=-1)
    return key, value


def packed(cache: torch.Tensor) -> tuple[Pair, Pair]:
    """Codes of K and V, and their scales, by upstream's views: block, slot, head, byte."""
    if not ROWS:
        from vllm.utils.torch_utils import nvfp4_kv_cache_split_views

        views: tuple[Pair, Pair] = nvfp4_kv_cache_split_views(cache)
        return views
    from vllm.v1.attention.backends import flashinfer

    *pairs, layout = flashinfer._nvfp4_kv_views(cache, cache.shape[1] // 2)
    codes, scales = (
        tuple(view.transpose(1, 2) if layout == "HND" else view for view in pair) for pair in pairs
    )
    return codes, scales


def between_layers(layers: int) -> torch.Tensor:
    """Return two blocks of 16 tokens with heads of 64, which have other layers' bytes between them."""
    if ROWS:
        return torch.zeros(2, 4, layers, 16, 36, dtype=torch.uint8)[:, :, 1]
    # Blocks, heads, layers, K and V, slots: the HND layout of blocks that hold all layers.
    return torch.zeros(2, 2, layers, 2, 16, 36, dtype=torch.uint8)[:, :, 1].permute(0, 2, 3, 1, 4)
