"""Does every capture of a CUDA graph leave other threads alone?

By default CUDA ends a capture with an error as soon as any thread of the process does what a capture does
not allow, such as an allocation or a wait for an event. With the mode "thread_local" that is so of the
capturing thread only.

Upstream's own code captures graphs here, at each place that does so in serving, with a recorder for
torch's. Then all sources of the package are searched for captures, as a release may have new ones.
Healthy: all name the mode.
"""

from __future__ import annotations

import ast
import inspect
import threading
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import vllm
from probekit import expect
from vllm.compilation import breakable_cudagraph, cuda_graph
from vllm.config import CUDAGraphMode
from vllm.v1.spec_decode import gemma4
from vllm.v1.worker import encoder_cudagraph, gpu_ubatch_wrapper
from vllm.v1.worker.gpu import cudagraph_utils

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MODE = "thread_local"
# What captures graphs, and is not part of serving on NVIDIA's cards.
ELSEWHERE = ("benchmarks/", "model_executor/warmup/rocm_")


class Recorder:
    """Takes the place of torch's graphs and notes the mode of each capture."""

    def __init__(self) -> None:
        """Note nothing yet."""
        self.modes: list[str] = []

    def graph(self, *args: Any, **options: Any) -> Any:
        """Stand in for `torch.cuda.graph`, whose parameters these have to be."""
        given = SIGNATURE.bind(None, *args, **options)
        given.apply_defaults()
        self.modes.append(given.arguments["capture_error_mode"])
        return nullcontext()

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        """Stand in for `CUDAGraph.capture_begin`."""
        del pool
        self.modes.append(capture_error_mode)

    def capture_end(self) -> None:
        """Stand in for `CUDAGraph.capture_end`."""

    def replay(self) -> None:
        """Stand in for `CUDAGraph.replay`."""


SIGNATURE = inspect.signature(torch.cuda.graph.__init__)


@contextmanager
def recorded() -> Iterator[Recorder]:
    """Put a recorder in the place of torch's graphs, and nothing in that of what needs a GPU."""
    recorder = Recorder()
    with ExitStack() as stack:
        for name, stand_in in (
            ("cuda.graph", recorder.graph),
            ("cuda.CUDAGraph", lambda: recorder),
            ("cuda.stream", lambda _stream: nullcontext()),
            ("cuda.current_blas_handle", lambda: 0),
            ("accelerator.synchronize", lambda *_: None),
            ("accelerator.set_device_index", lambda *_: None),
        ):
            stack.enter_context(mock.patch(f"torch.{name}", stand_in))
        for module in (cuda_graph, cudagraph_utils, gpu_ubatch_wrapper, encoder_cudagraph, gemma4):
            for name, result in (
                ("current_stream", None),
                ("get_offloader", mock.MagicMock()),
                ("graph_capture", nullcontext()),
                ("capture_pool", nullcontext()),
                ("set_graph_pool_id", None),
                ("validate_cudagraph_capturing_enabled", None),
                ("is_global_first_rank", False),
            ):
                stack.enter_context(
                    mock.patch.object(module, name, mock.Mock(return_value=result), create=True)
                )
        stack.enter_context(mock.patch.object(cuda_graph, "weak_ref_tensors", lambda tensors: tensors))
        yield recorder


def bare(kind: Any, **attributes: object) -> Any:
    """Return an instance of *kind* that has nothing but *attributes*."""
    made = kind.__new__(kind)
    made.__dict__.update(attributes)
    return made


def piece() -> None:
    """Capture a piece of a model, or the whole of it on V1."""
    wrapper = bare(
        cuda_graph.CUDAGraphWrapper,
        runnable=lambda: torch.zeros(1),
        runtime_mode=CUDAGraphMode.PIECEWISE,
        concrete_cudagraph_entries={},
        cudagraph_options=SimpleNamespace(debug_log_enable=False, gc_disable=False, weak_ref_output=False),
        graph_pool=(0, 0),
        vllm_config=None,
        is_debugging_mode=False,
    )
    context = SimpleNamespace(batch_descriptor="eight tokens", cudagraph_runtime_mode=CUDAGraphMode.PIECEWISE)
    with (
        mock.patch.object(cuda_graph, "is_forward_context_available", return_value=True),
        mock.patch.object(cuda_graph, "get_forward_context", return_value=context),
    ):
        wrapper()


def breakable() -> None:
    """Capture two segments around an eager part."""
    with breakable_cudagraph.BreakableCUDAGraphCapture() as capture:
        capture.add_eager(lambda: None)


def breakable_with_pool() -> None:
    """Capture a segment into a pool of memory."""
    with breakable_cudagraph.BreakableCUDAGraphCapture(pool=(0, 1)):
        pass


