"""Does every tensor that the DFlash drafter hands to its model have one row per padded token?

A real `DFlashProposer` is built on the CPU for one serving configuration after another. Upstream's own code
derives the cudagraph capture sizes, pads the batch and slices the buffers; only the configuration objects
around it and the draft model are stand-ins. The stand-in model notes how long its inputs are.

The defect shows where a full batch is padded beyond `max_num_seqs * (1 + K)` rows: positions and slot mapping
come back shorter than the token ids. The controls are batches which need no padding, whose padding still
fits, which are too large for any graph, or which run without graphs.
"""

# ruff: noqa: SLF001 - the buffers in question and the methods that slice them are private

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest import mock

import torch
from probekit import expect
from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode, VllmConfig
from vllm.forward_context import get_forward_context
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.spec_decode import llm_base_proposer
from vllm.v1.spec_decode.dflash import DFlashProposer
from vllm.v1.spec_decode.utils import PADDING_SLOT_ID

LAYER = "draft.attention"
CPU = torch.device("cpu")


class Case(NamedTuple):
    """A serving configuration, the batch of one step in it, and the size that upstream pads it to."""

    what: str
    padded: int
    drafts: int = 3
    max_num_seqs: int = 33
    requests: int = 33
    mode: CUDAGraphMode = CUDAGraphMode.PIECEWISE

    @property
    def tokens(self) -> int:
        """Query rows of the step: the bonus token and every drafted one, for each request."""
        return self.requests * (1 + self.drafts)


CONTROLS = (
    Case(what="a full batch that is a capture size", max_num_seqs=32, requests=32, padded=128),
    Case(what="padding that stays within the largest batch", requests=31, padded=128),
    Case(what="a full batch beyond every capture size", drafts=15, padded=528),
    Case(what="a full batch without cudagraphs", mode=CUDAGraphMode.NONE, padded=132),
)
DEFECTS = (
    Case(what="a full batch between two capture sizes", padded=136),
    Case(
        what="a full batch between two sizes that are multiples of 1 + K",
        mode=CUDAGraphMode.FULL_AND_PIECEWISE,
        padded=136,
    ),
    # Rounding to multiples of five turns the next size, 168, into 170, and it does so only after the
    # proposer has been built: buffers of 168 rows would be too short again.
    Case(
        what="a full batch whose capture size grew after the proposer was built",
        drafts=4,
        mode=CUDAGraphMode.FULL_AND_PIECEWISE,
        padded=170,
    ),
)


class Lengths(NamedTuple):
    """How many rows each input of one draft forward pass has."""

    token_ids: int
    positions: int
    slots: int


class RecordingModel:
    """Stands in for the draft model and remembers the lengths of what it was last called with."""

    seen: Lengths | None = None

    def precompute_and_store_context_kv(self, *_tensors: torch.Tensor) -> None:
        """Context rows have buffers of their own, which are not in question here."""

    def __call__(self, *, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: None) -> None:
        """Note the three lengths; the slot mapping travels in the forward context."""
        del inputs_embeds
        slot_mapping = cast("dict[str, torch.Tensor]", get_forward_context().slot_mapping)
        self.seen = Lengths(len(input_ids), len(positions), len(slot_mapping[LAYER]))


