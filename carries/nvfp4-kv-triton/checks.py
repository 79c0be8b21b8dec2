"""Checks of the NVFP4 cache of the Triton backend on every release: bytes, reads, launches.

Keys and values go through `TritonAttentionImpl.do_kv_cache_update` into a cache that the backend gives
shape and strides, and through `forward` out of it; Triton's interpreter runs both kernels. What is
written is held, bit for bit, against a coder that looks values up in the formats' tables. What is read
is held against attention in float64 on the decoded cache. Bytes that were not written are NaNs as scales.
What a CUDA card runs instead of what the interpreter does is checked by `replay`.
"""

# ruff: noqa: SLF001 - what the layer keeps to itself is in question here

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import Any
from unittest import mock

import torch
from attending import (
    BEHIND,
    CASES,
    CODES,
    CONTROLS,
    REPLAYED,
    Shape,
    attention_error,
    empty,
    fill,
    limit,
    read,
    write,
)
from pages import between_layers, empty_cache, packed
from probekit import expect
from vllm.v1.attention.backends import triton_attn
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVQuantMode

LAYOUTS = ("NHD", "HND")
MANY = 2000  # queries of a request, enough to fill a card without a split
SM_121 = (121, 99 << 10)  # the architecture, and bytes of shared memory that a block may have
MODES = {"auto": KVQuantMode.NONE, "nvfp4": KVQuantMode.NVFP4, "fp8": KVQuantMode.FP8_PER_TENSOR}
HEADS = (
    (72, torch.bfloat16, False),  # no whole groups
    (512, torch.bfloat16, True),
    (528, torch.bfloat16, False),
    (256, torch.float32, True),
    (272, torch.float32, False),
)  # and whether they can be had


