"""Does a worker on unified memory outlive what the host does while it starts, and goes to sleep?

`Worker.sleep` and `Worker.determine_available_memory` of upstream run on a simulated machine. On unified
memory whatever any process takes or releases shows in the free memory; the page cache shows in the
driver's reading only.

Healthy: on unified memory neither ends the worker, and where the host releases more than a start takes,
the KV cache gets what was requested, less what torch holds. Controls, true of every tree: on a quiet host
sizes are exact; on a discrete GPU memory that moves the wrong way still ends the worker.
"""

from __future__ import annotations

import gc
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import psutil
import torch
from probekit import expect
from vllm.config import CUDAGraphMode
from vllm.utils import mem_utils
from vllm.v1.worker import gpu_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

GIB = 1 << 30
TOTAL, REQUESTED, WEIGHTS, CONTEXT = 128 * GIB, 64 * GIB, 2 * GIB, GIB // 2
DEVICE = torch.device("cuda:0")


class Machine:
    """The memory of a computer with a GPU, answering in place of its platform."""

    def __init__(self, *, unified: bool) -> None:
        """Begin with 40 GiB in use, and as much page cache."""
        self.unified, self.used, self.page_cache, self.torch = unified, 40 * GIB, 40 * GIB, GIB // 8

    def mem_get_info(self, _device: object = None) -> tuple[int, int]:
        """Return free and total memory as the driver reads them."""
        return TOTAL - self.used - (self.page_cache if self.unified else 0), TOTAL

    def is_integrated_gpu(self, _index: int) -> bool:
        """Tell whether memory is shared with the host."""
        return self.unified

    def is_cuda(self) -> bool:
        """Name the platform."""
        return True

    def is_cuda_alike(self) -> bool:
        """Name the platform."""
        return True

    def is_rocm(self) -> bool:
        """Name the platform."""
        return False

    def is_xpu(self) -> bool:
        """Name the platform."""
        return False


@contextmanager
def running_on(machine: Machine) -> Iterator[None]:
    """Put *machine* where upstream looks for a platform, a GPU and a host."""
    with ExitStack() as stack:

        def patch(target: object, name: str, replacement: Any) -> None:
            stack.enter_context(mock.patch.object(target, name, replacement, create=True))

        patch(gpu_worker, "current_platform", machine)
        patch(mem_utils, "current_platform", machine)
        patch(gpu_worker, "set_current_vllm_config", lambda _: nullcontext())
        patch(gpu_worker, "has_kv_transfer_group", lambda: False)
        patch(gc, "collect", lambda: 0)
        patch(psutil, "virtual_memory", lambda: SimpleNamespace(available=TOTAL - machine.used))
        patch(torch.cuda, "mem_get_info", machine.mem_get_info)
        patch(torch.accelerator, "get_memory_info", machine.mem_get_info)
        patch(torch.accelerator, "memory_reserved", lambda _: machine.torch)
        for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
            patch(torch.accelerator, name, lambda *_: None)
        patch(torch.accelerator, "memory_stats", lambda *_: {})
        yield


def bare_worker(**attributes: object) -> Any:
    """Return upstream's worker with a model of which only its weights matter."""
    made = gpu_worker.Worker.__new__(gpu_worker.Worker)
    made.__dict__.update(
        device=DEVICE,
        requested_memory=REQUESTED,
        use_v2_model_runner=False,
        randomize_dummy_inputs=False,
        model_runner=SimpleNamespace(
            model_memory_usage=WEIGHTS, profile_run=lambda **_: None, profile_cudagraph_memory=lambda: 0
        ),
        vllm_config=SimpleNamespace(
            compilation_config=SimpleNamespace(cudagraph_mode=CUDAGraphMode.NONE, cudagraph_mm_encoder=False),
            model_config=SimpleNamespace(enable_nccl_comm_suspend=False),
        ),
        cache_config=SimpleNamespace(kv_cache_memory_bytes=None, gpu_memory_utilization=0.5),
        model_config=SimpleNamespace(multimodal_config=None, enforce_eager=True),
        parallel_config=SimpleNamespace(),
        _scoped_allocator_max_split=lambda **_: nullcontext(),
        **attributes,
    )
    return made


