"""Caches, what is written to them by the Triton attention backend, and attention over them in float64."""

# ruff: noqa: SLF001 - what the layer keeps to itself is in question here

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
from pages import empty_cache, packed, sides
from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl

CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
SEGMENTS, MOST_SEGMENTS = 16, 64
BEHIND = 64  # entries of memory behind a block table


def decoded(codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor) -> torch.Tensor:
    """Values of a packed cache in float64: code times scale times the layer's scale."""
    values = torch.tensor([*CODES, *(-code for code in CODES)], dtype=torch.float64)
    pairs = torch.stack([values[(codes & 15).long()], values[(codes >> 4).long()]], dim=-1)
    return pairs.flatten(-2) * scales.double().repeat_interleave(16, -1) * global_scale.double()


class Shape(NamedTuple):
    """A cache, the requests in it, and how they are attended to."""

    head_size: int = 64
    block_size: int = 16
    heads: int = 4
    kv_heads: int = 2
    queries: tuple[int, ...] = (1, 5)
    lengths: tuple[int, ...] = (37, 20)
    layout: str = "NHD"
    window: int | None = None
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    causal: bool = True
    segmented: bool = False
    cache_dtype: str = "nvfp4"
    dtype: torch.dtype = torch.float32
    cold: bool = False  # all scores are far below zero
    image: tuple[int, int] | None = None  # tokens, from and to, that see each other
    clamped: bool = False  # but no further back than the window
    longest: int = 0  # query that a step names, where it is not the longest one


# Between them: both layouts and block sizes, one tile and several, and every kind of attention.
CASES = (
    Shape(layout="HND", causal=False, queries=(3, 9)),
    Shape(head_size=128, block_size=32, queries=(1, 1), lengths=(70, 20), segmented=True, layout="HND"),
    Shape(head_size=96, queries=(1, 1), lengths=(70, 20), segmented=True, window=20),
    Shape(head_size=96, queries=(3, 30), lengths=(70, 40), window=20, softcap=5.0),
    Shape(head_size=256, heads=2, kv_heads=2, alibi=True, block_size=32, layout="HND"),
    Shape(sinks=True, dtype=torch.float16),
    Shape(window=8, causal=False, queries=(4, 4)),
    Shape(queries=(30, 18), lengths=(37, 20), image=(9, 17)),
    Shape(queries=(30, 18), lengths=(37, 20), image=(10, 16), window=8, layout="HND"),
    Shape(head_size=512, heads=2, kv_heads=1, lengths=(20, 37), queries=(1, 20), dtype=torch.float16),
)
# What a CUDA card decodes by PTX: the launches of the cases above, and every type of Q.
REPLAYED = (
    Shape(
        head_size=128, block_size=32, queries=(1, 1), lengths=(70, 20), segmented=True, dtype=torch.bfloat16
    ),
    Shape(head_size=96, queries=(3, 30), lengths=(70, 40), layout="HND", dtype=torch.float16),
    Shape(head_size=512, heads=2, kv_heads=1, lengths=(20, 37), queries=(1, 20), dtype=torch.bfloat16),
    Shape(),
)
CONTROLS = (
    Shape(cache_dtype="auto", queries=(3, 1), window=20),
    Shape(cache_dtype="auto", queries=(1, 1), segmented=True, layout="HND"),
    Shape(cache_dtype="fp8"),
    Shape(cache_dtype="int8_per_token_head"),
    Shape(cache_dtype="int8_per_token_head", queries=(1, 1), segmented=True),
)