def nearest(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Index of the value in *table* that is nearest to each of *x*; of two, the even index."""
    x, table = x.double(), table.double()
    above = torch.searchsorted(table, x).clamp(1, len(table) - 1)
    below = above - 1
    down, up = x - table[below], table[above] - x
    even = torch.where(below % 2 == 0, below, above)
    return torch.where(down < up, below, torch.where(up < down, above, even))


def coded(x: torch.Tensor, global_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes of codes and bytes of scales for heads *x*, by the tables of E2M1 and E4M3."""
    groups = x.float().unflatten(-1, (-1, 16))
    magnitudes = groups.abs().nan_to_num(nan=0.0, posinf=torch.inf)
    largest = magnitudes.amax(-1)
    scales = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    scale = nearest((largest / (6 * global_scale)).clamp(max=448), scales)
    scale = torch.where(largest > 0, scale.clamp(min=1), 0)
    inverse = torch.where(scale == 0, 0, 1 / (scales[scale] * global_scale))
    code = nearest((magnitudes * inverse[..., None]).clamp(max=6), torch.tensor(CODES))
    code = (code + 8 * torch.signbit(groups)).flatten(-2)
    scale = torch.where(groups.isnan().any(-1), 0x7F, scale)
    return (code[..., 0::2] + 16 * code[..., 1::2]).to(torch.uint8), scale.to(torch.uint8)


def hard_values(head_size: int) -> torch.Tensor:
    """Heads in which every rule of the format decides something: ties, zeros, limits, NaNs."""
    step = torch.arange(head_size) % 32 * 0.125 - 2.0
    rows = [
        step,
        # Two ties of E4M3, and ties of E2M1 at scale 1.5.
        *(torch.where(step.abs() > 1.8, most, step * 1.5) for most in (6.375, 7.125, 9.0)),
        torch.zeros(head_size),
        -torch.zeros(head_size),
        step.sign() * 2.0**-12,  # the scale would round to nothing
        step * 2.0**-9,  # scales below E4M3's normal range
        step * 5000,  # the scale saturates
        torch.where(step == 1.0, torch.nan, step),
        torch.where(step == 1.0, torch.inf, step),
        torch.where(step == -1.0, -torch.inf, step),
    ]
    random = torch.randn(9, head_size, generator=torch.Generator().manual_seed(1))
    return torch.stack([*rows, *(random * 4.0 ** torch.arange(-4, 5)[:, None])])


def check_packing(head_size: int, layout: str, dtype: torch.dtype) -> None:
    """Codes and scales are the table coder's, in their slots, and no other byte changes.

    Codes of a group whose scale is NaN mean nothing, and are left out.
    """
    shape = Shape(head_size=head_size, layout=layout, block_size=32 if layout == "HND" else 16, dtype=dtype)
    heads = hard_values(head_size).to(dtype)
    key = torch.stack([heads, heads.flip(0)], dim=1)
    value = torch.stack([heads.flip(0) * 0.25, heads * 0.25], dim=1)
    slots = torch.randperm(5 * shape.block_size, generator=torch.Generator().manual_seed(2))[: len(heads)]
    slots[-1] = -1  # padding
    for factors in ((1.0, 0.37), (0.37, 1.0)):
        scene = empty(shape, blocks=5)
        scene.layer._k_scale, scene.layer._v_scale = torch.tensor(factors)
        write(scene, key, value, slots)
        wanted = empty_cache(shape, 5)
        codes, scales = packed(wanted)
        written, _ = packed(scene.cache)
        kept = slots >= 0
        block, slot = slots[kept] // shape.block_size, slots[kept] % shape.block_size
        for x, code, scale, factor, found in zip((key, value), codes, scales, factors, written, strict=True):
            right, scale.view(torch.uint8)[block, slot] = coded(x[kept], torch.tensor(factor))
            nothing = x[kept].unflatten(-1, (-1, 16)).isnan().any(-1).repeat_interleave(8, -1)
            code[block, slot] = torch.where(nothing, found[block, slot], right)
        wrong = int((scene.cache != wanted).sum())
        case = f"{head_size} {layout} {dtype}, scales {factors}"
        expect(not wrong, f"{case}: {wrong} bytes are not the coder's")


def spec(cache_dtype: str, **more: Any) -> FullAttentionSpec:
    """Return the specification of the cache of a layer with eight heads of 128."""
    dtype = {"auto": torch.bfloat16}.get(cache_dtype, torch.uint8)
    size: dict[str, Any] = {"block_size": 16, "num_kv_heads": 8, "head_size": 128}
    return FullAttentionSpec(**size, dtype=dtype, kv_quant_mode=MODES[cache_dtype], **more)


def check_impl() -> None:
    """Queries stay as they are, and what cannot be read or written is refused or not used."""
    with (
        mock.patch.dict(os.environ, VLLM_TRITON_ATTN_USE_TD="1", VLLM_TRITON_USE_TD="1"),
        mock.patch.object(triton_attn.rocm_aiter_ops, "is_enabled", return_value=True),
        mock.patch.object(triton_attn.current_platform, "is_cuda", return_value=True),
        mock.patch.object(triton_attn.current_platform, "get_device_name", return_value="a card"),
    ):
        scene = empty(Shape(), blocks=2)
        expect(not scene.impl.supports_quant_query_input, "queries of an NVFP4 cache would be cut to FP8")
        expect(not scene.impl.use_td, "tensor descriptors would load codes as values")
        expect(not scene.impl.fused_rope_kvcache_supported(), "a fused kernel would write unpacked keys")
    scene.cache = between_layers(3)
    before = scene.cache.clone()
    with suppress(ValueError):
        write(scene, torch.ones(1, 2, 64), torch.ones(1, 2, 64), torch.zeros(1, dtype=torch.int64))
    expect(scene.cache.equal(before), "pages were written to that hold other layers' bytes between")


def check_table_reads() -> None:
    """No entry behind the block table is read, also where the last tile is longer than what is left."""
    from triton.runtime.interpreter import InterpreterBuilder

    scene = fill(Shape(queries=(1, 4), lengths=(20, 70), segmented=True))
    end = scene.table.data_ptr() + 4 * scene.table.numel()
    load, reads, behind = InterpreterBuilder.create_masked_load, 0, 0

    def watched(builder: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        nonlocal reads, behind
        distance = pointers.data[mask.data].astype("int64") - end
        reads += int((abs(distance) <= 4 * scene.table.numel()).sum())
        behind += int(((distance >= 0) & (distance < 4 * BEHIND)).sum())
        return load(builder, pointers, mask, *others)

    with mock.patch.object(InterpreterBuilder, "create_masked_load", watched):
        read(scene, torch.randn(5, scene.shape.heads, scene.shape.head_size))
    expect(reads, "the block table was not seen to be read")
    expect(not behind, f"{behind} entries behind the block table are read")


def check_what_a_card_runs() -> None:
    """The decoder in PTX, and the launches: they fit a card, and depend on nothing that they must not."""
    import replay

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for family in (None, *replay.FAMILIES):
            wrong = replay.wrongly_decoded(dtype, family=family)
            expect(not wrong, f"decoder of {family or 'any'}, {dtype}: {wrong[:3]}")
    for family in replay.FAMILIES:
        for shape in REPLAYED:
            with replay.replayed(family) as assembly:
                error = attention_error(shape)
            expect(assembly.texts, f"{shape}: the kernel decoded without PTX")
            expect(error < limit(shape), f"{shape}, decoded by PTX of {family}: error {error:.1e}")
    for capability, cuda, options in (
        (90, True, {"num_warps", "num_stages", "maxnreg"}),
        (90, False, {"num_warps", "num_stages"}),  # of ROCm's architectures gfx942 has this number
        (120, True, {"num_warps", "num_stages"}),
    ):
        found = replay.options_of_decode(capability, cuda=cuda)
        expect(found == options, f"{capability}, {'CUDA' if cuda else 'ROCm'}: launched with {found}")
    for invariant in (False, True):
        launches = [
            replay.launch_of(partial(attention_error, Shape(queries=queries)), invariant=invariant)
            for queries in ((1, 1), (1, 20))
        ]
        same = launches[0] == launches[1]
        expect(same == invariant, f"batch invariance {invariant}: launches {launches}")
    arch, most = SM_121
    heads = [("bfloat16", 256), ("bfloat16", 512), ("float32", 128), ("float32", 256)]
    for taken in replay.launched(arch, heads):
        expect(taken["split"] == (taken["queries"] < MANY), f"sm_{arch}: split otherwise: {taken}")
        expect(not taken["refused"], f"sm_{arch}: ptxas refuses {taken}")
        expect(taken["decoded"], f"sm_{arch}: not decoded by PTX: {taken}")
        expect(taken["shared"] <= most, f"sm_{arch}: more than {most} bytes of shared memory: {taken}")
        expect(taken["bits"] == [32], f"sm_{arch}: operands of tl.dot come from narrow loads: {taken}")


def check_splitting() -> None:
    """Contexts in segments are read as whole ones are; faults planted in their sums and edges are found."""
    import splitting

    wrong, missed = splitting.wrong(), splitting.missed()
    expect(not wrong, f"{len(wrong)} cases are read wrongly: {wrong[:3]}")
    expect(not missed, f"planted faults are not found: {missed}")
    expect(not (strayed := splitting.strayed()), f"written by padding, or otherwise than before: {strayed}")
    expect(not (odd := splitting.odd()), f"segments, halves or warps: {odd}")


def check_controls() -> None:
    """Unquantised and other quantised caches are read as on every tree."""
    for shape in CONTROLS:
        error = attention_error(shape)
        expect(error < limit(shape), f"{shape}: error {error:.1e}")


def check_kernels(*more: Shape) -> None:
    """Write and read caches of all kinds, and those of *more*, once the backend is known to take them."""
    check_impl()
    for head_size, layout, dtype in (
        (64, "NHD", torch.float32),
        (96, "HND", torch.float16),
        (128, "HND", torch.bfloat16),
        (256, "NHD", torch.bfloat16),
    ):
        check_packing(head_size, layout, dtype)
    for shape in (*CASES, *more):
        error = attention_error(shape)
        expect(error < limit(shape), f"{shape}: error {error:.1e}")
    check_table_reads()
    check_splitting()
    check_what_a_card_runs()
