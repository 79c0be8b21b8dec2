"""The CUDA graph estimate is what the graphs take, also where the GPU shares the host's memory.

The real `GPUModelRunner.profile_cudagraph_memory` and `Worker.determine_available_memory` run on a
simulated machine: captures take memory from it, and the operating system may drop page cache while
they do. On a unified machine the driver does not count page cache as free, the host does; that is
the one fact about such hardware that is assumed here. On a discrete one only the driver knows.

Healthy: the estimate is the sum of what the captures took, whatever the page cache does; it is never
negative, even when another process releases memory during a capture; and so the KV cache is given
what was requested, less weights and graphs.
Controls, true of every tree: a quiet unified machine, and a discrete one whose host is busy.
"""

from __future__ import annotations

import gc
from contextlib import ExitStack, contextmanager, nullcontext
from enum import Enum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import psutil
import torch
from probekit import expect
from vllm.config import CUDAGraphMode
from vllm.forward_context import BatchDescriptor
from vllm.utils import mem_utils
from vllm.v1.worker import gpu_model_runner, gpu_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
TOTAL = 128 << 30
WEIGHTS = 20 << 30
REQUESTED = 64 << 30
DEVICE = torch.device("cuda:0")
# Of these only the two largest are captured; the second stands for the rest.
BATCHES = [BatchDescriptor(num_tokens=size) for size in (8, 4, 2, 1)]


class Memory(Enum):
    """Whose memory a GPU works with."""

    UNIFIED = "the host's"
    DISCRETE = "its own"


class Capture(NamedTuple):
    """What happens to memory while one graph (or the encoder's) is captured."""

    takes: int
    dropped_cache: int = 0
    released_elsewhere: int = 0


class Machine:
    """The memory of a computer with a GPU, answering in place of its platform."""

    def __init__(self, memory: Memory) -> None:
        self.unified = memory is Memory.UNIFIED
        self.elsewhere = 8 << 30
        self.page_cache = 60 << 30
        self.weights = 0
        self.graphs = 0

    def undergo(self, capture: Capture) -> None:
        """Let *capture* happen."""
        self.graphs += capture.takes
        self.page_cache -= capture.dropped_cache
        self.elsewhere -= capture.released_elsewhere

    def mem_get_info(self, _device: object = None) -> tuple[int, int]:
        """Return free and total memory as the driver reads them."""
        cache = self.page_cache if self.unified else 0
        return TOTAL - self.elsewhere - self.weights - self.graphs - cache, TOTAL

    def host_memory(self) -> SimpleNamespace:
        """Return available memory as the operating system reads it."""
        if self.unified:
            return SimpleNamespace(available=self.mem_get_info()[0] + self.page_cache)
        return SimpleNamespace(available=self.page_cache)  # another memory, with its own life

    def is_integrated_gpu(self, _index: int = 0) -> bool:
        """Tell upstream whether memory is shared with the host."""
        return self.unified

    def is_cuda(self) -> bool:
        """Name the only platform on which graphs are profiled."""
        return True

    def graph_pool_handle(self) -> tuple[int, int]:
        """Return a pool that nothing allocates from."""
        return (0, 0)


class Case(NamedTuple):
    """What happens on one kind of machine, and the estimate that healthy code arrives at."""

    memory: Memory
    estimate: int
    first: Capture
    second: Capture
    encoder: Capture | None = None


class Runner(gpu_model_runner.GPUModelRunner):  # type: ignore[misc]
    """Upstream's runner with nothing to run: capturing is what happens on the machine."""

    def __init__(self, machine: Machine, case: Case) -> None:
        self.machine, self.encoder = machine, case.encoder
        self.captures = iter([case.first, case.second])
        self.device = DEVICE
        self.max_model_len = self.max_num_tokens = BATCHES[0].num_tokens
        self.model_memory_usage = WEIGHTS
        self.lora_config = None
        self.vllm_config = SimpleNamespace(
            compilation_config=SimpleNamespace(cudagraph_mode=CUDAGraphMode.FULL)
        )
        self.cudagraph_dispatcher = SimpleNamespace(
            get_capture_descs=lambda: [(CUDAGraphMode.FULL, BATCHES)],
            cudagraph_keys={},
            keys_initialized=True,
        )

    def profile_run(self) -> None:
        """Need no activations."""

    def _init_minimal_kv_cache_for_profiling(self) -> None:
        """Need no cache."""

    def _cleanup_profiling_kv_cache(self) -> None:
        self.machine.graphs = 0

    def maybe_remove_all_loras(self, lora_config: object) -> None:
        """Have none."""

    def _create_encoder_cudagraph_manager(self) -> object:
        if self.encoder is None:
            return None
        manager = mock.Mock(token_budgets=[64])
        manager.get_num_graphs_to_capture.return_value = 1
        manager.capture.side_effect = lambda **_: self.machine.undergo(self.encoder)
        return manager

    def _warmup_and_capture(self, _batch: BatchDescriptor, **_options: object) -> None:
        self.machine.undergo(next(self.captures))


