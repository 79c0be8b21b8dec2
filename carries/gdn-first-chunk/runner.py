"""Model runner V1 of vLLM, up to what it has upstream's builder make of a step or of a dummy run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch
from batches import DRAFTS, Row
from vllm.forward_context import BatchDescriptor
from vllm.utils import torch_utils
from vllm.v1.attention.backends import utils as backend_utils
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.utils import AttentionGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.config import CUDAGraphMode

ROWS, TOKENS = 8, 64


class Built(Exception):  # noqa: N818 - no error
    """Ends a step as soon as its metadata is there."""


class V1(GPUModelRunner):  # type: ignore[misc]
    """Upstream's runner with a batch of *rows*, and no model."""

    def __init__(self, builder: Any, rows: tuple[Row, ...], mode: CUDAGraphMode, drafts: int) -> None:
        self.mode, self.rows = mode, rows
        self.device = torch.device("cpu")
        group = AttentionGroup(
            backend=mock.Mock(), layer_names=["layer"], kv_cache_spec=mock.Mock(), kv_cache_group_id=0,
            metadata_builders=[builder],
        )  # fmt: skip
        self.attn_groups = [[group]]
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=[mock.Mock()])
        self.speculative_config = mock.Mock(**{"use_ngram_gpu.return_value": False}) if drafts else None
        self.drafter = None
        self.uniform_decode_query_len = 1 + drafts
        self.max_num_tokens, self.max_model_len = TOKENS, 256
        self.cache_config = SimpleNamespace(mamba_cache_mode="none", kv_sharing_fast_prefill=False)
        self.model_config = SimpleNamespace(is_encoder_decoder=False, rswa_window=None)
        self.scheduler_config = SimpleNamespace(max_num_seqs=ROWS)
        self.parallel_config = SimpleNamespace(use_ubatching=False, num_ubatches=1)
        self.vllm_config = mock.Mock(**{"model_config.multimodal_config": None})
        self.dcp_world_size, self.uses_xdrope_dim, self.arange_np = 1, 0, np.arange(TOKENS)
        for name in (
            "routed_experts_initialized", "use_async_scheduling", "use_async_spec_decode", "is_mm_prefix_lm",
            "cascade_attn_enabled", "enable_prompt_embeds", "uses_mrope",
        ):  # fmt: skip
            setattr(self, name, False)
        for name in (
            "execute_model_state", "prepare_inputs_event", "mamba_prev_last_scheduled_idx", "lora_config",
            "valid_sampled_token_count_gpu",
        ):  # fmt: skip
            setattr(self, name, None)
        self.num_accepted_tokens_event = mock.Mock()
        for name in (
            "query_pos", "input_ids", "query_start_loc", "discard_request_mask", "req_indices",
            "num_scheduled_tokens", "num_accepted_tokens", "num_decode_draft_tokens",
        ):  # fmt: skip
            kind = torch.bool if name == "discard_request_mask" else torch.int32
            size = 1 + ROWS if name == "query_start_loc" else TOKENS
            setattr(self, name, CpuGpuBuffer(size, dtype=kind, device=self.device, pin_memory=False))
        for name in ("optimistic_seq_lens_cpu", "seq_lens", "num_computed_tokens"):
            setattr(self, name, torch.zeros(ROWS, dtype=torch.int32))
        self.positions = torch.zeros(TOKENS, dtype=torch.int64)

        names = [f"request {index}" for index in range(len(rows))]
        self.requests = {
            name: SimpleNamespace(num_tokens=row.computed + row.tokens)
            for name, row in zip(names, rows, strict=True)
        }
        # The rows behind are those of prompts that are gone.
        behind = [Row(computed=0, tokens=0, prompt=9)] * (ROWS - len(rows))
        held = np.array([[row.computed, row.prompt, row.accepted] for row in (*rows, *behind)], np.int32).T
        computed, prompts, accepted = (values.copy() for values in held)
        self.tables = torch.arange(1, 1 + ROWS * (1 + DRAFTS), dtype=torch.int32).view(ROWS, -1)
        table = mock.Mock(**{"get_device_tensor.side_effect": lambda count: self.tables[:count]})
        tokens = np.zeros((ROWS, 256), np.int32)
        self.input_batch = SimpleNamespace(
            num_reqs=len(rows), req_ids=names, req_id_to_index={name: row for row, name in enumerate(names)},
            num_computed_tokens_cpu=computed, num_computed_tokens_cpu_tensor=torch.from_numpy(computed),
            num_prompt_tokens=prompts, num_prompt_tokens_cpu_tensor=torch.from_numpy(prompts),
            num_accepted_tokens_cpu=accepted, prev_req_id_to_index=None, req_prompt_embeds={},
            token_ids_cpu=tokens, token_ids_cpu_tensor=torch.from_numpy(tokens),
            block_table=mock.MagicMock(**{"__getitem__.return_value": table}),
        )  # fmt: skip

    def _update_states(self, *_: object) -> None: ...

    _prepare_input_ids = _compute_prev_positions = _update_states

    def _calc_spec_decode_metadata(self, *_: object) -> Any:
        return mock.Mock()

    def _get_slot_mappings(self, **_: object) -> tuple[dict[int, torch.Tensor], None]:
        return {0: torch.zeros(TOKENS, dtype=torch.int64)}, None

    def _determine_batch_execution_and_padding(self, **batch: Any) -> Any:
        return self.mode, BatchDescriptor(batch["num_tokens"]), False, None, None

    def _build_attention_metadata(self, **step: Any) -> Any:
        metadata, _ = super()._build_attention_metadata(**step)
        raise Built(metadata["layer"])

    def step(self) -> Any:
        """Return what upstream's builder makes of a step with all rows."""
        tokens = dict(zip(self.input_batch.req_ids, (row.tokens for row in self.rows), strict=True))
        return built(
            lambda: self.execute_model(
                SimpleNamespace(
                    num_scheduled_tokens=tokens,
                    total_num_scheduled_tokens=sum(tokens.values()),
                    scheduled_spec_decode_tokens={
                        name: [7] * row.drafts
                        for name, row in zip(tokens, self.rows, strict=True)
                        if row.drafts
                    },
                    scheduled_encoder_inputs={},
                )
            )
        )

    def dummy(self, **run: Any) -> Any:
        """Return what upstream's builder makes of a dummy run, which has none of the rows."""
        self.tables.zero_()
        return built(lambda: self._dummy_run(**run))


def built(run: Callable[[], object]) -> Any:
    """Return the metadata that *run* comes to."""
    try:
        with (
            mock.patch.multiple(torch_utils, PIN_MEMORY=False),
            mock.patch.multiple(backend_utils, PIN_MEMORY=False),
        ):
            run()
    except Built as found:
        return found.args[0]
    message = "no metadata was built"
    raise RuntimeError(message)
