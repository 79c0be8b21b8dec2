"""Do context and queries of a DFlash drafter get the slots of their own tokens behind an image, on model runner V2?

The steps and the comparison are those of the first probe, `probe.py`, which finds the defect on V1 of vLLM 0.33.0 as
well; V2 serves DFlash there, and the verdict is about it.

The steps' positions are made by V2's own kernel, from the requests' computed tokens. The target's M-RoPE positions
are then made as before its forward pass, by the state of a model with images that shorten them; what the batch has
after that goes to the speculator.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import probe as first
import torch
from vllm.v1.spec_decode.dflash import DFlashProposer
from vllm.v1.worker.gpu.input_batch import InputBuffers, prepare_pos_seq_lens
from vllm.v1.worker.gpu.mm.rope import RopeState
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.spec_decode.dflash import speculator

CPU = torch.device("cpu")
MOST = 8
NAMES = ("positions", "_slot_mapping_buffer", "_context_positions_buffer", "_context_slot_mapping_buffer")


def prepare(case: first.Case) -> dict[str, list[int]]:
    """Let the runner's kernel count positions and the speculator prepare the step; what its buffers then hold."""
    scheduled, count = [one.scheduled for one in case.requests], len(case.requests)
    target, buffers = InputBuffers(MOST, first.ROOM, CPU), InputBuffers(MOST, first.ROOM, CPU)
    starts = first.ints([sum(scheduled[:end]) for end in range(count + 1)])
    order = torch.arange(count, dtype=torch.int32)
    prepare_pos_seq_lens(
        order, starts, first.ints([one.computed for one in case.requests]), target.positions, target.seq_lens
    )
    table = torch.zeros(MOST, first.COLUMNS, dtype=torch.int32)
    table[:count] = torch.arange(1, 1 + count * first.COLUMNS, dtype=torch.int32).view(count, first.COLUMNS)
    query_slots, context_positions, context_slots = (torch.full((first.ROOM,), -77) for _ in range(3))
    batch = SimpleNamespace(
        num_reqs=count,
        num_scheduled_tokens=np.array(scheduled, dtype=np.int32),
        positions=target.positions[: sum(scheduled)],
        query_start_loc=starts,
        idx_mapping=order,
    )
    if case.rows > 1:
        check_target(case, batch)
    drafts = torch.zeros(MOST * first.DRAFTED, dtype=torch.int64)
    speculator.prepare_dflash_inputs(
        input_buffers=buffers,
        query_slot_mapping=query_slots,
        context_positions=context_positions,
        context_slot_mapping=context_slots,
        sample_indices=drafts.clone(),
        sample_pos=drafts.clone(),
        sample_idx_mapping=drafts.clone(),
        temperature=torch.zeros(MOST),
        seeds=torch.zeros(MOST, dtype=torch.int64),
        input_batch=cast("Any", batch),
        num_sampled=torch.ones(count, dtype=torch.int32),
        num_rejected=first.ints([one.rejected for one in case.requests]),
        last_sampled=torch.full((MOST,), 50, dtype=torch.int64),
        next_prefill_tokens=torch.zeros(MOST, dtype=torch.int32),
        input_temperature=torch.zeros(MOST),
        input_seeds=torch.zeros(MOST, dtype=torch.int64),
        block_table=table,
        block_size=first.BLOCK,
        cp_rank=0,
        cp_size=1,
        cp_interleave=1,
        parallel_drafting_token_id=99,
        num_query_per_req=first.QUERIES,
        num_speculative_steps=first.DRAFTED,
        max_num_reqs=MOST,
        max_num_tokens=first.ROOM,
        max_model_len=first.COLUMNS * first.BLOCK,
    )
    found = (buffers.positions, query_slots, context_positions, context_slots)
    return {name: buffer.tolist() for name, buffer in zip(NAMES, found, strict=True)}


def check_target(case: first.Case, batch: SimpleNamespace) -> None:
    """Have the model's state make the target's positions, and see that they are those of an image."""
    longest = first.COLUMNS * first.BLOCK
    count, rows = len(case.requests), case.rows
    saved = [one.saved for one in case.requests for _ in range(rows)]
    prefill = torch.arange(longest, dtype=torch.int32).repeat(count * rows, 1) - first.ints(saved)[:, None]
    rope: Any = object.__new__(RopeState)
    rope.num_dims, rope.max_model_len = rows, longest
    rope.positions = torch.zeros(rows, first.ROOM + 1, dtype=torch.int64)
    rope.prefill_positions = SimpleNamespace(gpu=prefill)
    rope.prefill_delta = SimpleNamespace(gpu=first.ints([-one.saved for one in case.requests]))
    state: Any = object.__new__(DefaultModelState)
    state.rope_state = rope
    requests: Any = SimpleNamespace(
        prefill_len=SimpleNamespace(gpu=torch.full((count,), longest, dtype=torch.int32)),
        num_computed_tokens=SimpleNamespace(gpu=first.ints([one.computed for one in case.requests])),
    )
    batch.num_tokens_after_padding = len(batch.positions)
    given = state.prepare_inputs(batch, requests)["positions"]
    if not torch.equal(given, first.positions(case)):
        raise ValueError(f"{case.what}: the target gets other positions than those of an image; nothing is shown")


def probe() -> None:
    """Check the steps of the first probe, controls first."""
    if not hasattr(GPUModelRunner, "prepare_inputs") or not hasattr(DFlashProposer, "set_inputs_first_pass"):
        raise ValueError("runners prepare their steps elsewhere; this probe is out of date")
    with mock.patch.object(first, "prepare", prepare):
        for case in (*first.CONTROLS, *first.DEFECTS):
            first.check(case)
