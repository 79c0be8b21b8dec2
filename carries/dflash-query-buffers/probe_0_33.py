"""Does every tensor that the DFlash drafter hands to its model have one row per padded token, in vLLM 0.33.0?

The cases are those of the first probe, `probe.py`, with capture sizes given as 0.24.0 chose them: 0.33.0 adds the
largest decode batch to its own list, so that its defaults pad no full batch.

Model runner V2, the default: upstream's `DFlashCudaGraphManager` pads the batch, and the real speculator slices the
buffers that its own classes allocate. Model runner V1: a real `DFlashProposer`, as in the first probe, with the few
settings more that it reads.
"""

# ruff: noqa: SLF001 - the buffers in question and the methods that slice them are private

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import probe as first
import torch
from probekit import expect
from vllm.config import CompilationConfig, CUDAGraphMode, VllmConfig
from vllm.forward_context import get_forward_context
from vllm.v1 import utils
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.spec_decode import llm_base_proposer
from vllm.v1.worker.gpu import block_table, cudagraph_utils
from vllm.v1.worker.gpu.attn_utils import build_slot_mappings_by_layer
from vllm.v1.worker.gpu.dp_utils import dispatch_cg_and_sync_dp
from vllm.v1.worker.gpu.input_batch import InputBuffers
from vllm.v1.worker.gpu.spec_decode.dflash.cudagraph import DFlashCudaGraphManager
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator

TOKENS = 2048  # of the largest batch that is scheduled


def sizes(case: first.Case) -> list[int]:
    """Return the capture sizes that 0.24.0 chooses for *case*: at most 512, and twice the largest batch."""
    largest = min(case.max_num_seqs * (1 + case.drafts) * 2, 512)
    return [1, 2, 4, *range(8, min(largest + 1, 256), 8), *range(256, largest + 1, 16)]


def serving_config(case: first.Case) -> VllmConfig:
    """Return the first probe's configuration with what is read besides, and sizes that are given."""
    config: Any = None

    def given(described: Any) -> None:
        nonlocal config
        config = described

    with mock.patch.object(VllmConfig, "_set_cudagraph_sizes", given):
        first_config(case)
    config.uniform_decode_query_len = 1 + case.drafts
    config.kv_transfer_config = config.ec_transfer_config = None
    config.cache_config = SimpleNamespace(use_kda_recoverssm=False)
    config.model_config.get_vocab_size = lambda: 16
    config.model_config.supports_multimodal_inputs = False
    config.parallel_config.is_moe_model = False
    config.speculative_config.uses_dynamic_speculative_decoding = lambda: False
    if case.mode != CUDAGraphMode.NONE:
        config.compilation_config.cudagraph_capture_sizes = sizes(case)
    VllmConfig._set_cudagraph_sizes(config)
    return cast("VllmConfig", config)


def check_v1(case: first.Case) -> None:
    """Run the first probe's checks on a proposer of this release."""
    unpinned = partial(utils.CpuGpuBuffer, pin_memory=False)  # a CPU build of torch has no pinned memory
    with mock.patch.object(llm_base_proposer, "CpuGpuBuffer", unpinned):
        proposer = first.build_proposer(case)
    first.check_padding(case, proposer)
    first.check_model_inputs(case, proposer)
    first.check_serving_step(case, proposer)


def padded(config: VllmConfig, case: first.Case) -> int:
    """Return the rows that model runner V2 pads a full batch of queries to."""
    mode = config.compilation_config.cudagraph_mode.decode_mode()
    wanted = CUDAGraphMode.FULL_DECODE_ONLY if mode == CUDAGraphMode.FULL else CUDAGraphMode.NONE
    with mock.patch.object(cudagraph_utils, "get_pp_group"), mock.patch.object(cudagraph_utils, "current_platform"):
        manager = DFlashCudaGraphManager(config, first.CPU, wanted, decode_query_len=1 + case.drafts)
    manager._graphs_captured = True
    rows, _ = dispatch_cg_and_sync_dp(manager, case.requests, case.tokens, 1 + case.drafts, dp_size=1, dp_rank=0)
    return int(rows.num_tokens)


def check_v2(case: first.Case) -> None:
    """Have the speculator call its model with the padded batch, and compare the lengths of what that is given."""
    config = serving_config(case)
    rows = padded(config, case)
    speculator: Any = object.__new__(DFlashSpeculator)
    speculator.vllm_config = config
    speculator.input_buffers = InputBuffers(case.max_num_seqs, TOKENS, first.CPU)
    tables = [mock.patch.object(block_table, name) for name in ("StagedWriteTensor", "UvaBackedTensor")]
    with ExitStack() as stack:
        for replaced in tables:
            stack.enter_context(replaced).return_value.gpu = torch.zeros(case.max_num_seqs, 4, dtype=torch.int32)
        slots = block_table.BlockTables([16], case.max_num_seqs, TOKENS, [4], first.CPU).slot_mappings
    groups = KVCacheConfig(
        num_blocks=1,
        kv_cache_tensors=[],
        kv_cache_groups=[cast("Any", SimpleNamespace(layer_names=[first.LAYER]))],
    )
    seen: list[tuple[int, int, int]] = []

    def model(*, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: None) -> torch.Tensor:
        del inputs_embeds
        slot_mapping = cast("dict[str, torch.Tensor]", get_forward_context().slot_mapping)
        seen.append((len(input_ids), len(positions), len(slot_mapping[first.LAYER])))
        return torch.zeros(len(input_ids), 8)

    speculator.model = model
    by_layer = build_slot_mappings_by_layer(slots[:, :rows], groups)
    speculator._run_model(rows, None, by_layer, None)
    expect(
        seen == [(rows, rows, rows)] and rows >= case.tokens,
        f"{case.what}, V2: {case.tokens} rows padded to {rows}, but the draft model was given {seen}",
    )


first_config = first.serving_config


def probe() -> None:
    """Controls first, on both runners; the first probe's case of grown sizes needs V1's rounding."""
    if not hasattr(CompilationConfig, "resolve_cudagraph_mode_and_sizes"):
        raise ValueError("sizes are settled elsewhere; this probe is out of date")
    with mock.patch.object(first, "serving_config", serving_config):
        for case in (*first.CONTROLS, *first.DEFECTS):
            check_v2(case)
            check_v1(case)
