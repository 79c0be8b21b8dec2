"""Do context and queries of a DFlash drafter get the slots of their own tokens behind an image?

`DFlashProposer.set_inputs_first_pass` prepares steps with its real kernel, in Triton's interpreter. It is
given positions as model runner V1 has them for a target with M-RoPE: a view of three rows, in which the
tokens of an image advance by less than their number. Slots and positions are compared with a count of tokens.

Controls, true of every tree: the same steps with positions of one dimension, and three rows for text alone.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from probekit import expect
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.spec_decode.dflash import DFlashProposer

BLOCK, COLUMNS, ROOM = 16, 8, 256
DRAFTED = 3
QUERIES = 1 + DRAFTED


class Request(NamedTuple):
    """*scheduled* tokens from *computed* on; *saved*: by how much images before them shorten positions."""

    computed: int
    scheduled: int
    rejected: int = 0
    saved: int = 0


TEXT = Request(computed=20, scheduled=6)
# Behind a restored prefix of three blocks with an image: temporal positions lie in its second block.
RESTORED = Request(computed=48, scheduled=8, saved=26)
DECODE = Request(computed=61, scheduled=4, rejected=2, saved=26)


class Case(NamedTuple):
    """The requests of a step, and how many rows their positions have."""

    what: str
    requests: tuple[Request, ...]
    rows: int = 3


CONTROLS = (
    Case("one position a token", (RESTORED, TEXT, DECODE), rows=1),
    Case("text alone", (TEXT, Request(31, 4, rejected=3))),
)
DEFECTS = (
    Case("a restored image", (RESTORED,)),
    Case("a restored image behind text", (TEXT, RESTORED)),
    Case("rejected drafts behind an image", (DECODE, TEXT, RESTORED)),
)


def positions(case: Case) -> torch.Tensor:
    """What the runner hands on: for several rows a view of a wider buffer, as it is upstream."""
    spans = [
        torch.arange(one.computed, one.computed + one.scheduled) - (one.saved if case.rows > 1 else 0)
        for one in case.requests
    ]
    temporal = torch.cat(spans)
    if case.rows == 1:
        return temporal
    buffer = torch.zeros(case.rows, ROOM, dtype=torch.int64)
    buffer[:, : len(temporal)] = temporal  # text behind an image has the same position in each dimension
    return buffer[:, : len(temporal)]


def ints(values: list[int]) -> torch.Tensor:
    """An int32 tensor."""
    return torch.tensor(values, dtype=torch.int32)


def prepare(case: Case) -> dict[str, list[int]]:
    """Let a proposer prepare the step; what its buffers then hold."""
    names = ("positions", "_slot_mapping_buffer", "_context_positions_buffer", "_context_slot_mapping_buffer")
    buffers = {name: torch.full((ROOM,), -77) for name in names}
    proposer: Any = SimpleNamespace(
        num_speculative_tokens=DRAFTED,
        device=torch.device("cpu"),
        parallel_drafting_token_id=99,
        block_size=BLOCK,
        arange=torch.arange(ROOM, dtype=torch.int32),
        token_arange_np=np.arange(ROOM, dtype=np.int32),
        dflash_causal=False,
        input_ids=torch.zeros(ROOM, dtype=torch.int32),
        **buffers,
    )
    scheduled, count = [one.scheduled for one in case.requests], len(case.requests)
    starts = ints([sum(scheduled[:end]) for end in range(count + 1)])
    lengths = ints([one.computed + one.scheduled for one in case.requests])
    rejected = ints([one.rejected for one in case.requests])
    DFlashProposer.set_inputs_first_pass(
        proposer,
        target_token_ids=torch.zeros(sum(scheduled), dtype=torch.int32),
        next_token_ids=torch.arange(count, dtype=torch.int32) + 50,
        target_positions=positions(case),
        target_hidden_states=torch.zeros(sum(scheduled), 8),
        token_indices_to_sample=None,
        cad=CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts.clone(),
            seq_lens=lengths,
            num_reqs=count,
            num_actual_tokens=sum(scheduled),
            max_query_len=max(scheduled),
            max_seq_len=int(lengths.max()),
            block_table_tensor=torch.arange(1, 1 + count * COLUMNS, dtype=torch.int32).view(count, COLUMNS),
            slot_mapping=torch.zeros(sum(scheduled), dtype=torch.int64),
        ),
        num_rejected_tokens_gpu=rejected if rejected.any() else None,
    )
    return {name: buffer.tolist() for name, buffer in buffers.items()}


def check(case: Case) -> None:
    """Compare every accepted context row and every query with a count of tokens."""
    seen, row, query = prepare(case), 0, 0
    for number, request in enumerate(case.requests):
        first = 1 + number * COLUMNS  # the request's first block
        for offset in range(request.scheduled - request.rejected):
            token = request.computed + offset
            where = f"{case.what}: token {token} of {request}"
            compare(
                where,
                token,
                first,
                seen["_context_slot_mapping_buffer"][row + offset],
                "its context is written",
            )
            at = seen["_context_positions_buffer"][row + offset]
            expect(at == token, f"{where}: its context has position {at}")
        last = request.computed + request.scheduled - request.rejected
        for offset in range(QUERIES):
            where = f"{case.what}: query {offset} of {request}"
            compare(where, last + offset, first, seen["_slot_mapping_buffer"][query], "it is written")
            at = seen["positions"][query]
            expect(at == last + offset, f"{where}: it has position {at} instead of {last + offset}")
            query += 1
        row += request.scheduled


def compare(where: str, token: int, first: int, slot: int, what: str) -> None:
    """The slot of *token* in a request whose blocks follow each other."""
    wanted = (first + token // BLOCK) * BLOCK + token % BLOCK
    expect(slot == wanted, f"{where}: {what} to slot {slot}, that of token {slot - first * BLOCK}")


def probe() -> None:
    """Controls first."""
    for case in (*CONTROLS, *DEFECTS):
        check(case)
