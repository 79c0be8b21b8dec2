"""Is a speculating request's output of a gated delta net independent of its neighbours, in vLLM 0.33.0?

Batches, checks and stand-ins are those of the first probe, `probe.py`. The builder of metadata and the layer
have more fields there, and a fused kernel takes batches in which all requests speculate, on cards that have
it. All others run `_forward_core` as before, on either model runner, and so does every batch here.
"""

from __future__ import annotations

from unittest import mock

import probe as first
import torch
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata, GDNAttentionMetadataBuilder


def metadata(batch: list[first.Request]) -> GDNAttentionMetadata:
    """Have upstream describe *batch*; it reads lengths from the host too."""
    builder = object.__new__(GDNAttentionMetadataBuilder)
    builder.kv_cache_spec = mock.Mock(spec=[])
    builder.vllm_config = mock.Mock(spec=["cache_config"])
    builder.vllm_config.cache_config.mamba_cache_mode = "none"
    builder.gdn_prefill_backend = "triton"
    builder.plan_flashinfer_checkpoints = False
    builder.checkpoint_builder = mock.Mock(**{"build.return_value": None})
    builder.use_spec_decode, builder.num_spec = True, first.MAX_DRAFTS
    builder.use_full_cuda_graph, builder.decode_cudagraph_max_bs = False, 0

    counts = [request.tokens for request in batch]
    lengths = torch.tensor([first.COMPUTED + count for count in counts], dtype=torch.int32)
    common = CommonAttentionMetadata(
        query_start_loc=first.starts(counts),
        query_start_loc_cpu=first.starts(counts),
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths,
        num_reqs=len(batch),
        num_actual_tokens=sum(counts),
        max_query_len=max(counts),
        max_seq_len=int(lengths.max()),
        block_table_tensor=torch.tensor([list(request.blocks) for request in batch], dtype=torch.int32),
        slot_mapping=torch.zeros(sum(counts), dtype=torch.int64),
    )
    return builder.build(
        0,
        common,
        num_accepted_tokens=torch.tensor([request.accepted for request in batch], dtype=torch.int32),
        num_decode_draft_tokens_cpu=torch.tensor(
            [request.tokens - 1 if request.speculates else -1 for request in batch], dtype=torch.int32
        ),
    )


def probe() -> None:
    """Run the first probe's batches with this release's metadata."""
    with mock.patch.object(first, "metadata", metadata):
        first.probe()
