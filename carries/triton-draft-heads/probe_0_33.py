"""Does a drafter's attention stay within its buffers when its heads are larger than the target's?

The same question as that of the first probe, to a release whose builder takes the number of heads from the
layers, and makes room for the tokens of a verification as well. Upstream's metadata builder makes the buffers
of the Triton backend, and upstream's kernels fill them, in Triton's interpreter: one token for each of a few
sequences, as an EAGLE drafter decodes, and several, as a target verifies. The buffers' storage is moved into
larger ones whose rest must not be touched.

The defect shows where the drafter's query heads are larger than those of the model that the buffers are
made for. Controls: a drafter like the target, one with more heads, and one with fewer and smaller heads. The
output has to be that of ordinary attention in every case.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from probekit import expect
from vllm.config import CUDAGraphMode
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadata,
    TritonAttentionMetadataBuilder,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec

if TYPE_CHECKING:
    from vllm.config import VllmConfig

TARGET_HEADS, TARGET_KV_HEADS, TARGET_SIZE = 4, 2, 64
BLOCK, BLOCKS, SEQUENCES, TOKENS = 16, 6, 2, 20
DRAFTS = 3
GUARD = -12345.0
GUARDED = 1 << 20  # elements behind each buffer
LAYER = "model.layers.4.self_attn.attn"
CPU = torch.device("cpu")


class Drafter(NamedTuple):
    """The heads of a drafter's layer."""

    heads: int = TARGET_HEADS
    kv_heads: int = TARGET_KV_HEADS
    size: int = TARGET_SIZE

    @property
    def spec(self) -> FullAttentionSpec:
        """The layer's part of the cache."""
        return FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=self.kv_heads, head_size=self.size, dtype=torch.float32
        )


CONTROLS = (Drafter(), Drafter(heads=8), Drafter(2, 2, 32))
DEFECTS = (Drafter(size=128), Drafter(heads=8, kv_heads=1, size=128))


class Layer(AttentionLayerBase):
    """The drafter's layer, as the builder finds it."""

    def __init__(self, heads: int) -> None:
        self.impl = cast("TritonAttentionImpl", SimpleNamespace(num_heads=heads))

    def get_attn_backend(self) -> type[TritonAttentionBackend]:
        """Name the backend."""
        return TritonAttentionBackend

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> None:
        """Add nothing to what the runner has planned."""


def builder(drafter: Drafter) -> TritonAttentionMetadataBuilder:
    """The builder of the drafter's layers, made as the runners make it: with the target's configuration."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            get_num_attention_heads=lambda _: TARGET_HEADS,
            get_num_kv_heads=lambda _: TARGET_KV_HEADS,
            get_head_size=lambda: TARGET_SIZE,
            rswa_window=None,
        ),
        parallel_config=None,
        scheduler_config=SimpleNamespace(max_num_seqs=SEQUENCES),
        speculative_config=SimpleNamespace(num_speculative_tokens=DRAFTS, parallel_drafting=False),
        compilation_config=SimpleNamespace(
            cudagraph_mode=CUDAGraphMode.FULL_DECODE_ONLY,
            cudagraph_capture_sizes=[8 * SEQUENCES],
            static_forward_context={LAYER: Layer(drafter.heads)},
        ),
    )
    return TritonAttentionMetadataBuilder(drafter.spec, [LAYER], cast("VllmConfig", config), CPU)


def decode(made: TritonAttentionMetadataBuilder, queries: int) -> TritonAttentionMetadata:
    """So many tokens for each of the sequences, whose blocks are two each."""
    starts = torch.arange(SEQUENCES + 1, dtype=torch.int32) * queries
    table = torch.arange(2 * SEQUENCES, dtype=torch.int32).view(SEQUENCES, 2)
    common = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.full((SEQUENCES,), TOKENS, dtype=torch.int32),
        num_reqs=SEQUENCES,
        num_actual_tokens=SEQUENCES * queries,
        max_query_len=queries,
        max_seq_len=TOKENS,
        block_table_tensor=table,
        slot_mapping=torch.zeros(SEQUENCES * queries, dtype=torch.int64),
    )
    return made.build(0, common)


def reference(drafter: Drafter, query: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """Ordinary attention of each sequence's last tokens over those before them."""
    tokens = cache[: 2 * SEQUENCES].view(SEQUENCES, 2, drafter.kv_heads, BLOCK, -1).transpose(2, 3)
    wide = drafter.heads // drafter.kv_heads
    tokens = tokens.flatten(1, 2)[:, :TOKENS].repeat_interleave(wide, 2).double()
    keys, values = tokens.split(drafter.size, dim=-1)
    asked = query.view(SEQUENCES, -1, *query.shape[1:]).double()
    scores = torch.einsum("sqhd,sthd->shqt", asked, keys) * drafter.size**-0.5
    count = asked.shape[1]
    later = torch.arange(TOKENS) > torch.arange(TOKENS - count, TOKENS)[:, None]
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    return torch.einsum("shqt,sthd->sqhd", weights, values).flatten(0, 1)


def check(drafter: Drafter, queries: int) -> None:
    """The kernels must write into the buffers only, and compute attention."""
    metadata = decode(builder(drafter), queries)
    rows = SEQUENCES * queries
    if metadata.seq_threshold_3D < SEQUENCES or metadata.softmax_segm_max.shape[0] < rows:
        raise ValueError("so many sequences are not split into segments")
    guarded, before = {}, {}
    for name in ("softmax_segm_output", "softmax_segm_max", "softmax_segm_expsum"):
        buffer: torch.Tensor = getattr(metadata, name)
        storage = torch.full((buffer.numel() + GUARDED,), GUARD)
        guarded[name] = storage[buffer.numel() :]
        before[name] = storage[: buffer.numel()]
        setattr(metadata, name, before[name].view(buffer.shape))
    torch.manual_seed(1)
    query = torch.randn(rows, drafter.heads, drafter.size)
    cache = torch.randn(BLOCKS, drafter.kv_heads, BLOCK, 2 * drafter.size)
    output = torch.full_like(query, float("nan"))
    impl = TritonAttentionImpl(
        drafter.heads, drafter.size, drafter.size**-0.5, drafter.kv_heads, None, None, "auto"
    )
    layer = SimpleNamespace(_q_scale=torch.ones(()), _k_scale=torch.ones(()), _v_scale=torch.ones(()))
    impl.forward(cast("torch.nn.Module", layer), query, query, query, cache, metadata, output)
    if not (before["softmax_segm_max"] != GUARD).any():
        raise ValueError("no segment was written: the kernel did not split the sequences")
    for name, rest in guarded.items():
        touched = int((rest != GUARD).sum())
        expect(not touched, f"{drafter}: {touched} elements behind {name} were written")
    error = float((output.double() - reference(drafter, query, cache)).abs().max())
    expect(error < 1e-3, f"{drafter}: attention is wrong by {error:.1e}")


def probe() -> None:
    """Controls first, so that a defect is reported only by a probe whose healthy cases hold."""
    for drafter in (*CONTROLS, *DEFECTS):
        for queries in (1, 1 + DRAFTS):
            check(drafter, queries)
