"""Does model runner V2 give its DFlash drafter one count of rows, whatever was padded, in vLLM 0.33.0?

V1's proposer fails the first probe there, too, and nothing pads what it is given; V2, the default, serves
DFlash. Its speculator runs `propose` with its real kernel, in Triton's interpreter, on a batch of 17
requests: as it is, with the target's rows padded to 24 as for a captured graph, and with a graph of 24
requests for the drafter itself. What attention is given is noted in the place of a backend's builder;
graphs and the draft model are stand-ins.

Healthy: table, lengths and query starts have one count of rows, that of the requests or of the drafter's
own graph. What the requests' rows hold does not depend on padding, and rows behind them are of no
request: no length, no queries, no slots.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from probekit import expect
from torch.nn.functional import pad
from vllm.config import CUDAGraphMode
from vllm.v1.attention.backends.utils import PAD_SLOT_ID
from vllm.v1.spec_decode.dflash import DFlashProposer
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
from vllm.v1.worker.gpu.input_batch import InputBuffers
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator

if TYPE_CHECKING:
    from vllm.v1.attention.backend import CommonAttentionMetadata

REQUESTS, PADDED, MOST = 17, 24, 32
DRAFTED = 3
QUERIES = 1 + DRAFTED
BLOCK, COLUMNS = 16, 8
ROOM = 256
CPU = torch.device("cpu")
LAYER = "draft.layer"


class Way(NamedTuple):
    """How a step is padded."""

    what: str
    target: int  # rows of requests in the target's batch
    graph: int | None = None  # requests of the drafter's graph

    @property
    def rows(self) -> int:
        """Rows of requests that attention is to be given."""
        return self.graph or REQUESTS


class Group:
    """A group of draft layers whose backend only notes what it is given."""

    layer_names = (LAYER,)
    kv_cache_spec = None

    def __init__(self) -> None:
        """Note nothing yet."""
        self.seen: list[CommonAttentionMetadata] = []

    def get_metadata_builder(self, _microbatch: int = 0) -> SimpleNamespace:
        """Return a builder that cannot share metadata among groups."""
        return SimpleNamespace(supports_update_block_table=False)

    def build_metadata(self, metadata: CommonAttentionMetadata, *_: object, **_options: object) -> None:
        """Note *metadata*."""
        self.seen.append(metadata)


class Speculator(DFlashSpeculator):  # type: ignore[misc]
    """The real speculator without a configuration or a model behind it."""

    def __init__(self, way: Way) -> None:
        """Allocate what a step reads and writes."""
        self.way, self.group = way, Group()
        self.num_speculative_steps, self.num_query_per_req = DRAFTED, QUERIES
        self.max_num_reqs, self.max_num_tokens = MOST, ROOM
        self.vllm_config: Any = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=COLUMNS * BLOCK), kv_transfer_config=None
        )
        self.dp_size, self.dp_rank, self.dcp_size = 1, 0, 1
        self.parallel_drafting_token_id, self.sample_from_anchor = 7, False
        self.pcp_manager = self._aux_staging = self._num_rejected = self._layer_group_idx = None
        self.supports_decode_metadata_update, self._group_causal = False, False
        self.draft_kv_cache_group_id, self.draft_kv_cache_group_ids = 0, [0]
        self.input_buffers = InputBuffers(MOST, ROOM, CPU)
        self.hidden_states = torch.zeros(ROOM, 1)
        self.context_positions = torch.full((ROOM,), -77)
        self._context_slot_mappings = torch.full((1, ROOM), -77)
        self.sample_indices, self.sample_pos, self.sample_idx_mapping = torch.zeros(
            3, MOST * DRAFTED, dtype=torch.int64
        )
        self.draft_is_prefilling = torch.zeros(MOST, dtype=torch.bool)
        self.temperature, self.seeds = torch.zeros(MOST), torch.zeros(MOST, dtype=torch.int64)
        self.draft_tokens = torch.zeros(MOST, DRAFTED, dtype=torch.int64)
        self.arange_np = np.arange(MOST + 1, dtype=np.int32)
        self.attn_groups: Any = [[self.group]]
        self.kv_cache_config: Any = SimpleNamespace(kv_cache_groups=[SimpleNamespace(layer_names=[LAYER])])
        self.query_cudagraph_manager: Any = SimpleNamespace(
            dispatch=self._dispatch, run_fullgraph=lambda _graph: None
        )
        self.model: Any = SimpleNamespace(precompute_and_store_context_kv=lambda *_: None)
        table = torch.zeros(MOST, COLUMNS, dtype=torch.int32)
        table[:REQUESTS] = torch.arange(1, 1 + REQUESTS * COLUMNS, dtype=torch.int32).view(REQUESTS, COLUMNS)
        self.block_tables = cast("Any", SimpleNamespace(
            slot_mappings=torch.full((1, ROOM), -77),
            input_block_tables=[table],
            block_sizes=[BLOCK],
            cp_rank=0,
            cp_size=1,
            cp_interleave=1,
        ))  # fmt: skip

    def _dispatch(
        self, requests: int, tokens: int, *_: object, **_options: object
    ) -> BatchExecutionDescriptor:
        if self.way.graph is None:
            return BatchExecutionDescriptor(CUDAGraphMode.NONE, tokens, requests)
        return BatchExecutionDescriptor(CUDAGraphMode.FULL, self.way.graph * QUERIES, self.way.graph, QUERIES)

    def _prepare_eplb_forward(self, _tokens: int) -> None:
        """There are no experts."""

    def _generate_draft(self, *_: object, **_options: object) -> None:  # type: ignore[override]
        """Need no model."""


def metadata(way: Way) -> CommonAttentionMetadata:
    """Return what attention is given of a step in which each request verifies its drafts."""
    more = way.target - REQUESTS
    starts = torch.arange(REQUESTS + 1, dtype=torch.int32) * QUERIES
    lengths = torch.arange(REQUESTS, dtype=torch.int32) + 20 + QUERIES
    tokens = REQUESTS * QUERIES
    positions = torch.cat([torch.arange(20 + row, 20 + row + QUERIES) for row in range(REQUESTS)])
    batch: Any = SimpleNamespace(
        num_reqs=REQUESTS,
        num_reqs_after_padding=way.target,
        num_tokens=tokens,
        num_tokens_after_padding=way.target * QUERIES,
        num_scheduled_tokens=np.full(REQUESTS, QUERIES, dtype=np.int32),
        positions=pad(positions, (0, more * QUERIES)),
        query_start_loc=pad(starts, (0, more), value=tokens),
        idx_mapping=torch.arange(REQUESTS, dtype=torch.int32),
        seq_lens_cpu_upper_bound=pad(lengths, (0, more)),
    )
    states = torch.zeros(way.target * QUERIES, 1)
    speculator = Speculator(way)
    speculator.propose(
        input_batch=batch,
        attn_metadata={},
        slot_mappings={},
        last_hidden_states=states,
        aux_hidden_states=None,
        num_sampled=torch.ones(REQUESTS, dtype=torch.int32),
        num_rejected=torch.arange(REQUESTS, dtype=torch.int32) % QUERIES,
        last_sampled=torch.full((MOST,), 11, dtype=torch.int64),
        next_prefill_tokens=torch.zeros(MOST, dtype=torch.int32),
        temperature=torch.zeros(MOST),
        seeds=torch.zeros(MOST, dtype=torch.int64),
    )
    (seen,) = speculator.group.seen
    return seen


def tensors(seen: CommonAttentionMetadata) -> dict[str, torch.Tensor]:
    """Return what has a row for each request, or for each query."""
    return {
        "block table": seen.block_table_tensor,
        "sequence lengths": seen.seq_lens,
        "sequence lengths on the host": cast("torch.Tensor", seen.seq_lens_cpu_upper_bound),
        "queries": seen.query_start_loc.diff(),
        "queries on the host": seen.query_start_loc_cpu.diff(),
        "slots": seen.slot_mapping.view(-1, QUERIES),
    }


def check(way: Way, wanted: dict[str, torch.Tensor]) -> None:
    """Compare what attention is given with what it is given without padding."""
    seen = metadata(way)
    found = tensors(seen)
    wrong = {name: len(rows) for name, rows in found.items() if len(rows) != way.rows}
    expect(not wrong and seen.num_reqs == way.rows, f"{way.what}: {way.rows} requests, but {wrong} rows")
    for name, rows in found.items():
        expect(torch.equal(rows[:REQUESTS], wanted[name]), f"{way.what}: {name} of the requests differ")
    behind = {name: rows[REQUESTS:] for name, rows in found.items()}
    expect(not behind["sequence lengths"].any(), f"{way.what}: padding has a length")
    expect(
        not behind["queries"].any() and not behind["queries on the host"].any(),
        f"{way.what}: padding has queries",
    )
    expect(bool((behind["slots"] == PAD_SLOT_ID).all()), f"{way.what}: padding has slots")


def probe() -> None:
    """The batch without padding first: what is wanted of the others is what comes out of it."""
    if not hasattr(DFlashProposer, "set_inputs_first_pass"):
        raise ValueError("V1 keeps its steps elsewhere; this probe is out of date")
    plain = Way("not padded", REQUESTS)
    wanted = tensors(metadata(plain))
    for way in (
        plain,
        Way("the target's batch padded", PADDED),
        Way("a graph of 24 requests", REQUESTS, PADDED),
        Way("both padded", PADDED, PADDED),
    ):
        check(way, wanted)
