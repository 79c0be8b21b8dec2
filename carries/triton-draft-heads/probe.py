"""Does a drafter's attention stay within its buffers when its heads are more, or larger, than the target's?

Upstream's metadata builder makes the buffers of the Triton backend, and upstream's kernels fill them, in
Triton's interpreter: one token for each of a few sequences, as an EAGLE drafter decodes. The buffers' storage
is moved into larger ones whose rest nobody may touch.

The defect shows where the drafter has more query heads, or larger ones, than the model that the buffers are
made for. Controls: a drafter like the target, and one with fewer and smaller heads. The output has to be that
of ordinary attention in every case.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from probekit import expect
from vllm.config import CUDAGraphMode
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionImpl,
    TritonAttentionMetadata,
    TritonAttentionMetadataBuilder,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec

if TYPE_CHECKING:
    from vllm.config import VllmConfig

TARGET_HEADS, TARGET_KV_HEADS, TARGET_SIZE = 4, 2, 64
BLOCK, BLOCKS, SEQUENCES, TOKENS = 16, 6, 2, 20
GUARD = -12345.0
GUARDED = 1 << 20  # elements behind each buffer
LAYER = "model.layers.4.self_attn.attn"
CPU = torch.device("cpu")


class Drafter(NamedTuple):
    """The heads of a drafter's layer."""

    heads: int = TARGET_HEADS
    kv_heads: int = TARGET_KV_HEADS
    size: int = TARGET_SIZE


CONTROLS = (Drafter(), Drafter(2, 2, 32))
DEFECTS = (Drafter(heads=8), Drafter(size=128), Drafter(heads=8, kv_heads=1, size=128))


def builder(drafter: Drafter) -> TritonAttentionMetadataBuilder:
    """The builder of the drafter's layers, made as the runners make it: with the target's configuration."""
    layer = SimpleNamespace(num_heads=drafter.heads)
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            get_num_attention_heads=lambda _: TARGET_HEADS,
            get_num_kv_heads=lambda _: TARGET_KV_HEADS,
            get_head_size=lambda: TARGET_SIZE,
        ),
        parallel_config=None,
        compilation_config=SimpleNamespace(
            cudagraph_mode=CUDAGraphMode.FULL_DECODE_ONLY,
            cudagraph_capture_sizes=[SEQUENCES],
            static_forward_context={LAYER: layer},
        ),
    )
    spec = FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=drafter.kv_heads, head_size=drafter.size, dtype=torch.float32
    )
    return TritonAttentionMetadataBuilder(spec, [LAYER], cast("VllmConfig", config), CPU)


def decode(made: TritonAttentionMetadataBuilder) -> TritonAttentionMetadata:
    """One token for each of the sequences, whose blocks are two each."""
    starts = torch.arange(SEQUENCES + 1, dtype=torch.int32)
    table = torch.arange(2 * SEQUENCES, dtype=torch.int32).view(SEQUENCES, 2)
    common = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.full((SEQUENCES,), TOKENS, dtype=torch.int32),
        num_reqs=SEQUENCES,
        num_actual_tokens=SEQUENCES,
        max_query_len=1,
        max_seq_len=TOKENS,
        block_table_tensor=table,
        slot_mapping=torch.zeros(SEQUENCES, dtype=torch.int64),
    )
    return made.build(0, common)


def reference(drafter: Drafter, query: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """Ordinary attention over each sequence's tokens."""
    keys, values = (
        cache[: 2 * SEQUENCES].view(SEQUENCES, 2, 2, BLOCK, drafter.kv_heads, drafter.size).unbind(2)
    )
    wide = drafter.heads // drafter.kv_heads
    k, v = (side.flatten(1, 2)[:, :TOKENS].repeat_interleave(wide, 2).double() for side in (keys, values))
    scores = torch.einsum("shd,sthd->sht", query.double(), k) * drafter.size**-0.5
    return torch.einsum("sht,sthd->shd", scores.softmax(-1), v)


def check(drafter: Drafter) -> None:
    """The kernels must write into the buffers only, and compute attention."""
    metadata = decode(builder(drafter))
    if metadata.seq_threshold_3D < SEQUENCES:
        raise ValueError("so many sequences are not split into segments")
    guarded = {}
    for name in ("softmax_segm_output", "softmax_segm_max", "softmax_segm_expsum"):
        buffer: torch.Tensor = getattr(metadata, name)
        storage = torch.full((buffer.numel() + GUARDED,), GUARD)
        guarded[name] = storage[buffer.numel() :]
        setattr(metadata, name, storage[: buffer.numel()].view(buffer.shape))
    torch.manual_seed(1)
    query = torch.randn(SEQUENCES, drafter.heads, drafter.size)
    cache = torch.randn(BLOCKS, 2, BLOCK, drafter.kv_heads, drafter.size)
    output = torch.full_like(query, float("nan"))
    impl = TritonAttentionImpl(
        drafter.heads, drafter.size, drafter.size**-0.5, drafter.kv_heads, None, None, "auto"
    )
    layer = SimpleNamespace(_q_scale=torch.ones(()), _k_scale=torch.ones(()), _v_scale=torch.ones(()))
    impl.forward(cast("torch.nn.Module", layer), query, query, query, cache, metadata, output)
    for name, rest in guarded.items():
        touched = int((rest != GUARD).sum())
        expect(not touched, f"{drafter}: {touched} elements behind {name} were written")
    error = float((output.double() - reference(drafter, query, cache)).abs().max())
    expect(error < 1e-3, f"{drafter}: attention is wrong by {error:.1e}")


def probe() -> None:
    """Controls first, so that a defect is reported only by a probe whose healthy cases hold."""
    for drafter in (*CONTROLS, *DEFECTS):
        check(drafter)