def whole_on_v2() -> None:
    """Capture a whole step of model runner V2."""
    step = mock.Mock(cg_mode=CUDAGraphMode.FULL, num_ubatches=1)
    manager = bare(
        cudagraph_utils.CudaGraphManager,
        device=None,
        pool=(0, 0),
        vllm_config=None,
        graphs={},
        use_breakable_cg=False,
        ubatch_runner=None,
        _capture_descs={CUDAGraphMode.FULL: [step]},
        _capture_mem_samples=None,
        _max_full_descs_to_capture=None,
    )
    forward = mock.Mock()
    # 0.24.0 also wants the state of attention.
    pair = hasattr(cudagraph_utils, "AttentionStatePair")
    manager.capture(lambda _step, warmup: (forward, None) if pair else forward)  # noqa: ARG005


def microbatches() -> None:
    """Capture a step that is split among two threads."""
    first = threading.Event()
    batches = [
        mock.MagicMock(num_tokens=2, context=mock.MagicMock(id=index, cpu_wait_event=first))
        for index in range(2)
    ]
    wrapper = bare(
        gpu_ubatch_wrapper.UBatchWrapper,
        runnable=None,
        device=None,
        cudagraph_wrapper=SimpleNamespace(graph_pool=(0, 0)),
        ready_barrier=mock.Mock(),
        cudagraphs={},
        is_debugging_mode=False,
    )
    wrapper._capture_ubatches(batches, lambda **_: torch.zeros(2))  # noqa: SLF001


def encoder() -> None:
    """Capture an encoder of images."""
    model = mock.Mock()
    model.encoder_cudagraph_forward.return_value = torch.zeros(1)
    model.prepare_encoder_cudagraph_capture_inputs.return_value = SimpleNamespace(values={})
    manager = bare(
        encoder_cudagraph.EncoderCudaGraphManager,
        model=model,
        max_batch_size=1,
        max_frames_per_batch=1,
        device=None,
        dtype=None,
        graph_pool=(0, 0),
        budget_graphs={},
    )
    with mock.patch.object(encoder_cudagraph, "BudgetGraphMetadata", mock.Mock()):
        manager._capture_budget_graph(16)  # noqa: SLF001


def centroids() -> None:
    """Capture the choice of tokens of Gemma 4's drafter."""
    proposer = bare(
        gemma4.Gemma4Proposer,
        model=mock.Mock(masked_embedding=mock.Mock(hidden_size=1)),
        dtype=torch.float32,
        device="cpu",
        _centroids_graphs={},
        _centroids_inputs={},
        _centroids_outputs={},
    )
    proposer._setup_centroids_cuda_graphs()  # noqa: SLF001


# How many captures each place makes here.
PLACES: dict[Callable[[], None], int] = {
    piece: 1,
    breakable: 2,
    breakable_with_pool: 1,
    whole_on_v2: 1,
    microbatches: 1,
    encoder: 1,
    centroids: 7,
}


def check_places(places: dict[Callable[[], None], int]) -> None:
    """Run *places* and look at the mode of each capture."""
    for place, count in places.items():
        with recorded() as recorder:
            place()
        if len(recorder.modes) != count:
            message = f"{place.__name__}: {len(recorder.modes)} captures, not {count}"
            raise RuntimeError(message)
        expect(
            set(recorder.modes) == {MODE},
            f"{place.__name__}: a capture in mode {recorder.modes[0]!r} can be ended by other threads",
        )


def captures(source: str) -> Iterator[tuple[int, bool]]:
    """Yield the line of each capture in *source*, and whether it names the mode."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.cuda"):
            # By another name a capture would not be recognised.
            yield from ((node.lineno, False) for alias in node.names if alias.name in {"graph", "graphs"})
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = ast.unparse(node.func)
            if name.endswith(("cuda.graph", ".capture_begin", ".make_graphed_callables")):
                given = {option.arg: option.value for option in node.keywords}.get("capture_error_mode")
                yield node.lineno, isinstance(given, ast.Constant) and given.value == MODE


def check_sources() -> None:
    """Search all sources of the package for captures."""
    root = Path(vllm.__file__).parent
    found = 0
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root).as_posix()
        text = file.read_text(encoding="utf-8")
        if "graph" not in text or name.startswith(ELSEWHERE):
            continue
        for line, right in captures(text):
            found += 1
            expect(right, f"vllm/{name}:{line} captures a graph that other threads can end")
    if found < len(PLACES):
        message = f"only {found} captures were found in {root}"
        raise RuntimeError(message)


def probe() -> None:
    """Run what captures, then search for more."""
    check_places(PLACES)
    check_sources()