class Start(NamedTuple):
    """What happens while a model is loaded and profiled, and what the KV cache is given."""

    what: str
    unified: bool
    released: int  # by other processes
    budget: int | None  # None: the worker ends
    sleep_mode: bool = False  # weights are where torch does not count them
    buffers: int = 0  # what torch holds besides


class Sleep(NamedTuple):
    """What happens to memory while a worker goes to sleep."""

    what: str
    unified: bool
    freed: int
    page_cache: int = 0
    taken: int = 0  # by other processes
    ends: bool = False


QUIET = REQUESTED - WEIGHTS - CONTEXT
STARTS = (
    # Controls.
    Start("a quiet host", unified=True, released=0, budget=QUIET),
    Start("a quiet GPU", unified=False, released=0, budget=QUIET),
    Start("another process releases 1 GiB", unified=True, released=GIB, budget=QUIET + GIB),
    Start("another process releases 5 GiB of a GPU", unified=False, released=5 * GIB, budget=None),
    # Defects. Nobody can know what the CUDA context took.
    Start("another process releases 5 GiB", unified=True, released=5 * GIB, budget=REQUESTED - WEIGHTS),
    Start(
        "another process releases 5 GiB, sleep mode",
        unified=True,
        released=5 * GIB,
        budget=REQUESTED - WEIGHTS,
        sleep_mode=True,
    ),
)
SLEEPS = (
    # Controls.
    Sleep("30 GiB are freed", unified=False, freed=30 * GIB),
    Sleep("20 GiB of KV cache are freed", unified=True, freed=20 * GIB),
    Sleep(
        "another process takes more of a GPU than is freed",
        unified=False,
        freed=GIB,
        taken=2 * GIB,
        ends=True,
    ),
    # Defects.
    Sleep("weights move within one memory while files are read", unified=True, freed=0, page_cache=GIB // 5),
    Sleep("another process takes more than is freed", unified=True, freed=GIB, taken=2 * GIB),
)


def budget(start: Start) -> int | None:
    """Return what upstream leaves for the KV cache; None where its assertion ends the worker."""
    machine = Machine(unified=start.unified)
    worker = bare_worker()
    with running_on(machine):
        worker.init_snapshot = mem_utils.MemorySnapshot(device=DEVICE)
        machine.used += WEIGHTS + CONTEXT - start.released
        machine.torch += start.buffers if start.sleep_mode else WEIGHTS + start.buffers
        try:
            return int(worker.determine_available_memory())
        except AssertionError as error:
            if "Error in memory profiling" not in str(error):
                raise
            return None


def ends(sleep: Sleep) -> bool:
    """Whether upstream's assertion ends the worker as it goes to sleep."""
    machine = Machine(unified=sleep.unified)

    def suspend(*_args: object, **_options: object) -> None:
        machine.used += sleep.taken - sleep.freed
        machine.page_cache += sleep.page_cache

    allocator = SimpleNamespace(sleep=suspend)
    with (
        running_on(machine),
        mock.patch.object(
            gpu_worker, "get_mem_allocator_instance", mock.Mock(return_value=allocator), create=True
        ),
    ):
        worker = bare_worker(_sleep_mode_backend=SimpleNamespace(suspend=suspend))
        try:
            worker.sleep(1)
        except AssertionError as error:
            if "Memory usage increased" not in str(error):
                raise
            return True
    return False


def check(starts: tuple[Start, ...], sleeps: tuple[Sleep, ...]) -> None:
    """Check every start and every sleep."""
    for start in starts:
        found = budget(start)
        shown = "the worker ends" if found is None else f"{found / GIB:g} GiB are left for the KV cache"
        expect(found == start.budget, f"start, {start.what}: {shown}")
    for sleep in sleeps:
        found_end = ends(sleep)
        expect(
            found_end == sleep.ends, f"sleep, {sleep.what}: the worker {'ends' if found_end else 'goes on'}"
        )


def probe() -> None:
    """Check what happens at this release."""
    check(STARTS, SLEEPS)
