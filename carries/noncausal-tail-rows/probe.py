"""Does attention that is not causal read rows behind the end of a sequence?

Upstream's Triton backend computes attention over a paged cache, in Triton's interpreter, for a few queries at
the end of a sequence, as DFlash drafts. Rows of its last block that were never written, and all other
blocks, hold NaN, as bytes of another format or of nobody may be.

The defect shows as NaN in the output: rows behind the end are loaded, and a weight of zero does not undo NaN.
Controls: causal attention over the same rows; attention that is not causal over a cache without NaN, whose
output has to be that of ordinary attention; and sequences which end where a tile of queries does.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple, cast

import torch
from probekit import expect
from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl, TritonAttentionMetadata
from vllm.v1.attention.ops import triton_attention_helpers

HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 32, 16
NAN, ZERO = float("nan"), 0.0
TABLE = (3, 5, 1, 6)


class Case(NamedTuple):
    """A sequence, the queries at its end, and what lies in rows that it does not own."""

    tokens: int
    queries: int
    stale: float
    causal: bool = False
    window: int | None = None


CONTROLS = (
    Case(44, 4, ZERO),
    Case(44, 4, ZERO, window=8),
    Case(44, 4, NAN, causal=True),
    Case(33, 1, NAN, causal=True),
    Case(48, 8, NAN),
)
DEFECTS = (Case(44, 4, NAN), Case(33, 1, NAN), Case(46, 10, NAN), Case(44, 4, NAN, window=8))


def metadata(case: Case) -> TritonAttentionMetadata:
    """One sequence with its blocks."""
    return TritonAttentionMetadata(
        num_actual_tokens=case.queries,
        max_query_len=case.queries,
        query_start_loc=torch.tensor([0, case.queries], dtype=torch.int32),
        max_seq_len=case.tokens,
        seq_lens=torch.tensor([case.tokens], dtype=torch.int32),
        block_table=torch.tensor([TABLE], dtype=torch.int32),
        slot_mapping=torch.zeros(case.queries, dtype=torch.int64),
        seq_threshold_3D=0,
        num_par_softmax_segments=16,
        softmax_segm_output=torch.empty(0),
        softmax_segm_max=torch.empty(0),
        softmax_segm_expsum=torch.empty(0),
        causal=case.causal,
        use_cascade=False,
        common_prefix_len=0,
        cu_prefix_query_lens=None,
        prefix_kv_lens=None,
        suffix_kv_lens=None,
    )


def reference(case: Case, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Ordinary attention in float64 over the sequence's own rows."""
    wide = HEADS // KV_HEADS
    k, v = (side.repeat_interleave(wide, 1).double() for side in (keys, values))
    scores = torch.einsum("qhd,khd->qhk", query.double(), k) * SIZE**-0.5
    row = torch.arange(case.tokens - case.queries, case.tokens)[:, None]
    distance = row - torch.arange(case.tokens)[None]
    seen = distance >= 0 if case.causal else torch.ones_like(distance, dtype=torch.bool)
    if case.window is not None:
        seen &= distance.abs() < case.window
    scores = scores.masked_fill(~seen[:, None], float("-inf"))
    return torch.einsum("qhk,khd->qhd", scores.softmax(-1), v)


def check(case: Case) -> None:
    """The output must be that of ordinary attention."""
    torch.manual_seed(1)
    cache = torch.full((8, 2, BLOCK, KV_HEADS, SIZE), case.stale)
    keys, values = torch.randn(2, case.tokens, KV_HEADS, SIZE).unbind(0)
    for token in range(case.tokens):
        block, row = TABLE[token // BLOCK], token % BLOCK
        cache[block, 0, row], cache[block, 1, row] = keys[token], values[token]
    query = torch.randn(case.queries, HEADS, SIZE)
    output = torch.full_like(query, ZERO)
    impl = TritonAttentionImpl(HEADS, SIZE, SIZE**-0.5, KV_HEADS, None, case.window, "auto")
    layer = SimpleNamespace(_q_scale=torch.ones(()), _k_scale=torch.ones(()), _v_scale=torch.ones(()))
    impl.forward(cast("torch.nn.Module", layer), query, query, query, cache, metadata(case), output)
    bad = int(output.isnan().any(-1).sum())
    expect(
        not bad, f"{case}: {bad} of {output.shape[0] * HEADS} outputs are NaN, by rows behind the sequence"
    )
    error = float((output.double() - reference(case, query, keys, values)).abs().max())
    expect(error < 1e-3, f"{case}: attention is wrong by {error:.1e}")


def probe() -> None:
    """Controls first, so that a defect is reported only by a probe whose healthy cases hold."""
    if not hasattr(triton_attention_helpers, "compute_tile_loop_bounds"):
        raise ValueError("the bounds of the tiles are computed elsewhere")
    for case in (*CONTROLS, *DEFECTS):
        check(case)
