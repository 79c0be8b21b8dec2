"""Does the DFlash drafter get the context of every step, also near the longest sequence, on model runner V2?

The steps are those of the first probe, `probe.py`, which finds the defect on V1; V2 serves DFlash in vLLM 0.33.0, and
the verdict is about it. They run through the real `DFlashSpeculator.propose`, whose kernel runs in Triton's
interpreter. What builds attention's metadata and the draft model are stand-ins; the model notes what context it is
given to store, and whether its queries ran.

Healthy: every accepted token of every step is stored once, with its position, its hidden state and its slot, and the
queries run in each. A drafter whose longest sequence is shorter than the target's shortens the server's, so that its
steps end there, too; a step without drafts, which 0.33.0 knows, is stored as well.
"""



from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import probe as first
import torch
from probekit import expect
from vllm.config import CUDAGraphMode
from vllm.v1.spec_decode.dflash import DFlashProposer
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
from vllm.v1.worker.gpu.input_batch import InputBuffers
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

MOST, ROOM = 8, 512
QUERIES = 1 + first.DRAFTED
STEPS = (
    *first.CONTROLS,
    *(case for case in first.DEFECTS if case.drafter_longest == first.LONGEST),
    first.Case("a prompt that ends at the longest sequence alone", (first.Request(60, first.LONGEST - 60),)),
)


class Speculator(DFlashSpeculator):  # type: ignore[misc]
    """The real speculator without a configuration or a model behind it."""

    def __init__(self) -> None:
        self.vllm_config: Any = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=first.LONGEST), kv_transfer_config=None
        )
        self.num_speculative_steps, self.num_query_per_req = first.DRAFTED, QUERIES
        self.max_num_reqs, self.max_num_tokens = MOST, ROOM
        self.dp_size, self.dp_rank, self.dcp_size = 1, 0, 1
        self.parallel_drafting_token_id, self.sample_from_anchor = 7, False
        self.pcp_manager = self._aux_staging = self._num_rejected = self._layer_group_idx = None
        self.supports_decode_metadata_update, self._group_causal = False, False
        self.draft_kv_cache_group_id, self.draft_kv_cache_group_ids = 0, [0]
        self.input_buffers = InputBuffers(MOST, ROOM, first.CPU)
        self.hidden_states = torch.zeros(ROOM, first.WIDTH)
        self.context_positions = torch.full((ROOM,), -77)
        self._context_slot_mappings = torch.full((1, ROOM), -77)
        self.sample_indices, self.sample_pos, self.sample_idx_mapping = torch.zeros(
            3, MOST * first.DRAFTED, dtype=torch.int64
        )
        self.temperature, self.seeds = torch.zeros(MOST), torch.zeros(MOST, dtype=torch.int64)
        self.draft_tokens = torch.zeros(MOST, first.DRAFTED, dtype=torch.int64)
        self.kv_cache_config: Any = SimpleNamespace(kv_cache_groups=[SimpleNamespace(layer_names=[first.LAYER])])
        self.query_cudagraph_manager: Any = SimpleNamespace(dispatch=self._eager)
        self.model: Any = first.DraftModel()
        self.queries = 0

    @staticmethod
    def _eager(num_reqs: int, num_tokens: int, *_: object, **_options: object) -> BatchExecutionDescriptor:
        return BatchExecutionDescriptor(cg_mode=CUDAGraphMode.NONE, num_tokens=num_tokens, num_reqs=num_reqs)

    def _build_uniform_attn_metadata(self, **_: object) -> None:  # type: ignore[override]
        """Attention is not in question."""

    def _prepare_eplb_forward(self, _tokens: int) -> None:
        """There are no experts."""

    def _generate_draft(self, num_reqs: int, *_: object, **_options: object) -> None:  # type: ignore[override]
        """Count the requests that are drafted for, after what the model was given to store."""
        expect(len(self.model.stored) == 1, f"{len(self.model.stored)} contexts were stored before the queries")
        self.queries += num_reqs * self.num_query_per_req


def step(case: first.Case, speculator: Speculator, drafts: int | None) -> None:
    """Run a step of the drafter."""
    scheduled, count = [one.scheduled for one in case.requests], len(case.requests)
    total = sum(scheduled)
    starts = first.ints([sum(scheduled[:end]) for end in range(count + 1)])
    blocks = torch.zeros(MOST, first.COLUMNS, dtype=torch.int32)
    blocks[:count] = first.table(case)
    speculator.block_tables = cast("Any", SimpleNamespace(
        slot_mappings=torch.full((1, ROOM), -77),
        input_block_tables=[blocks],
        block_sizes=[first.BLOCK],
        cp_rank=0,
        cp_interleave=1,
    ))  # fmt: skip
    positions = torch.cat([torch.arange(one.computed, one.length) for one in case.requests])
    batch: Any = SimpleNamespace(
        num_reqs=count,
        num_tokens=total,
        num_scheduled_tokens=np.array(scheduled, dtype=np.int32),
        positions=positions,
        query_start_loc=starts,
        idx_mapping=torch.arange(count, dtype=torch.int32),
        seq_lens_cpu_upper_bound=first.ints([one.length for one in case.requests]),
    )
    states = torch.arange(1.0, total + 1).unsqueeze(1).expand(total, first.WIDTH).contiguous()
    speculator.propose(
        input_batch=batch,
        attn_metadata={},
        slot_mappings={},
        last_hidden_states=states,
        aux_hidden_states=[states],
        num_sampled=torch.ones(count, dtype=torch.int32),
        num_rejected=first.ints([one.rejected for one in case.requests]),
        last_sampled=torch.full((MOST,), 11, dtype=torch.int64),
        next_prefill_tokens=torch.zeros(MOST, dtype=torch.int32),
        temperature=torch.zeros(MOST),
        seeds=torch.zeros(MOST, dtype=torch.int64),
        num_speculative_tokens=drafts,
    )


def probe() -> None:
    """Controls first, and each step with drafts and without."""
    if not hasattr(GPUModelRunner, "sample_tokens") or not hasattr(DFlashProposer, "set_inputs_first_pass"):
        raise ValueError("V1 keeps its steps elsewhere; this probe is out of date")
    for case in STEPS:
        for drafts in (None, 0):
            speculator = Speculator()
            step(case, speculator, drafts)
            queries = 0 if drafts == 0 else len(case.requests) * QUERIES
            expect(
                speculator.queries == queries,
                f"{case.what}: {speculator.queries} query rows ran instead of {queries}",
            )
            runner: Any = SimpleNamespace(drafter=speculator)
            written = first.check_context(case, runner)
            expect(written <= {False}, f"{case.what}: rejected tokens have slots")
