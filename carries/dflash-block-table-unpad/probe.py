"""Does the DFlash drafter get one row for each request of the batch, also when its metadata are padded?

`DFlashProposer.set_inputs_first_pass` runs with its real kernel, in Triton's interpreter, on the metadata of
17 requests: as they are, with a block table that was padded to 24 rows as a captured batch would be, with
everything padded, and with everything but the table. Padding is that of upstream's runner: no length, no
tokens, the null block.

Healthy: what comes out is the same, whatever was padded, and has 17 rows.
Control, true of every tree: what comes out for metadata that are not padded, and the host's bound of their
lengths, which slicing would drop.
"""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from probekit import expect
from torch.nn.functional import pad
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.spec_decode.dflash import DFlashProposer

REQUESTS, PADDED = 17, 24
DRAFTED = 3
QUERIES = 1 + DRAFTED
BLOCK, COLUMNS = 16, 8
ROOM = 256  # rows of the proposer's buffers


class Drafted(NamedTuple):
    """What the proposer made of one batch."""

    rows: int
    sampled: torch.Tensor
    metadata: CommonAttentionMetadata
    buffers: dict[str, torch.Tensor]


def batch() -> CommonAttentionMetadata:
    """Seventeen requests, each of which verifies its drafts: the metadata without padding."""
    starts = torch.arange(REQUESTS + 1, dtype=torch.int32) * QUERIES
    lengths = torch.arange(REQUESTS, dtype=torch.int32) + 20 + QUERIES
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts.clone(),
        seq_lens=lengths,
        num_reqs=REQUESTS,
        num_actual_tokens=REQUESTS * QUERIES,
        max_query_len=QUERIES,
        max_seq_len=int(lengths.max()),
        block_table_tensor=torch.arange(1, 1 + REQUESTS * COLUMNS, dtype=torch.int32).view(REQUESTS, COLUMNS),
        slot_mapping=torch.arange(REQUESTS * QUERIES),
    )


def pad_table(metadata: CommonAttentionMetadata) -> CommonAttentionMetadata:
    """Add the null block's rows to the block table alone."""
    table = pad(metadata.block_table_tensor, (0, 0, 0, PADDED - REQUESTS))
    return metadata.replace(block_table_tensor=table)


def pad_requests(metadata: CommonAttentionMetadata) -> CommonAttentionMetadata:
    """Pad as upstream's runner does, but for the table: requests without tokens, of length zero."""
    more = PADDED - REQUESTS
    starts = pad(metadata.query_start_loc, (0, more), value=REQUESTS * QUERIES)
    return metadata.replace(
        query_start_loc=starts,
        query_start_loc_cpu=starts.clone(),
        seq_lens=pad(metadata.seq_lens, (0, more)),
        num_reqs=PADDED,
        num_actual_tokens=PADDED * QUERIES,
        slot_mapping=pad(metadata.slot_mapping, (0, more * QUERIES), value=-1),
    )


def pad_all(metadata: CommonAttentionMetadata) -> CommonAttentionMetadata:
    """Pad as upstream's runner does."""
    return pad_table(pad_requests(metadata))


def draft(metadata: CommonAttentionMetadata, rejected: torch.Tensor | None) -> Drafted:
    """Let a proposer prepare its first pass."""
    names = ("positions", "_slot_mapping_buffer", "_context_positions_buffer", "_context_slot_mapping_buffer")
    buffers = {name: torch.full((ROOM,), -77) for name in names}  # -77 stays where nothing is written
    buffers["input_ids"] = torch.full((ROOM,), -77, dtype=torch.int32)
    proposer: Any = SimpleNamespace(
        num_speculative_tokens=DRAFTED,
        device=torch.device("cpu"),
        parallel_drafting_token_id=99,
        block_size=BLOCK,
        arange=torch.arange(ROOM, dtype=torch.int32),
        token_arange_np=np.arange(ROOM, dtype=np.int32),
        dflash_causal=False,
        **buffers,
    )
    tokens = REQUESTS * QUERIES
    positions = torch.cat([torch.arange(20 + row, 20 + row + QUERIES) for row in range(REQUESTS)])
    rows, sampled, handed_on = DFlashProposer.set_inputs_first_pass(
        proposer,
        target_token_ids=torch.zeros(tokens, dtype=torch.int32),
        next_token_ids=torch.arange(REQUESTS, dtype=torch.int32) + 50,
        target_positions=positions,
        target_hidden_states=torch.zeros(tokens, 8),
        token_indices_to_sample=None,
        cad=metadata,
        num_rejected_tokens_gpu=rejected,
    )
    return Drafted(rows, sampled, handed_on, buffers)


def check_rows(what: str, seen: Drafted) -> None:
    """Every tensor that attention is given has the rows of the batch."""
    metadata = seen.metadata
    rows = {
        "block table": len(metadata.block_table_tensor),
        "sequence lengths": len(metadata.seq_lens),
        "query starts": len(metadata.query_start_loc) - 1,
        "query starts on the host": len(metadata.query_start_loc_cpu) - 1,
        "requests": metadata.num_reqs,
    }
    wrong = {name: count for name, count in rows.items() if count != REQUESTS}
    expect(not wrong, f"{what}: {REQUESTS} requests were sampled, but attention is given {wrong} rows")
    tokens = {
        "queries": seen.rows,
        "slots": len(metadata.slot_mapping),
        "tokens": metadata.num_actual_tokens,
        "sampled rows, and one a request": len(seen.sampled) + REQUESTS,
    }
    odd = {name: count for name, count in tokens.items() if count != REQUESTS * QUERIES}
    expect(not odd, f"{what}: {REQUESTS * QUERIES} queries, but {odd}")


def check_bound() -> None:
    """Metadata that fit keep the host's bound of the lengths."""
    bound = batch().seq_lens + 1
    seen = draft(batch().replace(seq_lens_cpu_upper_bound=bound), None).metadata.seq_lens_cpu_upper_bound
    expect(
        seen is not None and torch.equal(seen, bound + QUERIES),
        "not padded: the bound of the lengths is lost",
    )


def check_equal(what: str, seen: Drafted, wanted: Drafted) -> None:
    """Padding changes nothing of what is prepared."""
    expect(torch.equal(seen.sampled, wanted.sampled), f"{what}: other rows are sampled")
    for name, buffer in wanted.buffers.items():
        expect(torch.equal(seen.buffers[name], buffer), f"{what}: {name} differs")
    for field in fields(wanted.metadata):
        one, other = getattr(seen.metadata, field.name), getattr(wanted.metadata, field.name)
        same = torch.equal(one, other) if isinstance(other, torch.Tensor) else one == other
        expect(same, f"{what}: {field.name} of the draft's metadata differs")


def probe() -> None:
    """The control first: what is wanted of padded metadata is what comes out without padding."""
    check_bound()
    some = torch.arange(REQUESTS, dtype=torch.int32) % QUERIES
    rejections = {
        "without rejections": (None, None),
        "with rejections": (some, some),
        "with padded rejections": (some, pad(some, (0, PADDED - REQUESTS))),
    }
    for when, (rejected, padded) in rejections.items():
        wanted = draft(batch(), rejected)
        check_rows(f"not padded, {when}", wanted)
        ways = (
            ("block table", pad_table),
            ("all metadata", pad_all),
            ("all metadata but the block table", pad_requests),
        )
        for how, padding in ways:
            if padded is not rejected and padding is pad_table:
                continue  # one count of rejections a sequence length
            what = f"{how} padded, {when}"
            seen = draft(padding(batch()), padded)
            check_rows(what, seen)
            check_equal(what, seen, wanted)
