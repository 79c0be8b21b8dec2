"""Is the start of a prompt a prefill for the metadata of gated delta nets, however short it is?

Batches go through upstream's builder. A decode takes its state from the request's slot, where the start
of a prompt finds what the slot's last owner left; a prefill has a mark for each request that has no state
yet. Model runner V2 is asked for them, too: what it says of a step has to be enough for the builder.

Healthy: a prompt's first token counts as a prefill without a state. Controls, true of every tree: longer
starts, later tokens of a prompt, decodes, and batches of captures, which have the shape of prompts'
starts.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch
from probekit import expect
from vllm.config import CUDAGraphMode
from vllm.utils import torch_utils
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends import utils as backend_utils
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata, GDNAttentionMetadataBuilder
from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState
from vllm.v1.worker.utils import AttentionGroup

DRAFTS = 3


class Request(NamedTuple):
    """One request's part of a step."""

    computed: int
    tokens: int
    prompt: int


class Batch(NamedTuple):
    """Requests of a step, in the order that a runner gives them, and how many of them are decodes."""

    what: str
    requests: tuple[Request, ...]
    decodes: int
    stateless: tuple[int, ...] = ()  # of its prefills, by their index among these
    tells_prompts: bool = True  # whether the runner says which requests are in their prompts


DECODE = Request(computed=20, tokens=1, prompt=12)
START = Request(computed=0, tokens=1, prompt=30)
ONLY = Request(computed=0, tokens=1, prompt=1)
LATER = Request(computed=5, tokens=1, prompt=30)
LONG = Request(computed=0, tokens=6, prompt=6)
CHUNK = Request(computed=6, tokens=6, prompt=30)
CAPTURED = Request(computed=0, tokens=1, prompt=0)

BATCHES = (
    # Controls.
    Batch("decodes", (DECODE, DECODE), decodes=2),
    Batch("one token over earlier ones of a prompt", (DECODE, LATER), decodes=2),
    Batch("a decode before a prompt of six tokens", (DECODE, LONG), decodes=1, stateless=(0,)),
    Batch("a later chunk before a prompt of six tokens", (CHUNK, LONG), decodes=0, stateless=(1,)),
    Batch("a capture", (CAPTURED, CAPTURED), decodes=2),
    Batch("a capture that says nothing of prompts", (CAPTURED, CAPTURED), decodes=2, tells_prompts=False),
    # Defects.
    Batch("a prompt of one token", (ONLY,), decodes=0, stateless=(0,)),
    Batch("a prompt's first token behind decodes", (DECODE, LATER, START), decodes=2, stateless=(0,)),
    Batch("two prompts' first tokens", (START, ONLY), decodes=0, stateless=(0, 1)),
    Batch(
        "a prompt's first token before a prompt of six", (DECODE, START, LONG), decodes=1, stateless=(0, 1)
    ),
    Batch("a prompt's first token behind a later chunk", (DECODE, CHUNK, START), decodes=1, stateless=(1,)),
)


def make_builder(*, speculative: bool) -> GDNAttentionMetadataBuilder:
    """Make upstream's builder, of a model with a speculator or without one."""
    builder = object.__new__(GDNAttentionMetadataBuilder)
    builder.kv_cache_spec = mock.Mock(spec=[])
    builder.vllm_config = SimpleNamespace(cache_config=SimpleNamespace(mamba_cache_mode="none"))
    builder.gdn_prefill_backend = "triton"
    # 0.33.0 asks for these two.
    builder.plan_flashinfer_checkpoints, builder.checkpoint_builder = (
        False,
        mock.Mock(**{"build.return_value": None}),
    )
    builder.use_spec_decode, builder.num_spec = speculative, DRAFTS if speculative else 0
    builder.use_full_cuda_graph, builder.decode_cudagraph_max_bs = False, 0
    return builder


def build(batch: Batch, *, speculative: bool) -> GDNAttentionMetadata:
    """Have upstream describe *batch*, of a model with a speculator that drafted nothing, or without one."""
    builder = make_builder(speculative=speculative)
    tokens = [request.tokens for request in batch.requests]
    starts = torch.tensor([0, *tokens]).cumsum(0).to(torch.int32)
    computed = torch.tensor([request.computed for request in batch.requests], dtype=torch.int32)
    lengths = computed + starts.diff()
    common = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths,
        num_reqs=len(tokens),
        num_actual_tokens=sum(tokens),
        max_query_len=max(tokens),
        max_seq_len=int(lengths.max()),
        block_table_tensor=torch.arange(1, 1 + len(tokens) * (1 + DRAFTS), dtype=torch.int32).view(
            len(tokens), -1
        ),
        slot_mapping=torch.zeros(sum(tokens), dtype=torch.int64),
        is_prefilling=(
            computed < torch.tensor([request.prompt for request in batch.requests])
            if batch.tells_prompts
            else None
        ),
    )
    with (
        mock.patch.multiple(torch_utils, PIN_MEMORY=False),
        mock.patch.multiple(backend_utils, PIN_MEMORY=False),
    ):
        return builder.build(0, common)