@contextmanager
def running_on(machine: Machine) -> Iterator[None]:
    """Put *machine* where upstream looks for a platform, a GPU and a host."""
    nothing = {"synchronize": None, "empty_cache": None, "reset_peak_memory_stats": None, "memory_stats": {}}
    with ExitStack() as stack:

        def patch(target: object, name: str, replacement: Any) -> None:
            stack.enter_context(mock.patch.object(target, name, replacement))

        for module in (gpu_model_runner, gpu_worker, mem_utils):
            patch(module, "current_platform", machine)
        patch(gpu_model_runner, "graph_capture", lambda **_: nullcontext())
        patch(gc, "collect", lambda: 0)  # there is nothing to free, and looking for it takes seconds
        patch(psutil, "virtual_memory", machine.host_memory)
        patch(torch.cuda, "mem_get_info", machine.mem_get_info)
        patch(torch.accelerator, "get_memory_info", machine.mem_get_info)
        patch(torch.accelerator, "memory_reserved", lambda _: machine.weights + machine.graphs)
        for name, answer in nothing.items():
            patch(torch.accelerator, name, mock.Mock(return_value=answer))
        yield


def estimate(case: Case) -> int:
    """Return upstream's estimate of what the graphs take."""
    machine = Machine(case.memory)
    with running_on(machine):
        return int(Runner(machine, case).profile_cudagraph_memory())


def kv_cache_budget(case: Case) -> int:
    """Return what upstream leaves for the KV cache."""
    machine = Machine(case.memory)
    worker = object.__new__(gpu_worker.Worker)
    worker.model_runner = Runner(machine, case)
    worker.vllm_config = worker.model_runner.vllm_config
    worker.cache_config = SimpleNamespace(kv_cache_memory_bytes=None, gpu_memory_utilization=0.5)
    worker.device, worker.requested_memory = DEVICE, REQUESTED
    with running_on(machine):
        worker.init_snapshot = mem_utils.MemorySnapshot(device=DEVICE)
        machine.weights = WEIGHTS
        return int(worker.determine_available_memory())


QUIET, QUIET_SECOND, QUIET_ENCODER = Capture(512 * MIB), Capture(32 * MIB), Capture(256 * MIB)
# The operating system drops page cache while the same memory is taken.
DROPPING, DROPPING_SECOND, DROPPING_ENCODER = (
    capture._replace(dropped_cache=8 << 30) for capture in (QUIET, QUIET_SECOND, QUIET_ENCODER)
)
# Another process returns more than the capture takes. What that took cannot be known any more.
RELEASING = QUIET._replace(released_elsewhere=4 << 30)

DECODER = 512 * MIB + (len(BATCHES) - 1) * 32 * MIB
UNKNOWN_FIRST = DECODER - 512 * MIB
ENCODER = 256 * MIB
UNIFIED, DISCRETE = Memory.UNIFIED, Memory.DISCRETE

CONTROLS = {
    "a quiet unified machine": Case(UNIFIED, DECODER, QUIET, QUIET_SECOND),
    "an encoder on it": Case(UNIFIED, DECODER + ENCODER, QUIET, QUIET_SECOND, QUIET_ENCODER),
    "a discrete GPU beside a busy host": Case(
        DISCRETE, DECODER + ENCODER, DROPPING, DROPPING_SECOND, DROPPING_ENCODER
    ),
}
DEFECTS = {
    "page cache dropped in the first capture": Case(UNIFIED, DECODER, DROPPING, QUIET_SECOND),
    "page cache dropped in the second capture": Case(UNIFIED, DECODER, QUIET, DROPPING_SECOND),
    "page cache dropped in the encoder's capture": Case(
        UNIFIED, DECODER + ENCODER, QUIET, QUIET_SECOND, DROPPING_ENCODER
    ),
    "memory released elsewhere, unified": Case(UNIFIED, UNKNOWN_FIRST, RELEASING, QUIET_SECOND),
    "memory released elsewhere, discrete": Case(DISCRETE, UNKNOWN_FIRST, RELEASING, QUIET_SECOND),
}


def check(what: str, case: Case) -> None:
    """Compare estimate and budget with those of healthy code."""
    graphs = estimate(case)
    expect(
        graphs == case.estimate,
        f"{what}: graphs are estimated at {graphs / MIB:.0f} MiB, not {case.estimate / MIB:.0f} MiB",
    )
    # Upstream lets vLLM have what others release, so that counts as well.
    healthy = REQUESTED - WEIGHTS - case.estimate + case.first.released_elsewhere
    excess = kv_cache_budget(case) - healthy
    expect(excess == 0, f"{what}: the KV cache is given {excess / MIB:.0f} MiB more than there is")


def probe() -> None:
    """Check the controls first, so that a broken simulation cannot pass for a defect."""
    for what, case in {**CONTROLS, **DEFECTS}.items():
        check(what, case)