@dataclass
class Scene:
    """A cache with what was written to it, and who wrote it."""

    shape: Shape
    impl: TritonAttentionImpl
    layer: SimpleNamespace
    cache: torch.Tensor
    table: torch.Tensor  # with memory behind it that no kernel may read
    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    def slots(self, request: int) -> torch.Tensor:
        """Where the tokens of *request* are."""
        position = torch.arange(self.shape.lengths[request])
        size = self.shape.block_size
        return self.table[request][position // size].long() * size + position % size


def empty(shape: Shape, blocks: int) -> Scene:
    """A layer of *shape* and its cache, to which nobody has written."""
    impl = TritonAttentionImpl(
        num_heads=shape.heads,
        head_size=shape.head_size,
        scale=shape.head_size**-0.5,
        num_kv_heads=shape.kv_heads,
        alibi_slopes=[0.1 * (1 + head) for head in range(shape.heads)] if shape.alibi else None,
        sliding_window=shape.window,
        kv_cache_dtype=shape.cache_dtype,
        logits_soft_cap=shape.softcap,
        sinks=torch.linspace(-1, 1, shape.heads) if shape.sinks else None,
    )
    layer = SimpleNamespace(
        _q_scale=torch.ones(()),
        _k_scale=torch.tensor(0.37),
        _v_scale=torch.tensor(0.02),
        mm_prefix_clamp_sliding_window=shape.clamped,
    )
    return Scene(shape, impl, layer, empty_cache(shape, blocks), torch.empty(0), [], [])


def fill(shape: Shape) -> Scene:
    """Have the backend write random keys and values for all requests of *shape*."""
    generator = torch.Generator().manual_seed(0)
    counts = [-(-length // shape.block_size) for length in shape.lengths]
    scene = empty(shape, sum(counts) + 1)
    blocks = (torch.randperm(sum(counts), generator=generator) + 1).int().split(counts)
    table = torch.nn.utils.rnn.pad_sequence(list(blocks), batch_first=True)
    guarded = torch.cat([table.flatten(), table.new_zeros(BEHIND)])
    scene.table = guarded[: table.numel()].view(table.shape)
    for request, length in enumerate(shape.lengths):
        size = (2, length, shape.kv_heads, shape.head_size)
        key, value = torch.randn(size, generator=generator).to(shape.dtype)
        key = key.abs() + 1 if shape.cold else key
        scene.keys.append(key)
        scene.values.append(value)
        write(scene, key, value, scene.slots(request))
    return scene


def write(scene: Scene, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    """Write to the cache by the backend, or as a kernel of its does that wants to know the card."""
    kind, size = scene.shape.cache_dtype, scene.shape.block_size
    if kind not in {"auto", "fp8"}:
        scene.impl.do_kv_cache_update(cast("Any", scene.layer), key, value, scene.cache, slots)
        return
    scales = (scene.layer._k_scale, scene.layer._v_scale)
    for x, scale, side in zip((key, value), scales, sides(scene.cache, scene.shape.head_size), strict=True):
        row = (x / scale).to(torch.float8_e4m3fn).view(torch.uint8) if kind == "fp8" else x
        side[slots // size, slots % size] = row


def stored(scene: Scene, request: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of *request* as the cache holds them, or as they are where that is near enough."""
    size, layer = scene.shape.block_size, scene.layer
    block, slot = scene.slots(request) // size, scene.slots(request) % size
    if scene.shape.cache_dtype == "fp8":
        key, value = (
            side[block, slot].view(torch.float8_e4m3fn).double()
            for side in sides(scene.cache, scene.shape.head_size)
        )
        return key * layer._k_scale, value * layer._v_scale
    if scene.shape.cache_dtype != "nvfp4":
        return scene.keys[request].double(), scene.values[request].double()
    codes, scales = packed(scene.cache)
    factors = (layer._k_scale, layer._v_scale)
    key, value = (
        decoded(code[block, slot], scale[block, slot], factor)
        for code, scale, factor in zip(codes, scales, factors, strict=True)
    )
    return key, value


def attended(scene: Scene, query: torch.Tensor, request: int) -> torch.Tensor:
    """Attention of the queries of *request* in float64."""
    shape = scene.shape
    length, count = shape.lengths[request], len(query)
    keys, values = (x.repeat_interleave(shape.heads // shape.kv_heads, 1) for x in stored(scene, request))
    scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * shape.head_size**-0.5
    if shape.softcap:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    position = torch.arange(length)
    distance = torch.arange(length - count, length)[:, None] - position
    if scene.impl.alibi_slopes is not None:
        scores = scores - scene.impl.alibi_slopes.double()[:, None, None] * distance
    seen = distance >= 0 if shape.causal else torch.ones_like(distance, dtype=torch.bool)
    if shape.window is not None:
        seen = seen & (distance.abs() < shape.window)
    if shape.image is not None:
        inside = (position >= shape.image[0]) & (position <= shape.image[1])
        inside = inside[length - count :, None] & inside
        seen = seen | (inside & (distance < shape.window) if shape.clamped and shape.window else inside)
    scores = scores.masked_fill(~seen, -torch.inf)
    if scene.impl.sinks is not None:
        sink = scene.impl.sinks.double()[:, None, None].expand(-1, count, 1)
        scores = torch.cat([scores, sink], dim=-1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :length], values)


def attention_error(shape: Shape) -> float:
    """How far, relative to its size, the backend's output is from attention in float64."""
    scene = fill(shape)
    query = torch.randn(sum(shape.queries), shape.heads, shape.head_size).to(shape.dtype)
    query = -10 * (query.abs() + 1) if shape.cold else query
    output = read(scene, query)
    parts = query.split(shape.queries)
    wanted = torch.cat([attended(scene, part, request) for request, part in enumerate(parts)])
    return float((output.double() - wanted).norm() / wanted.norm())


def read(scene: Scene, query: torch.Tensor) -> torch.Tensor:
    """What the backend gives for the queries of all requests."""
    shape = scene.shape
    starts = torch.tensor([0, *shape.queries]).cumsum(0)
    width = 1 << (shape.head_size - 1).bit_length()
    partial = (len(query) * MOST_SEGMENTS if shape.segmented else 1, shape.heads)
    metadata = SimpleNamespace(
        num_actual_tokens=len(query),
        max_query_len=shape.longest or max(shape.queries),
        query_start_loc=starts.int(),
        max_seq_len=max(shape.lengths),
        seq_lens=torch.tensor(shape.lengths, dtype=torch.int32),
        block_table=scene.table,
        causal=shape.causal,
        use_cascade=False,
        seq_threshold_3D=len(shape.lengths) if shape.segmented else 0,
        num_par_softmax_segments=SEGMENTS,
        softmax_segm_output=torch.full((*partial, width), torch.nan),
        softmax_segm_max=torch.full(partial, torch.nan),
        softmax_segm_expsum=torch.full(partial, torch.nan),
        mm_prefix_range_tensor=None
        if shape.image is None
        else torch.tensor([[shape.image]] * len(shape.queries), dtype=torch.int32),
        rswa_prefix_lens=None,
        rswa_window=None,
    )
    output = torch.full_like(query, torch.nan)
    forward: Any = scene.impl.forward
    forward(scene.layer, query, None, None, scene.cache, metadata, output)
    return output


def limit(shape: Shape) -> float:
    """Largest error that rounding explains; of int8, the cache's own."""
    error = {torch.float16: 2e-3, torch.bfloat16: 1e-2}.get(shape.dtype, 1e-5)
    return 2e-2 if shape.cache_dtype == "int8_per_token_head" else error
