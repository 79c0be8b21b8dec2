"""Which rows of a DFlash step may write the draft's KV cache?

The kernels of both model runners are called the way their runners call them, on hand-made batches, in
Triton's interpreter: `DFlashProposer.set_inputs_first_pass` (V1) and `prepare_dflash_inputs` (V2). Every slot
is compared with a plain calculation. The context slots are then handed to upstream's own cache writer, and
what it left untouched is compared as well: a slot of -1 is worth nothing if its consumer writes anyway.

Healthy: an accepted context row has the slot that the block table gives it. A rejected one, one whose block
is the null block (id 0), and one past the table have `PADDING_SLOT_ID`. With V2, which drafts up to and
beyond the longest request, the same holds for query rows past the table.
Controls, true of every tree: batches in which every row is accepted and has a block; query rows, positions
and token ids everywhere.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest import mock

import numpy as np
import torch
from probekit import expect
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.ops.triton_reshape_and_cache_flash import triton_reshape_and_cache_flash
from vllm.v1.spec_decode.dflash import DFlashProposer
from vllm.v1.spec_decode.utils import PADDING_SLOT_ID
from vllm.v1.worker.gpu.spec_decode.dflash import speculator

BLOCK = 16
COLUMNS = 8  # blocks of the longest request
BLOCKS = 40
DRAFTED = 3
QUERIES = 1 + DRAFTED
MASK_TOKEN = 99
HEADS, WIDTH = 1, 8
UNSET = -77  # what output buffers hold before: no slot, no position
CPU = torch.device("cpu")


class Request(NamedTuple):
    """One request's rows in a step: *scheduled* tokens from *computed* on, the last *rejected* in vain."""

    computed: int
    scheduled: int
    rejected: int
    blocks: tuple[int, ...]

    @property
    def accepted(self) -> int:
        """Context rows that stay."""
        return self.scheduled - self.rejected

    @property
    def last(self) -> int:
        """Position of the last accepted token."""
        return self.computed + self.accepted - 1

    def table(self) -> list[int]:
        """Its row of the block table; columns that it has no block for hold the null block."""
        return [*self.blocks, *[0] * (COLUMNS - len(self.blocks))]

    def slot(self, position: int) -> int:
        """Where *position* may be written."""
        column = position // BLOCK
        block = self.table()[column] if column < COLUMNS else 0
        return block * BLOCK + position % BLOCK if block else PADDING_SLOT_ID

    def clamped_slot(self, position: int) -> int:
        """What upstream makes of a query's *position*: no block is no reason, the last column is the end."""
        return self.table()[min(position // BLOCK, COLUMNS - 1)] * BLOCK + position % BLOCK

    def context_slots(self) -> list[int]:
        """One slot for each scheduled row."""
        kept = [self.slot(self.computed + row) for row in range(self.accepted)]
        return kept + [PADDING_SLOT_ID] * self.rejected


class Case(NamedTuple):
    """One step of a batch."""

    what: str
    requests: tuple[Request, ...]
    rejects: bool = True  # the step verifies drafts; the V1 kernel has a variant without


PLAIN = Request(computed=20, scheduled=4, rejected=0, blocks=(5, 6))
CONTROLS = (
    Case("nothing rejected", (PLAIN, Request(30, 4, 0, (7, 9, 3)))),
    Case("a step without drafts", (Request(0, 40, 0, (4, 8, 2)), PLAIN), rejects=False),
    Case("a prompt of several programs", (Request(16, 100, 0, tuple(range(10, 18))), PLAIN)),
)
DEFECTS = (
    Case("two drafts rejected", (Request(26, 4, 2, (3, 1, 2)), PLAIN)),  # in block 1, the first of its own
    Case("two drafts rejected by the second request", (PLAIN, Request(26, 4, 2, (1, 2, 3)))),
    Case("every draft rejected", (Request(31, 4, 3, (11, 12, 13)), Request(47, 4, 3, (20, 21, 22, 23)))),
    Case(
        "accepted rows in the null block",
        (Request(12, 8, 0, (0, 6, 7)), Request(28, 8, 0, (0, 0, 9)), PLAIN),
        rejects=False,
    ),
    Case("rejected rows beside the null block", (Request(12, 8, 3, (0, 6, 7)), PLAIN)),
)
BEYOND = (
    Case("accepted rows past the table", (Request(COLUMNS * BLOCK - 2, 6, 0, tuple(range(1, 9))), PLAIN)),
    Case("rejected rows past the table", (Request(COLUMNS * BLOCK - 2, 4, 2, tuple(range(1, 9))), PLAIN)),
)


class Result(NamedTuple):
    """What a kernel wrote, one row a token."""

    context_slots: list[int]
    context_positions: list[int]
    query_slots: list[int]
    query_positions: list[int]
    input_ids: list[int]


def starts(case: Case) -> torch.Tensor:
    """Where each request's rows begin, and the end."""
    return torch.tensor([0, *np.cumsum([request.scheduled for request in case.requests])], dtype=torch.int32)


def positions(case: Case) -> torch.Tensor:
    """Position of each scheduled token."""
    spans = [torch.arange(one.computed, one.computed + one.scheduled) for one in case.requests]
    return torch.cat(spans)


def per_request(values: list[int]) -> torch.Tensor:
    """An int32 tensor, one value a request."""
    return torch.tensor(values, dtype=torch.int32)


def unset(rows: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """An output buffer."""
    return torch.full((rows,), UNSET, dtype=dtype)


def bonus_tokens(case: Case) -> list[int]:
    """The token that the target added to each request."""
    return [50 + index for index in range(len(case.requests))]


def run_v1(case: Case) -> Result:
    """Let the V1 proposer prepare the step."""
    total, count = sum(one.scheduled for one in case.requests), len(case.requests)
    proposer: Any = SimpleNamespace(
        num_speculative_tokens=DRAFTED,
        device=CPU,
        input_ids=unset(256, torch.int32),
        positions=unset(256),
        _context_positions_buffer=unset(256),
        _context_slot_mapping_buffer=unset(256),
        _slot_mapping_buffer=unset(256),
        parallel_drafting_token_id=MASK_TOKEN,
        block_size=BLOCK,
        arange=torch.arange(512, dtype=torch.int32),
        token_arange_np=np.arange(512, dtype=np.int32),
        dflash_causal=False,
    )
    lengths = per_request([one.computed + one.scheduled for one in case.requests])
    metadata = CommonAttentionMetadata(
        query_start_loc=starts(case),
        query_start_loc_cpu=starts(case),
        seq_lens=lengths,
        num_reqs=count,
        num_actual_tokens=total,
        max_query_len=max(one.scheduled for one in case.requests),
        max_seq_len=int(lengths.max()),
        block_table_tensor=torch.tensor([one.table() for one in case.requests], dtype=torch.int32),
        slot_mapping=unset(total),
    )
    DFlashProposer.set_inputs_first_pass(
        proposer,
        target_token_ids=torch.zeros(total, dtype=torch.int32),
        next_token_ids=per_request(bonus_tokens(case)),
        target_positions=positions(case),
        target_hidden_states=torch.zeros(total, WIDTH),
        token_indices_to_sample=None,
        cad=metadata,
        num_rejected_tokens_gpu=per_request([one.rejected for one in case.requests])
        if case.rejects
        else None,
    )
    queries = count * QUERIES
    return Result(
        proposer._context_slot_mapping_buffer[:total].tolist(),  # noqa: SLF001 - what is in question
        proposer._context_positions_buffer[:total].tolist(),  # noqa: SLF001
        proposer._slot_mapping_buffer[:queries].tolist(),  # noqa: SLF001
        proposer.positions[:queries].tolist(),
        proposer.input_ids[:queries].tolist(),
    )


def run_v2(case: Case) -> Result:
    """Let model runner V2's speculator prepare the step, in a batch of at most eight requests."""
    most, total, count = 8, sum(one.scheduled for one in case.requests), len(case.requests)
    table = torch.zeros(most, COLUMNS, dtype=torch.int32)
    table[:count] = torch.tensor([one.table() for one in case.requests], dtype=torch.int32)
    buffers = SimpleNamespace(
        input_ids=unset(256, torch.int32),
        positions=unset(256),
        query_start_loc=unset(most + 1, torch.int32),
        seq_lens=unset(most, torch.int32),
    )
    batch = SimpleNamespace(
        num_reqs=count,
        num_scheduled_tokens=np.array([one.scheduled for one in case.requests], dtype=np.int32),
        positions=positions(case),
        query_start_loc=starts(case),
        idx_mapping=torch.arange(count, dtype=torch.int32),
    )
    query_slots, context_positions, context_slots = unset(256), unset(256), unset(256)
    speculator.prepare_dflash_inputs(
        cast("Any", buffers),
        query_slots,
        context_positions,
        context_slots,
        unset(most * DRAFTED),
        unset(most * DRAFTED),
        unset(most * DRAFTED, torch.int32),
        cast("Any", batch),
        torch.ones(count, dtype=torch.int32),
        per_request([one.rejected for one in case.requests]),
        torch.tensor([*bonus_tokens(case), *[0] * (most - count)], dtype=torch.int64),
        torch.zeros(most, dtype=torch.int32),
        table,
        BLOCK,
        MASK_TOKEN,
        QUERIES,
        DRAFTED,
        most,
        256,
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


def check(case: Case, runner: str, result: Result) -> None:
    """Compare every row with a plain calculation; what is no defect of any tree comes first."""
    where = f"{runner}, {case.what}"
    queries = [one.last + 1 + offset for one in case.requests for offset in range(QUERIES)]
    tokens = [token for bonus in bonus_tokens(case) for token in (bonus, *[MASK_TOKEN] * DRAFTED)]
    expect(result.context_positions == positions(case).tolist(), f"{where}: positions of context rows")
    expect(result.query_positions == queries, f"{where}: positions of query rows")
    expect(result.input_ids == tokens, f"{where}: token ids {result.input_ids}")
    wanted = [slot for one in case.requests for slot in one.context_slots()]
    expect(
        result.context_slots == wanted,
        f"{where}: context rows get slots {result.context_slots} instead of {wanted}",
    )
    check_queries(case, where, result, guarded=runner == "V2")


def check_queries(case: Case, where: str, result: Result, *, guarded: bool) -> None:
    """Query rows keep upstream's slots, but with V2 those past the table have none."""
    wanted = []
    for request in case.requests:
        for position in range(request.last + 1, request.last + 1 + QUERIES):
            past = position >= COLUMNS * BLOCK
            wanted.append(PADDING_SLOT_ID if past and guarded else request.clamped_slot(position))
    expect(
        result.query_slots == wanted,
        f"{where}: query rows get slots {result.query_slots} instead of {wanted}",
    )


def check_cache(case: Case, runner: str, result: Result) -> None:
    """Upstream's cache writer leaves every slot untouched that no accepted row has."""
    caches = [torch.full((BLOCKS, BLOCK, HEADS, WIDTH), float(UNSET)) for _ in range(2)]
    rows = len(result.context_slots)
    values = torch.arange(1.0, rows + 1).view(rows, 1, 1).expand(rows, HEADS, WIDTH).contiguous()
    slots, one = torch.tensor(result.context_slots), torch.ones(1)
    with mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)):  # asked for a tile size
        triton_reshape_and_cache_flash(values, -values, *caches, slots, "auto", one, one)
    wanted = torch.full((BLOCKS * BLOCK,), float(UNSET))
    plain = [slot for request in case.requests for slot in request.context_slots()]
    for row, slot in enumerate(plain):
        if slot != PADDING_SLOT_ID:
            wanted[slot] = row + 1
    for name, cache, sign in (("keys", caches[0], 1), ("values", caches[1], -1)):
        seen = cache.view(BLOCKS * BLOCK, HEADS * WIDTH)
        goal = torch.where(wanted == UNSET, wanted, sign * wanted).unsqueeze(1).expand_as(seen)
        wrong = (seen != goal).any(dim=1).nonzero().flatten().tolist()
        expect(not wrong, f"{runner}, {case.what}: {name} of slots {wrong} are not what accepted rows wrote")


def probe() -> None:
    """Controls on both runners first, so that a defect is reported only where healthy steps are right."""
    runners = {"V1": run_v1, "V2": run_v2}
    for case in (*CONTROLS, *DEFECTS, *BEYOND):
        for runner, run in runners.items():
            result = run(case)
            check(case, runner, result)
            check_cache(case, runner, result)
