"""Do both model runners of vLLM 0.24.0 replay decode graphs for decodes only?

A step goes through upstream's `execute_model` up to the choice of a graph. What comes before, updating
the batch and filling buffers, has stand-ins. V1 chooses by its own dispatcher among the graphs of
FULL_AND_PIECEWISE; V2 says how many tokens each decode has, or that the step is none of decodes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from probekit import expect
from shapes import STEPS, Step, check, scheduled, states
from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
from vllm.v1.worker import gpu_model_runner as v1
from vllm.v1.worker.gpu import model_runner as v2

SIZES = [1, 2, 4, 8, 12, 16]


class Chosen(Exception):  # noqa: N818 - no error
    """Ends a step as soon as its graph is chosen."""


class V1(v1.GPUModelRunner):
    """Upstream's runner, without what needs a model or a GPU."""

    def _update_states(self, *_args: object) -> None: ...

    def _prepare_inputs(self, *_args: object) -> tuple[None, None]:
        return None, None

    def _determine_batch_execution_and_padding(self, *args: Any, **options: Any) -> Any:
        mode, *_ = super()._determine_batch_execution_and_padding(*args, **options)
        raise Chosen(mode == CUDAGraphMode.FULL)


class V2(v2.GPUModelRunner):
    """Upstream's runner, without what needs a model or a GPU."""

    def update_pp_decode_requests(self) -> None:
        """There are no pipelines."""

    def _update(self, *_args: object) -> None: ...

    finish_requests = free_states = add_requests = update_requests = _update


def v1_runner(step: Step) -> V1:
    """Return a runner with the requests of *step* in its batch."""
    compilation = CompilationConfig(
        mode=CompilationMode.VLLM_COMPILE,
        cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE,
        cudagraph_capture_sizes=SIZES,
        max_cudagraph_capture_size=max(SIZES),
    )
    compilation.set_splitting_ops_for_v1(all2all_backend="")
    compilation.post_init_cudagraph_sizes()
    config: Any = SimpleNamespace(
        compilation_config=compilation,
        lora_config=None,
        num_speculative_tokens=step.drafts,
        scheduler_config=SimpleNamespace(max_num_seqs=16),
        parallel_config=SimpleNamespace(data_parallel_size=1, tensor_parallel_size=1),
        observability_config=SimpleNamespace(cudagraph_metrics=False),
    )
    dispatcher = CudagraphDispatcher(config)
    dispatcher.initialize_cudagraph_keys(compilation.cudagraph_mode, 1 + step.drafts)
    made = V1.__new__(V1)
    made.__dict__.update(
        vllm_config=config,
        compilation_config=compilation,
        parallel_config=config.parallel_config,
        observability_config=config.observability_config,
        model_config=SimpleNamespace(is_encoder_decoder=False),
        cache_config=SimpleNamespace(kv_sharing_fast_prefill=False),
        speculative_config=None,
        cudagraph_dispatcher=dispatcher,
        uniform_decode_query_len=1 + step.drafts,
        execute_model_state=None,
        routed_experts_initialized=False,
        prepare_inputs_event=None,
        cascade_attn_enabled=False,
        input_batch=SimpleNamespace(
            num_reqs=len(step.requests),
            req_ids=list(scheduled(step).num_scheduled_tokens),
            # One row more, of a request that is gone.
            num_computed_tokens_cpu=np.array([request.computed for request in step.requests] + [0]),
            num_prompt_tokens=np.array([request.prompt for request in step.requests] + [9]),
            lora_id_to_lora_request={},
        ),
    )
    return made


def v1_replays(step: Step) -> bool:
    """Whether V1 chooses a decode graph for *step*."""
    try:
        v1_runner(step).execute_model(scheduled(step))
    except Chosen as chosen:
        return bool(chosen.args[0])
    message = "the step did not come to a choice"
    raise RuntimeError(message)


def v2_replays(step: Step, *, dummy: bool = False) -> bool:
    """Whether *step* is for V2 one of decodes of 1 + K tokens; no row holds the requests of a dummy one."""
    made = V2.__new__(V2)
    made.__dict__.update(
        block_tables=mock.Mock(),
        lora_config=None,
        is_encoder_decoder=False,
        cudagraph_manager=None,
        dp_size=1,
        dp_rank=0,
        req_states=None if dummy else states(step),
    )
    with mock.patch.object(v2, "dispatch_cg_and_sync_dp", side_effect=Chosen) as dispatch:
        try:
            made.execute_model(scheduled(step), dummy_run=dummy)
        except Chosen:
            return bool(dispatch.call_args.args[3] == 1 + step.drafts)
    message = "the step did not come to a choice"
    raise RuntimeError(message)


def probe() -> None:
    """Check every step on either runner."""
    check("V1", v1_replays)
    check("V2", v2_replays)
    expect(v2_replays(STEPS[0], dummy=True), "V2 does not replay a decode graph for a dummy step of decodes")
