"""Which rows of a DFlash step may write the draft's KV cache, on model runner V2 of vLLM 0.33.0?

The batches and the plain calculation of context slots are those of the first probe, `probe.py`. The verdict
is about V2, which serves DFlash there; V1's kernel is as it was and is reached by a few configurations only.

Healthy, as there: an accepted context row has the slot that the block table gives it; a rejected one, one in
the null block and one past the table have `PADDING_SLOT_ID`, and so have query rows past the table. Query
rows in the null block have none either, which 0.33.0 adds. Positions of rejected rows are not read; query
positions end at the longest sequence.

Upstream aligns the table to 128 tokens, so that a query lies past it only where the longest sequence is a
multiple of that, as it mostly is; `BEYOND` has such requests.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import probe as first
import torch
from probe import BLOCK, COLUMNS, QUERIES, Case, Request, Result, per_request, unset
from probekit import expect
from vllm.v1.spec_decode.utils import PADDING_SLOT_ID
from vllm.v1.worker.block_table import get_block_table_width
from vllm.v1.worker.gpu.spec_decode.dflash import speculator

LONGEST = COLUMNS * BLOCK
MOST, ROWS = 8, 256
LAST_DRAFTS = Case(
    "the last drafts before the longest sequence",
    (Request(LONGEST - 6, 3, 0, tuple(range(1, 9))), first.PLAIN),
)
LAST_REJECTED = Case(
    "a rejection before the longest sequence", (Request(LONGEST - 5, 4, 2, tuple(range(1, 9))), first.PLAIN)
)
NULL_QUERY = Case("queries in the null block", (Request(29, 2, 0, (3, 4)), first.PLAIN))


def run(case: Case, rank: int = 0, ranks: int = 1) -> Result:
    """Let the speculator of a *rank* prepare the step, in a batch of at most eight requests."""
    total, count = sum(one.scheduled for one in case.requests), len(case.requests)
    table = torch.zeros(MOST, COLUMNS, dtype=torch.int32)
    table[:count] = torch.tensor([one.table() for one in case.requests], dtype=torch.int32)
    buffers: Any = SimpleNamespace(
        input_ids=unset(ROWS, torch.int32),
        positions=unset(ROWS),
        is_padding=torch.zeros(ROWS, dtype=torch.bool),
        query_start_loc=unset(MOST + 1, torch.int32),
        seq_lens=unset(MOST, torch.int32),
    )
    batch = SimpleNamespace(
        num_reqs=count,
        num_scheduled_tokens=np.array([one.scheduled for one in case.requests], dtype=np.int32),
        positions=first.positions(case),
        query_start_loc=first.starts(case),
        idx_mapping=torch.arange(count, dtype=torch.int32),
    )
    query_slots, context_positions, context_slots = unset(ROWS), unset(ROWS), unset(ROWS)
    speculator.prepare_dflash_inputs(
        input_buffers=buffers,
        query_slot_mapping=query_slots,
        context_positions=context_positions,
        context_slot_mapping=context_slots,
        sample_indices=unset(MOST * first.DRAFTED),
        sample_pos=unset(MOST * first.DRAFTED),
        sample_idx_mapping=unset(MOST * first.DRAFTED),
        temperature=torch.zeros(MOST),
        seeds=torch.zeros(MOST, dtype=torch.int64),
        input_batch=cast("Any", batch),
        num_sampled=torch.ones(count, dtype=torch.int32),
        num_rejected=per_request([one.rejected for one in case.requests]),
        last_sampled=torch.tensor([*first.bonus_tokens(case), *[0] * (MOST - count)], dtype=torch.int64),
        next_prefill_tokens=torch.zeros(MOST, dtype=torch.int32),
        input_temperature=torch.zeros(MOST),
        input_seeds=torch.zeros(MOST, dtype=torch.int64),
        block_table=table,
        block_size=BLOCK,
        cp_rank=rank,
        cp_size=ranks,
        cp_interleave=1,
        parallel_drafting_token_id=first.MASK_TOKEN,
        num_query_per_req=QUERIES,
        num_speculative_steps=first.DRAFTED,
        max_num_reqs=MOST,
        max_num_tokens=ROWS,
        max_model_len=LONGEST * ranks,
    )
    queries = count * QUERIES
    padding = set(query_slots[queries:].tolist())
    expect(padding == {PADDING_SLOT_ID}, f"{case.what}: padding of the query rows has slots {padding}")
    return Result(
        context_slots[:total].tolist(),
        context_positions[:total].tolist(),
        query_slots[:queries].tolist(),
        buffers.positions[:queries].tolist(),
        buffers.input_ids[:queries].tolist(),
    )


def accepted(case: Case) -> list[int]:
    """Return the indices of the context rows that stay."""
    starts = first.starts(case).tolist()
    return [
        start + row for start, one in zip(starts, case.requests, strict=False) for row in range(one.accepted)
    ]


def check(case: Case, result: Result) -> None:
    """Compare every row with a plain calculation."""
    spans = [one.last + 1 + offset for one in case.requests for offset in range(QUERIES)]
    tokens = [
        token for bonus in first.bonus_tokens(case) for token in (bonus, *[first.MASK_TOKEN] * first.DRAFTED)
    ]
    positions, kept = first.positions(case).tolist(), accepted(case)
    expect(
        [result.context_positions[row] for row in kept] == [positions[row] for row in kept],
        f"{case.what}: positions of accepted context rows",
    )
    wanted = [min(position, LONGEST - 1) for position in spans]
    expect(result.query_positions == wanted, f"{case.what}: positions of query rows")
    expect(result.input_ids == tokens, f"{case.what}: token ids {result.input_ids}")
    context = [slot for one in case.requests for slot in one.context_slots()]
    expect(
        result.context_slots == context,
        f"{case.what}: context rows get slots {result.context_slots} instead of {context}",
    )
    queries = [one.slot(one.last + 1 + offset) for one in case.requests for offset in range(QUERIES)]
    expect(
        result.query_slots == queries,
        f"{case.what}: query rows get slots {result.query_slots} instead of {queries}",
    )


def check_ranks(ranks: int) -> None:
    """With context parallelism a column stands for a block on each rank, so that the table ends later."""
    blocks = tuple(range(1, 1 + COLUMNS))
    for computed in (LONGEST - 3, ranks * LONGEST - 12, ranks * LONGEST - 5):
        one = Request(computed, 4, 1, blocks)
        case = Case(f"{ranks} ranks, from position {computed}", (one,))
        results = [run(case, rank, ranks) for rank in range(ranks)]
        positions = [*range(computed, computed + 4), *range(one.last + 1, one.last + 1 + QUERIES)]
        rows = [result.context_slots + result.query_slots for result in results]
        for row, position in enumerate(positions):
            inside = position < ranks * LONGEST and row != 3  # the last context row was rejected
            offset = position % (BLOCK * ranks)
            slot = blocks[position // (BLOCK * ranks)] * BLOCK + offset // ranks if inside else 0
            wanted = [slot if inside and offset % ranks == rank else PADDING_SLOT_ID for rank in range(ranks)]
            found = [slots[row] for slots in rows]
            expect(found == wanted, f"{case.what}: position {position} gets slots {found}, not {wanted}")


def probe() -> None:
    """Controls first, so that a defect is reported only where healthy steps are right."""
    if get_block_table_width(COLUMNS, BLOCK) != COLUMNS:
        raise ValueError("upstream gives tables another width; this probe is out of date")
    for case in (*first.CONTROLS, *first.DEFECTS, NULL_QUERY, LAST_DRAFTS, LAST_REJECTED, *first.BEYOND):
        result = run(case)
        check(case, result)
        first.check_cache(case, "V2", result)
    for ranks in (1, 2):
        check_ranks(ranks)