def serving_config(case: Case) -> VllmConfig:
    """The parts of a vLLM configuration that the proposer reads, with upstream's default capture sizes.

    Three of them are read by later releases only: `num_hidden_layers`, `use_heterogeneous_vocab` and
    `use_sequence_parallel_moe`.
    """
    draft_model = SimpleNamespace(
        hf_config=SimpleNamespace(dflash_config={"mask_token_id": 7}, num_hidden_layers=1),
        uses_mrope=False,
        uses_xdrope_dim=0,
        get_hidden_size=lambda: 8,
        get_inputs_embeds_size=lambda: 8,
    )
    compilation = CompilationConfig(mode=CompilationMode.VLLM_COMPILE, cudagraph_mode=case.mode)
    compilation.set_splitting_ops_for_v1(all2all_backend="")
    config: Any = SimpleNamespace(
        num_speculative_tokens=case.drafts,
        performance_mode="balanced",
        lora_config=None,
        compilation_config=compilation,
        scheduler_config=SimpleNamespace(max_num_seqs=case.max_num_seqs, max_num_batched_tokens=2048),
        parallel_config=SimpleNamespace(
            data_parallel_rank=0,
            data_parallel_size=1,
            tensor_parallel_size=1,
            use_sequence_parallel_moe=False,
        ),
        model_config=SimpleNamespace(
            dtype=torch.float32,
            enforce_eager=False,
            is_multimodal_model=False,
            max_model_len=4096,
            use_fp64_gumbel=False,
            uses_xdrope_dim=0,
        ),
        speculative_config=SimpleNamespace(
            method="dflash",
            num_speculative_tokens=case.drafts,
            draft_model_config=draft_model,
            draft_sample_method="greedy",
            rejection_sample_method="standard",
            parallel_drafting=True,
            disable_padded_drafter_batch=False,
            enforce_eager=False,
            use_heterogeneous_vocab=False,
            use_local_argmax_reduction=False,
        ),
    )
    VllmConfig._set_cudagraph_sizes(config)
    return cast("VllmConfig", config)


def build_proposer(case: Case) -> DFlashProposer:
    """Build the proposer, then settle mode and capture sizes: the model runner's order of events."""
    config = serving_config(case)
    with mock.patch.object(llm_base_proposer, "PIN_MEMORY", new=False):  # a CPU build of torch has none
        proposer = DFlashProposer(config, CPU)
    proposer.model = RecordingModel()
    proposer._draft_attn_layer_names = {LAYER}
    resolved = config.compilation_config.resolve_cudagraph_mode_and_sizes(
        AttentionCGSupport.ALWAYS, None, uniform_decode_query_len=1 + case.drafts
    )
    proposer.initialize_cudagraph_keys(resolved)
    return proposer


def check_padding(case: Case, proposer: DFlashProposer) -> None:
    """Stop if upstream pads this batch otherwise than the case says: it would then show something else."""
    _, padded, _ = proposer._determine_batch_execution_and_padding(case.tokens)
    if padded != case.padded:
        raise ValueError(f"{case.what}: {case.tokens} rows are padded to {padded}, not to {case.padded}")


def check_model_inputs(case: Case, proposer: DFlashProposer) -> None:
    """The pass that captures graphs must call the model with inputs of one length."""
    model = cast("RecordingModel", proposer.model)
    proposer.dummy_run(case.tokens, slot_mappings={LAYER: torch.empty(0)})
    expect(
        model.seen == Lengths(case.padded, case.padded, case.padded),
        f"{case.what}: padded to {case.padded} rows, but the draft model was given {model.seen}",
    )


def check_serving_step(case: Case, proposer: DFlashProposer) -> None:
    """A serving step must find room for the padding, and mark it as "write nothing here"."""
    written = torch.arange(1000, 1000 + case.tokens)
    slots = proposer._get_slot_mapping(case.padded, written)[LAYER]
    padding = [PADDING_SLOT_ID] * (case.padded - case.tokens)
    expect(
        slots.tolist() == [*written.tolist(), *padding],
        f"{case.what}: {len(slots)} slots for {case.padded} rows, or padding that is not marked as such",
    )
    proposer._dflash_num_context = 0
    proposer._dflash_hidden_states = torch.empty(0, 8)
    inputs, rows = proposer.build_model_inputs_first_pass(case.tokens, case.padded, None)
    expect(
        len(inputs["input_ids"]) == len(inputs["positions"]) == rows == case.padded,
        f"{case.what}: {len(inputs['input_ids'])} token ids, but {len(inputs['positions'])} positions",
    )


def probe() -> None:
    """Controls first, so that a defect is reported only by a probe whose healthy cases hold."""
    for case in (*CONTROLS, *DEFECTS):
        proposer = build_proposer(case)
        check_padding(case, proposer)
        check_model_inputs(case, proposer)
        check_serving_step(case, proposer)
