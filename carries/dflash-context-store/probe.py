"""Does the DFlash drafter get the context of every step, also of those that it drafts nothing in?

Steps run through the real `GPUModelRunner.sample_tokens` and a real `DFlashProposer`, whose kernels run in
Triton's interpreter. Sampling, bookkeeping and the models are stand-ins; the draft model notes what context
it is given to store, and whether its queries ran.

The defect shows in a step with one request that is too long to draft for: upstream then skips the drafter for
the whole batch, and with it the context of all other requests, whose tokens no later step computes again.
Healthy: every accepted token of the step is stored, with its position, its hidden state and its slot. Only
positions that the drafter cannot embed are not, and have no slot.
Controls, true of every tree: a step in which all fit is stored and drafted for; one in which they do not has
zeros for drafts, and runs no query.
"""

# ruff: noqa: SLF001 - the runner's own state between two of its methods

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest import mock

import torch
from probekit import expect
from torch import nn
from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode
from vllm.model_executor.models.qwen3_dflash import DFlashQwen3ForCausalLM
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.utils import PAD_SLOT_ID
from vllm.v1.spec_decode import llm_base_proposer
from vllm.v1.spec_decode.dflash import DFlashProposer
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

CPU = torch.device("cpu")
LAYER = "draft.attention"
BLOCK, COLUMNS, LONGEST = 16, 8, 128
WIDTH, DRAFTED, DRAFT = 4, 3, 5


class Request(NamedTuple):
    """Its part of a step: *scheduled* tokens from *computed* on, *drafts* of them to be verified."""

    computed: int
    scheduled: int
    drafts: int = 0
    rejected: int = 0

    @property
    def length(self) -> int:
        """Tokens after this step, as the scheduler counts."""
        return self.computed + self.scheduled


class Case(NamedTuple):
    """A step, and the longest sequence that the drafter can embed."""

    what: str
    requests: tuple[Request, ...]
    drafter_longest: int = LONGEST

    @property
    def fits(self) -> bool:
        """Whether upstream drafts in this step: one query a draft, and one for the token before."""
        longest = max(request.length for request in self.requests)
        return longest + DRAFTED + 1 <= self.drafter_longest


PROMPT = Request(computed=0, scheduled=20)
CHUNK = Request(computed=32, scheduled=30)
DECODE = Request(computed=40, scheduled=4, drafts=3, rejected=2)
CONTROLS = (
    Case("a step of prompts", (PROMPT, CHUNK)),
    Case("a step with rejected drafts", (DECODE, PROMPT)),
    Case("the longest that fits", (Request(LONGEST - 8, 4, drafts=3, rejected=1), PROMPT)),
)
DEFECTS = (
    Case("a prompt beside one that fills the context", (Request(0, LONGEST - 2), PROMPT)),
    Case("a decode beside one that fills it", (DECODE, Request(LONGEST - 5, 4, drafts=3, rejected=1))),
    Case("a prompt beside one too long for the drafter", (Request(60, 8), PROMPT), drafter_longest=64),
    Case("one too long for the drafter alone", (Request(50, 20),), drafter_longest=64),
)


class Stored(NamedTuple):
    """What the draft model was given to store."""

    states: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor


