"""The CUDA graph estimate of both model runners is what the graphs take, also on unified memory.

The same simulated machine and the same V1 runner as in `probe.py`; beside it the real V2 runner, whose
`capture_model` runs whole. Its graphs are captured by the real `CudaGraphManager`, which samples the two
largest; the encoder stands for all that V2 measures without a sample.

Healthy and controls: as in `probe.py`. V2 floors its sum, so where the page cache is dropped it reports
nothing at all, and the KV cache gets what the graphs take.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from probe import (
    BATCHES,
    CONTROLS,
    DECODER,
    DEFECTS,
    DEVICE,
    DISCRETE,
    ENCODER,
    MIB,
    QUIET,
    QUIET_ENCODER,
    QUIET_SECOND,
    RELEASING,
    REQUESTED,
    UNIFIED,
    UNKNOWN_FIRST,
    WEIGHTS,
    Capture,
    Case,
    Machine,
    Runner,
    running_on,
)
from probekit import expect
from vllm.compilation import cudagraph_pool
from vllm.config import CUDAGraphMode
from vllm.utils import mem_utils
from vllm.v1.worker import gpu_model_runner, gpu_worker
from vllm.v1.worker.gpu import cudagraph_utils, model_runner
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MODULES = (gpu_model_runner, gpu_worker, cudagraph_utils, model_runner)


class Platform(Machine):
    """The machine, asked by the names of this release."""

    _global_graph_pool = None

    def is_cuda_alike(self) -> bool:
        """Name the platforms on which graphs are profiled."""
        return True


class RunnerV1(Runner):  # type: ignore[misc]
    """The V1 runner of `probe.py`, whose dummy inputs may be random."""

    def profile_run(self, **_options: object) -> None:
        """Need no activations."""


class Manager(cudagraph_utils.CudaGraphManager):  # type: ignore[misc]
    """Upstream's manager, whose forward pass is what happens on the machine."""

    def __init__(self, runner: RunnerV2) -> None:
        self.runner, self.device, self.vllm_config = runner, DEVICE, runner.vllm_config
        self.graphs: dict[BatchExecutionDescriptor, object] = {}
        self.ubatch_runner, self.use_breakable_cg = None, False
        self._max_full_descs_to_capture = self._capture_mem_samples = None
        full = CUDAGraphMode.FULL
        self._capture_descs = {
            full: [BatchExecutionDescriptor(full, batch.num_tokens, batch.num_tokens) for batch in BATCHES]
        }

    def capture(self, *_inputs: object, **_options: object) -> None:
        """Capture by upstream's loop, without a model."""
        super().capture(self.forward)

    def forward(self, _batch: object, *, warmup: bool) -> Callable[[object], None]:
        """Return a pass; only the captured one takes memory."""
        return (lambda _: None) if warmup else lambda _: self.runner.undergo_next()


class RunnerV2(model_runner.GPUModelRunner):  # type: ignore[misc]
    """Upstream's second runner, with nothing to run either."""

    def __init__(self, machine: Machine, case: Case) -> None:
        self.machine = machine
        self.captures = iter([case.first, case.second])
        self.device, self.model_memory_usage = DEVICE, WEIGHTS
        self.compilation_config = SimpleNamespace(cudagraph_mode=CUDAGraphMode.FULL)
        self.vllm_config = SimpleNamespace(
            compilation_config=self.compilation_config, use_cumem_cudagraph_pool=False
        )
        self.eplb = SimpleNamespace(suppress=nullcontext)
        self.kv_connector = SimpleNamespace(reset_capture_state=lambda: None)
        self.model_state = SimpleNamespace(
            supports_mm_inputs=case.encoder is not None,
            encoder_runner=SimpleNamespace(
                has_cudagraph=lambda: True, capture=lambda: machine.undergo(case.encoder or Capture(0))
            ),
            capture_inner_cudagraphs=lambda *_: None,
        )
        self.lora_config = self.input_buffers = self.pcp_manager = self.speculator = None
        self.model = self.intermediate_tensors = self.block_tables = self.attn_groups = None
        self.kv_cache_config = self.adaptive_verification = None
        self.use_aux_hidden_state_outputs = False

    def undergo_next(self) -> None:
        """Let the next graph be captured."""
        self.machine.undergo(next(self.captures))

    def profile_run(self, **_options: object) -> None:
        """Need no activations."""


