"""Steps for the metadata of gated delta nets, and what upstream's builder has to make of them.

A decode takes its state from the request's slot, where the start of a prompt finds what the slot's last owner
left; a prefill has a mark for each request that has no state yet. With a speculator a decode has a state for
each token of its last step, and looks it up by the tokens that were accepted.
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


class Row(NamedTuple):
    """One request's part of a step."""

    computed: int
    tokens: int
    prompt: int
    drafts: int = 0
    accepted: int = 1  # tokens of its last step


class Batch(NamedTuple):
    """Requests of a step, in the order that a runner gives them, and how many of them are decodes."""

    what: str
    requests: tuple[Row, ...]
    decodes: int
    stateless: tuple[int, ...] = ()  # of its prefills, by their index among these
    tells_prompts: bool = True  # whether the runner says which requests are in their prompts


DECODE = Row(computed=20, tokens=1, prompt=12)
START = Row(computed=0, tokens=1, prompt=30)
ONLY = Row(computed=0, tokens=1, prompt=1)
LATER = Row(computed=5, tokens=1, prompt=30)
LONG = Row(computed=0, tokens=6, prompt=6)
CHUNK = Row(computed=6, tokens=6, prompt=30)
CAPTURED = Row(computed=0, tokens=1, prompt=0)

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


DRAFTED = Row(computed=20, tokens=1 + DRAFTS, prompt=12, drafts=DRAFTS, accepted=2)
FEWER = Row(computed=20, tokens=2, prompt=12, drafts=1, accepted=4)
DRAFTLESS = Row(computed=20, tokens=1, prompt=12, accepted=3)
AGAIN = Row(computed=20, tokens=1 + DRAFTS, prompt=12)  # outputs, computed again after a preemption

# Steps with a speculator.
STEPS = {
    # Controls.
    "decodes with drafts": (DRAFTED, DRAFTED),
    "decodes with fewer drafts": (DRAFTED, FEWER),
    "a decode with drafts before a prompt": (DRAFTED, LONG),
    "a prompt, and nothing drafted": (LATER, LONG),
    "outputs that are computed again": (DRAFTED, AGAIN),
    # Defects.
    "a decode without drafts": (DRAFTLESS,),
    "a first decode without drafts": (DRAFTLESS._replace(computed=12, accepted=1),),
    "decodes without drafts": (DRAFTLESS, DRAFTLESS._replace(accepted=1)),
    "decodes with drafts and without": (DRAFTED, DRAFTLESS),
    "decodes without drafts before prompts": (DRAFTLESS, LATER, LONG),
}


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


def build_by_v2(
    requests: tuple[Row, ...], *, speculative: bool = False, for_capture: bool = False
) -> GDNAttentionMetadata:
    """Have model runner V2's state of a hybrid model describe *requests*, or a capture of them."""
    builder = make_builder(speculative=speculative)
    builder.decode_cudagraph_max_bs = 64
    state = object.__new__(HybridState)
    state.vllm_config = SimpleNamespace(num_speculative_tokens=builder.num_spec)
    state.num_accepted_tokens_gpu = torch.tensor(
        [request.accepted for request in requests], dtype=torch.int32
    )
    rows = len(requests)
    tokens = np.array([request.tokens for request in requests], dtype=np.int32)
    computed = np.array([request.computed for request in requests], dtype=np.int32)
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
        # What is computed again is part of the prompt for V2.
        is_prefilling_np=np.array(
            [request.computed < request.prompt or request is AGAIN for request in requests]
        ),
        prefill_runs_as_decode_np=None,
        num_draft_tokens_per_req=(
            np.array([request.drafts for request in requests])
            if any(request.drafts for request in requests)
            else None
        ),
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


def check_drafts(what: str, rows: tuple[Row, ...], built: GDNAttentionMetadata) -> None:
    """Expect each decode to look its state up by the tokens that were accepted, and no prompt to."""
    decodes = [
        index for index, row in enumerate(rows) if row.computed >= row.prompt and row.tokens == 1 + row.drafts
    ]
    expect(
        built.num_spec_decodes == len(decodes),
        f"{what}: {built.num_spec_decodes} of {len(decodes)} decodes go on from their last token",
    )
    if decodes:
        slots = [[1 + index * (1 + DRAFTS) + column for column in range(1 + DRAFTS)] for index in decodes]
        expect(built.spec_state_indices_tensor.tolist() == slots, f"{what}: decodes have others' slots")
        accepted = [rows[index].accepted for index in decodes]
        counts = built.num_accepted_tokens.tolist()
        expect(counts == accepted, f"{what}: counts of accepted tokens are {counts}, not {accepted}")
    rest = sum(row.tokens for index, row in enumerate(rows) if index not in decodes)
    found = built.num_decode_tokens + built.num_prefill_tokens
    expect(found == rest, f"{what}: {found} tokens are no decodes', not {rest}")


def check_batches() -> None:
    """Check every batch and step, but for model runner V1's part."""
    for batch in BATCHES:
        check(batch, build(batch, speculative=False))
        check(batch, build(batch, speculative=True))
        if batch.tells_prompts:
            check(batch, build_by_v2(batch.requests, for_capture=batch.requests[0] is CAPTURED))
    for what, rows in STEPS.items():
        check_drafts(f"V2, {what}", rows, build_by_v2(rows, speculative=True))
    dummy = Row(computed=0, tokens=1 + DRAFTS, prompt=0, drafts=0)
    found = build_by_v2((dummy,), speculative=True)
    expect(found.num_spec_decodes == 1, "V2 does not take a dummy run of decodes for one")
    found = build_by_v2((dummy._replace(tokens=20),), speculative=True)
    expect(found.num_prefills == 1, "V2 takes a warmup of prompts for decodes")