class DraftModel(DFlashQwen3ForCausalLM):  # type: ignore[misc]
    """Stands in for the drafter; upstream asks for its type."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.stored: list[Stored] = []
        self.queries = 0

    def combine_hidden_states(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """There is one auxiliary state; the sign tells a combined one."""
        return -hidden_states

    def precompute_and_store_context_kv(
        self, states: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Remember a copy: the buffers are used again."""
        self.stored.append(Stored(states.clone(), positions.clone(), slots.clone()))

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: None) -> torch.Tensor:
        """Count the queries."""
        del positions, inputs_embeds
        self.queries += len(input_ids)
        return torch.zeros(len(input_ids), WIDTH)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Every draft is the token `DRAFT`."""
        return nn.functional.one_hot(torch.full((len(hidden_states),), DRAFT), 16).float()


class BookkeepingReachedError(Exception):
    """The step has got as far as it is of interest."""


def proposer_for(case: Case) -> DFlashProposer:
    """Build the real proposer on the parts of a configuration that it reads."""
    draft_model = SimpleNamespace(
        hf_config=SimpleNamespace(dflash_config={"mask_token_id": 7}, num_hidden_layers=1),
        uses_mrope=False,
        uses_xdrope_dim=0,
        max_model_len=case.drafter_longest,
        get_hidden_size=lambda: WIDTH,
        get_inputs_embeds_size=lambda: WIDTH,
    )
    config: Any = SimpleNamespace(
        num_speculative_tokens=DRAFTED,
        lora_config=None,
        compilation_config=CompilationConfig(mode=CompilationMode.NONE, cudagraph_mode=CUDAGraphMode.NONE),
        scheduler_config=SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=512),
        parallel_config=SimpleNamespace(
            data_parallel_rank=0,
            data_parallel_size=1,
            tensor_parallel_size=1,
            is_moe_model=False,
            use_sequence_parallel_moe=False,
        ),
        model_config=SimpleNamespace(
            dtype=torch.float32,
            enforce_eager=True,
            is_multimodal_model=False,
            max_model_len=LONGEST,
            use_fp64_gumbel=False,
            uses_mrope=False,
            uses_xdrope_dim=0,
        ),
        speculative_config=speculative_config(draft_model),
    )
    with mock.patch.object(llm_base_proposer, "PIN_MEMORY", new=False):  # a CPU build of torch has none
        proposer = DFlashProposer(config, CPU)
    proposer.model = DraftModel()
    proposer.block_size = BLOCK
    proposer.draft_attn_groups = []
    proposer._draft_attn_layer_names = {LAYER}
    proposer.initialize_cudagraph_keys(CUDAGraphMode.NONE)
    return proposer


def speculative_config(draft_model: object) -> SimpleNamespace:
    """What proposer and runner ask about speculation."""
    return SimpleNamespace(
        method="dflash",
        num_speculative_tokens=DRAFTED,
        draft_model_config=draft_model,
        draft_sample_method="greedy",
        rejection_sample_method="standard",
        parallel_drafting=True,
        disable_padded_drafter_batch=False,
        enforce_eager=True,
        use_heterogeneous_vocab=False,
        use_local_argmax_reduction=False,
        use_eagle=lambda: True,
        use_dflash=lambda: True,
        uses_draft_model=lambda: False,
        uses_extract_hidden_states=lambda: False,
        use_ngram_gpu=lambda: False,
    )


def table(case: Case) -> torch.Tensor:
    """Blocks of each request; block 0 belongs to nobody."""
    count = len(case.requests)
    return torch.arange(1, 1 + count * COLUMNS, dtype=torch.int32).view(count, COLUMNS)


def ints(values: list[int]) -> torch.Tensor:
    """An int32 tensor."""
    return torch.tensor(values, dtype=torch.int32)


def metadata(case: Case) -> CommonAttentionMetadata:
    """What the runner keeps of a step for its drafter."""
    scheduled = [request.scheduled for request in case.requests]
    starts = ints([sum(scheduled[:end]) for end in range(len(scheduled) + 1)])
    lengths = ints([request.length for request in case.requests])
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts.clone(),
        seq_lens=lengths,
        num_reqs=len(case.requests),
        num_actual_tokens=sum(scheduled),
        max_query_len=max(scheduled),
        max_seq_len=int(lengths.max()),
        block_table_tensor=table(case),
        slot_mapping=torch.zeros(sum(scheduled), dtype=torch.int64),
    )


def sampled(case: Case) -> torch.Tensor:
    """Accepted drafts and the target's own token for each request, -1 for the others."""
    rows = torch.full((len(case.requests), DRAFTED + 1), -1, dtype=torch.int32)
    for row, request in zip(rows, case.requests, strict=True):
        row[: 1 + request.drafts - request.rejected] = 11
    return rows