class Worker(gpu_worker.Worker):  # type: ignore[misc]
    """Upstream's worker, whose allocator has no settings."""

    randomize_dummy_inputs = False

    def __init__(self, runner: Any) -> None:
        self.model_runner, self.vllm_config = runner, runner.vllm_config
        self.use_v2_model_runner = isinstance(runner, RunnerV2)
        self.cache_config = SimpleNamespace(kv_cache_memory_bytes=None, gpu_memory_utilization=0.5)
        self.model_config = SimpleNamespace(multimodal_config=None)
        self.parallel_config = SimpleNamespace()
        self.device, self.requested_memory = DEVICE, REQUESTED

    def _scoped_allocator_max_split(self, max_split_size_mb: int) -> Any:
        return nullcontext(max_split_size_mb)


@contextmanager
def simulated(machine: Machine) -> Iterator[None]:
    """Put *machine* where upstream looks for hardware, also where V2 looks."""

    def prepare(runner: RunnerV2) -> None:
        runner.cudagraph_manager = Manager(runner)

    def tear_down(runner: RunnerV2) -> None:
        runner.machine.graphs = 0

    with running_on(machine), ExitStack() as stack:

        def patch(target: object, **replacements: Any) -> None:
            stack.enter_context(mock.patch.multiple(target, **replacements))

        for module in MODULES:
            patch(module, set_current_vllm_config=lambda _: nullcontext())
        patch(cudagraph_pool, current_platform=machine)
        patch(
            cudagraph_utils,
            current_platform=machine,
            graph_capture=lambda **_: nullcontext(),
            current_stream=lambda: None,
            is_global_first_rank=lambda: False,  # it shows no progress
            _init_minimal_kv_cache_for_profiling=prepare,
            _teardown_profiling_state=tear_down,
        )
        patch(torch.cuda, CUDAGraph=mock.Mock(), graph=lambda *_, **__: nullcontext())
        yield


def estimate(kind: Any, case: Case) -> int:
    """Return upstream's estimate of what the graphs take."""
    machine = Platform(case.memory)
    with simulated(machine):
        return int(kind(machine, case).profile_cudagraph_memory())


def kv_cache_budget(kind: Any, case: Case) -> int:
    """Return what upstream leaves for the KV cache."""
    machine = Platform(case.memory)
    worker = Worker(kind(machine, case))
    with simulated(machine):
        worker.init_snapshot = mem_utils.MemorySnapshot(device=DEVICE)
        machine.weights = WEIGHTS
        return int(worker.determine_available_memory())


RELEASING_ENCODER = QUIET_ENCODER._replace(released_elsewhere=4 << 30)
# Files are read, so the page cache grows.
READING, READING_ENCODER = (capture._replace(dropped_cache=-(8 << 30)) for capture in (QUIET, QUIET_ENCODER))
MORE_DEFECTS = {
    "page cache grown in the first capture": Case(UNIFIED, DECODER, READING, QUIET_SECOND),
    "page cache grown in the encoder's capture": Case(
        UNIFIED, DECODER + ENCODER, QUIET, QUIET_SECOND, READING_ENCODER
    ),
    "memory released in the first capture, before an encoder's": Case(
        DISCRETE, UNKNOWN_FIRST + ENCODER, RELEASING, QUIET_SECOND, QUIET_ENCODER
    ),
    "memory released in the encoder's capture": Case(
        DISCRETE, DECODER, QUIET, QUIET_SECOND, RELEASING_ENCODER
    ),
}


def check(kind: Any, what: str, case: Case) -> None:
    """Compare estimate and budget with those of healthy code."""
    graphs = estimate(kind, case)
    expect(
        graphs == case.estimate,
        f"{kind.__name__}, {what}: graphs are estimated at {graphs / MIB:.0f} MiB, "
        f"not {case.estimate / MIB:.0f} MiB",
    )
    excess = kv_cache_budget(kind, case) - (REQUESTED - WEIGHTS - case.estimate)
    expect(excess == 0, f"{kind.__name__}, {what}: the KV cache is given {excess / MIB:.0f} MiB too much")


def probe() -> None:
    """Check the controls of both runners first, then the default runner's defects."""
    for cases in (CONTROLS, {**DEFECTS, **MORE_DEFECTS}):
        for kind in (RunnerV2, RunnerV1):
            for what, case in cases.items():
                check(kind, what, case)