class HybridState(MambaHybridModelState):
    """Model runner V2's state of a hybrid model, without a model."""

    max_model_len = 64  # a property on 0.33.0, which asks for the following, too
    recoverssm = None
    _align_mode = False
    vllm_config = SimpleNamespace(num_speculative_tokens=0)


def build_by_v2(batch: Batch, *, for_capture: bool = False) -> GDNAttentionMetadata:
    """Have model runner V2's state of a hybrid model describe *batch*, or a capture of it."""
    builder = make_builder(speculative=False)
    builder.decode_cudagraph_max_bs = 64
    state = object.__new__(HybridState)
    state.num_accepted_tokens_gpu = torch.ones(8, dtype=torch.int32)
    rows = len(batch.requests)
    tokens = np.array([request.tokens for request in batch.requests], dtype=np.int32)
    computed = np.array([request.computed for request in batch.requests], dtype=np.int32)
    starts = np.concatenate(([0], tokens.cumsum())).astype(np.int32)
    lengths = torch.from_numpy(computed + tokens)
    step = SimpleNamespace(
        num_reqs=rows,
        num_reqs_after_padding=rows,
        num_tokens=int(tokens.sum()),
        num_tokens_after_padding=int(tokens.sum()),
        num_scheduled_tokens=tokens,
        max_query_len=None,
        query_start_loc=torch.from_numpy(starts),
        query_start_loc_np=starts,
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths,
        dcp_local_seq_lens=None,
        idx_mapping=torch.arange(rows),
        is_prefilling_np=computed < np.array([request.prompt for request in batch.requests]),
        prefill_runs_as_decode_np=None,
        num_draft_tokens_per_req=None,
        prompt_lens=None,
        positions=torch.zeros(int(tokens.sum()), dtype=torch.int64),
    )
    group = AttentionGroup(
        backend=mock.Mock(),
        layer_names=["layer"],
        kv_cache_spec=mock.Mock(),
        kv_cache_group_id=0,
        metadata_builders=[builder],
    )
    with (
        mock.patch.multiple(torch_utils, PIN_MEMORY=False),
        mock.patch.multiple(backend_utils, PIN_MEMORY=False),
    ):
        return state.prepare_attn(
            step,
            CUDAGraphMode.FULL if for_capture else CUDAGraphMode.NONE,
            (torch.arange(1, 1 + rows * (1 + DRAFTS), dtype=torch.int32).view(rows, -1),),
            torch.zeros(1, int(tokens.sum()), dtype=torch.int64),
            [[group]],
            SimpleNamespace(kv_cache_groups=[None]),
            for_capture=for_capture,
        )["layer"]


def check(batch: Batch, built: GDNAttentionMetadata) -> None:
    """Compare what the builder says of *batch*, in *built*, with what its requests are."""
    prefills = len(batch.requests) - batch.decodes
    found = (built.num_decodes, built.num_prefills, built.num_decode_tokens + built.num_prefill_tokens)
    expected = (batch.decodes, prefills, sum(request.tokens for request in batch.requests))
    expect(found == expected, f"{batch.what}: decodes, prefills and tokens are {found}, not {expected}")
    if prefills:
        states = built.prefill_has_initial_state.tolist()
        right = [index not in batch.stateless for index in range(prefills)]
        expect(states == right, f"{batch.what}: prefills that have a state are {states}, not {right}")
        expect(
            built.prefill_state_indices.tolist()
            == [1 + 4 * row for row in range(batch.decodes, len(batch.requests))],
            f"{batch.what}: prefills have other requests' slots",
        )


def probe() -> None:
    """Check every batch, with a speculator and without one, and as model runner V2 tells of it."""
    for batch in BATCHES:
        check(batch, build(batch, speculative=False))
        check(batch, build(batch, speculative=True))
        if batch.tells_prompts:
            check(batch, build_by_v2(batch, for_capture=batch.requests[0] is CAPTURED))
