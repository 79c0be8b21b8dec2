"""Does attention that is not causal read rows behind the end of a sequence, in vLLM's cache of four dimensions?

The cases, the reference and the cache's stale rows are those of the first probe, `probe.py`. In 0.26.0 and later K
and V of a row lie side by side, ``[blocks, KV heads, rows, 2 x size]``. Kernels are below both model runners.

More cases than there: sequences in different blocks of one batch, of which one's rows behind the end are another's.
"""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import probe as first
import torch
from probekit import expect
from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl, TritonAttentionMetadata
from vllm.v1.attention.ops import triton_attention_helpers

if TYPE_CHECKING:
    from collections.abc import Sequence

TABLES = (first.TABLE, (2, 7, 4, 0))
BLOCKS = 8


def metadata(batch: Sequence[first.Case]) -> TritonAttentionMetadata:
    """Return what upstream would be told of *batch*, by the fields that this release has."""
    queries = [case.queries for case in batch]
    tokens = [case.tokens for case in batch]
    values = {
        "num_actual_tokens": sum(queries),
        "max_query_len": max(queries),
        "query_start_loc": torch.tensor([0, *queries]).cumsum(0).to(torch.int32),
        "max_seq_len": max(tokens),
        "seq_lens": torch.tensor(tokens, dtype=torch.int32),
        "block_table": torch.tensor(TABLES[: len(batch)], dtype=torch.int32),
        "slot_mapping": torch.zeros(sum(queries), dtype=torch.int64),
        "seq_threshold_3D": 0,
        "num_par_softmax_segments": 16,
        "softmax_segm_output": torch.empty(0),
        "softmax_segm_max": torch.empty(0),
        "softmax_segm_expsum": torch.empty(0),
        "causal": batch[0].causal,
        # gone by 0.33.0
        "use_cascade": False,
        "common_prefix_len": 0,
        "cu_prefix_query_lens": None,
        "prefix_kv_lens": None,
        "suffix_kv_lens": None,
    }
    known = {field.name for field in fields(TritonAttentionMetadata)}
    return TritonAttentionMetadata(**{name: value for name, value in values.items() if name in known})


def check(*batch: first.Case) -> None:
    """Compare the output for each sequence of *batch* with ordinary attention."""
    torch.manual_seed(1)
    cache = torch.full((BLOCKS, first.KV_HEADS, first.BLOCK, 2 * first.SIZE), batch[0].stale)
    sides = [torch.randn(2, case.tokens, first.KV_HEADS, first.SIZE).unbind(0) for case in batch]
    for table, (keys, values) in zip(TABLES, sides, strict=False):
        for token, both in enumerate(torch.cat([keys, values], dim=-1)):
            cache[table[token // first.BLOCK], :, token % first.BLOCK] = both
    query = torch.randn(sum(case.queries for case in batch), first.HEADS, first.SIZE)
    output = torch.full_like(query, first.ZERO)
    impl = TritonAttentionImpl(
        first.HEADS, first.SIZE, first.SIZE**-0.5, first.KV_HEADS, None, batch[0].window, "auto"
    )
    layer = SimpleNamespace(_q_scale=torch.ones(()), _k_scale=torch.ones(()), _v_scale=torch.ones(()))
    impl.forward(cast("torch.nn.Module", layer), query, query, query, cache, metadata(batch), output)
    counts = [case.queries for case in batch]
    for case, side, asked, found in zip(batch, sides, query.split(counts), output.split(counts), strict=True):
        bad = int(found.isnan().any(-1).sum())
        expect(
            not bad, f"{case}: {bad} of {found.shape[0] * first.HEADS} outputs are NaN, by rows behind the sequence"
        )
        error = float((found.double() - first.reference(case, asked, *side)).abs().max())
        expect(error < 1e-3, f"{case}: attention is wrong by {error:.1e}")


def probe() -> None:
    """Controls first, so that a defect is reported only by a probe whose healthy cases hold."""
    if not hasattr(triton_attention_helpers, "compute_tile_loop_bounds"):
        raise ValueError("the bounds of the tiles are computed elsewhere")
    for case in (*first.CONTROLS, *first.DEFECTS):
        check(case)
    check(first.Case(44, 4, first.ZERO), first.Case(35, 3, first.ZERO))
    check(first.Case(44, 4, first.NAN), first.Case(35, 3, first.NAN))