def step(case: Case, drafter: DFlashProposer) -> GPUModelRunner:
    """Run what follows the target's forward pass, up to bookkeeping."""
    runner: Any = object.__new__(GPUModelRunner)
    total, count = sum(request.scheduled for request in case.requests), len(case.requests)
    spans = [torch.arange(request.computed, request.length) for request in case.requests]
    states = torch.arange(1.0, total + 1).unsqueeze(1).expand(total, WIDTH).contiguous()
    drafts = ints([request.drafts for request in case.requests])
    names = [f"request-{number}" for number in range(count)]

    def stop(*_anything: object) -> None:
        raise BookkeepingReachedError

    runner.__dict__.update(
        speculative_config=speculative_config(None),
        drafter=drafter,
        num_spec_tokens=DRAFTED,
        effective_drafter_max_model_len=case.drafter_longest,
        use_async_scheduling=False,
        use_async_spec_decode=False,
        use_aux_hidden_state_outputs=True,
        supports_mm_inputs=False,
        uses_mrope=False,
        uses_xdrope_dim=0,
        device=CPU,
        valid_sampled_token_count_event=None,
        positions=torch.cat(spans),
        input_ids=SimpleNamespace(gpu=torch.zeros(total, dtype=torch.int32)),
        discard_request_mask=SimpleNamespace(gpu=torch.zeros(count, dtype=torch.bool)),
        requests={name: SimpleNamespace(get_token_id=lambda _index: 3) for name in names},
        input_batch=SimpleNamespace(
            num_reqs=count,
            req_ids=names,
            vocab_size=100,
            num_tokens_no_spec=[1] * count,
            sampling_metadata=SimpleNamespace(all_greedy=True),
        ),
        execute_model_state=(
            SimpleNamespace(total_num_scheduled_tokens=total, num_spec_tokens_to_schedule=DRAFTED),
            None,
            SimpleNamespace(cu_num_draft_tokens=drafts.cumsum(0, dtype=torch.int32))
            if drafts.any()
            else None,
            metadata(case),
            states,
            states,
            [states],
            None,
            None,
            None,
        ),
        get_model=SimpleNamespace,
        _sample=lambda _logits, _drafts: SimpleNamespace(sampled_token_ids=sampled(case)),
        _update_states_after_model_execute=lambda _tokens, _scheduled: None,
        _copy_draft_token_ids_to_cpu=lambda _scheduled, **_how: None,
        _bookkeeping_sync=stop,
    )
    try:
        runner.sample_tokens(None)
    except BookkeepingReachedError:
        return cast("GPUModelRunner", runner)
    raise ValueError(f"{case.what}: the step never came to its bookkeeping")


def check_drafts(case: Case, runner: GPUModelRunner) -> None:
    """Drafts come from queries where all requests fit, and are zeros without any where one does not."""
    model = cast("DraftModel", cast("Any", runner.drafter).model)
    count = len(case.requests)
    queries = count * (1 + DRAFTED) if case.fits else 0
    drafts = [[DRAFT if case.fits else 0] * DRAFTED] * count
    expect(model.queries == queries, f"{case.what}: {model.queries} query rows ran instead of {queries}")
    proposed = torch.as_tensor(runner._draft_token_ids).tolist()
    expect(proposed == drafts, f"{case.what}: drafts are {proposed} instead of {drafts}")


def check_context(case: Case, runner: GPUModelRunner) -> set[bool]:
    """Every accepted token's context is stored, once, and none that the drafter cannot embed.

    Returns whether rejected tokens have slots: not for this probe to say, but the same in all steps.
    """
    model = cast("DraftModel", cast("Any", runner.drafter).model)
    expect(
        len(model.stored) == 1,
        f"{case.what}: the context of the step was stored {len(model.stored)} times instead of once",
    )
    stored, row = model.stored[0], 0
    rejected_written = set()
    for request, blocks in zip(case.requests, table(case).tolist(), strict=True):
        for offset in range(request.scheduled):
            position = request.computed + offset
            slot, seen = blocks[position // BLOCK] * BLOCK + position % BLOCK, int(stored.slots[row])
            where = f"{case.what}: position {position} of {request}"
            if position >= case.drafter_longest:
                expect(seen == PAD_SLOT_ID, f"{where} has slot {seen}, and cannot be embedded")
                expect(int(stored.positions[row]) < case.drafter_longest, f"{where} would be embedded")
            elif offset < request.scheduled - request.rejected:
                expect(seen == slot, f"{where} has slot {seen} instead of {slot}")
                expect(int(stored.positions[row]) == position, f"{where} is stored at another one")
                expect(float(stored.states[row, 0]) == -row - 1, f"{where} has another state than its own")
            else:
                rejected_written.add(seen != PAD_SLOT_ID)
            row += 1
    return rejected_written


def probe() -> None:
    """Controls first, and of each step what is true of every tree."""
    rejected_written: set[bool] = set()
    for case in (*CONTROLS, *DEFECTS):
        if case.fits != (case in CONTROLS):
            raise ValueError(f"{case.what}: shows something else")
        drafter = proposer_for(case)
        for one in (case, CONTROLS[0]):  # and what comes after a step is drafted for again
            drafter.model = DraftModel()
            runner = step(one, drafter)
            check_drafts(one, runner)
            rejected_written |= check_context(one, runner)
            expect(len(rejected_written) < 2, f"{one.what}: rejected tokens are treated as in no other step")
