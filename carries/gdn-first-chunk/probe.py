"""Is the start of a prompt a prefill for the metadata of gated delta nets, however short it is?

Batches go through upstream's builder. A decode takes its state from the request's slot, where the start
of a prompt finds what the slot's last owner left; a prefill has a mark for each request that has no state
yet.

Healthy: a prompt's first token counts as a prefill without a state. Controls, true of every tree: longer
starts, later tokens of a prompt, decodes, and batches of captures, which have the shape of prompts'
starts.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import torch
from probekit import expect
from vllm.utils import torch_utils
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends import utils as backend_utils
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata, GDNAttentionMetadataBuilder

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


def build(batch: Batch, *, speculative: bool) -> GDNAttentionMetadata:
    """Have upstream describe *batch*, of a model with a speculator that drafted nothing, or without one."""
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


def check(batch: Batch, *, speculative: bool) -> None:
    """Compare what the builder says of *batch* with what its requests are."""
    built = build(batch, speculative=speculative)
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
    """Check every batch, with a speculator and without one."""
    for batch in BATCHES:
        check(batch, speculative=False)
        check(batch, speculative=True)
