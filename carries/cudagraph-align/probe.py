"""Are cudagraph capture sizes aligned with speculative decoding wherever graphs are captured?

Upstream's own `CompilationConfig` resolves mode and sizes, and its `CudagraphDispatcher` pads batches to the
outcome; a few numbers around them are stand-ins. With K drafted tokens, a decode step has 1 + K rows for each
request, so sizes that are multiples of 1 + K suit such batches.

The defect shows where graphs are piecewise: the sizes are left as they were. The controls hold on both trees:
the modes that were always aligned, those which must never be, and piecewise configurations for which no
aligned sizes exist. Those start today, and must go on starting with the sizes that they have.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

from probekit import expect
from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode
from vllm.config.compilation import PassConfig
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

DEFAULT = (1, 2, 4, 8, 16, 24, 32)  # how upstream's own list begins
REFUSED = None


class Case(NamedTuple):
    """A configuration, and the capture sizes that it ends with (`REFUSED`: it must not start)."""

    what: str
    drafts: int
    expected: tuple[int, ...] | None
    sizes: tuple[int, ...] = DEFAULT
    mode: CUDAGraphMode = CUDAGraphMode.PIECEWISE
    support: AttentionCGSupport = AttentionCGSupport.ALWAYS
    sequence_parallel: int = 1
    compile_sizes: tuple[int | str, ...] = ()
    compilation: CompilationMode = CompilationMode.VLLM_COMPILE

    @property
    def query_len(self) -> int:
        """Rows that one request contributes to a decode step."""
        return 1 + self.drafts


CONTROLS = (
    Case("FULL", 3, (4, 8, 16, 24, 32), mode=CUDAGraphMode.FULL),
    Case("FULL_DECODE_ONLY", 3, (4, 8, 16, 24, 32), mode=CUDAGraphMode.FULL_DECODE_ONLY),
    Case("FULL_AND_PIECEWISE", 3, (4, 8, 16, 24, 32), mode=CUDAGraphMode.FULL_AND_PIECEWISE),
    # Full decode graphs cannot do without aligned sizes, so here the error is right.
    Case("FULL, every size too small", 15, REFUSED, sizes=(1, 2, 4, 8), mode=CUDAGraphMode.FULL),
    Case("NONE", 3, DEFAULT, mode=CUDAGraphMode.NONE),
    Case(
        "full decode graphs given up, and none left",
        3,
        DEFAULT,
        mode=CUDAGraphMode.FULL_DECODE_ONLY,
        support=AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE,
        compilation=CompilationMode.NONE,
    ),
    Case("nothing drafted", 0, DEFAULT),
    Case("no sizes", 3, (), sizes=()),
    # Each of these three would be an error if alignment were forced upon piecewise graphs.
    Case("every size too small", 15, (1, 2, 4, 8), sizes=(1, 2, 4, 8)),
    Case("1 + K against sequence parallelism", 2, (2, 4, 8), sizes=(2, 4, 8), sequence_parallel=2),
    Case("compile sizes would be padded", 4, DEFAULT, compile_sizes=("cudagraph_capture_sizes",)),
)
DEFECTS = (
    Case("one drafted token", 1, (2, 4, 8, 16, 24, 32)),
    Case("three drafted tokens", 3, (4, 8, 16, 24, 32)),
    Case("1 + K divides no default size", 4, (5, 10, 20, 25)),
    Case("fifteen drafted tokens", 15, (16, 32)),
    Case("no size is left but 1 + K", 3, (4,), sizes=(5, 6, 7)),
    Case("sequence parallelism over twice 1 + K", 1, (4, 8), sizes=(2, 4, 6, 8), sequence_parallel=4),
    Case("compile sizes that stay", 3, (4, 8, 16, 24, 32), compile_sizes=(8, 2048)),
    Case(
        "full decode graphs given up for this attention backend",
        3,
        (4, 8, 16, 24, 32),
        mode=CUDAGraphMode.FULL_AND_PIECEWISE,
        support=AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE,
    ),
)


def compilation_config(case: Case) -> CompilationConfig:
    """The configuration as it is when the model runner begins to settle mode and sizes."""
    sequence_parallel = case.sequence_parallel > 1
    config = CompilationConfig(
        mode=case.compilation,
        backend="inductor",
        cudagraph_mode=case.mode,
        cudagraph_capture_sizes=list(case.sizes),
        max_cudagraph_capture_size=max(case.sizes, default=0),
        compile_sizes=list(case.compile_sizes),
        pass_config=PassConfig(enable_sp=sequence_parallel),
        # Otherwise upstream turns piecewise graphs into full ones for sequence parallelism.
        use_inductor_graph_partition=sequence_parallel,
    )
    config.set_splitting_ops_for_v1(all2all_backend="")
    config.post_init_cudagraph_sizes()
    return config


def padded_sizes(case: Case, config: CompilationConfig) -> tuple[int, ...]:
    """Every size to which the dispatcher pads a batch that some graph can hold."""
    vllm_config: Any = SimpleNamespace(
        compilation_config=config,
        lora_config=None,
        num_speculative_tokens=case.drafts,
        scheduler_config=SimpleNamespace(max_num_seqs=256),
    )
    dispatcher = CudagraphDispatcher(vllm_config)
    dispatcher.initialize_cudagraph_keys(config.cudagraph_mode, case.query_len)
    rows = range(1, config.max_cudagraph_capture_size + 1)
    return tuple(sorted({dispatcher.dispatch(number)[1].num_tokens for number in rows}))


def final_sizes(case: Case) -> tuple[int, ...] | None:
    """Let upstream settle the sizes; `REFUSED` where it raises the error that stops a server at start."""
    config = compilation_config(case)
    try:
        # The model runner does this twice: before it profiles graph memory, and before it captures.
        for _ in range(2):
            mode = config.resolve_cudagraph_mode_and_sizes(
                case.support,
                "SomeBackend",
                uniform_decode_query_len=case.query_len,
                tensor_parallel_size=case.sequence_parallel,
            )
        sizes = tuple(config.cudagraph_capture_sizes)
        largest = config.max_cudagraph_capture_size
        expect(largest == max(sizes, default=0), f"{case.what}: {largest} is not the largest of {sizes}")
        padded = padded_sizes(case, config) if mode == CUDAGraphMode.PIECEWISE else None
    except ValueError:
        return REFUSED
    expect(padded in {None, sizes}, f"{case.what}: graphs of {sizes}, but batches are padded to {padded}")
    return sizes


def probe() -> None:
    """Controls first, so that a defect is reported only by a probe whose healthy cases hold."""
    for case in (*CONTROLS, *DEFECTS):
        sizes = final_sizes(case)
        expect(
            sizes == case.expected,
            f"{case.what}: {case.sizes} with K={case.drafts} became {sizes}, not {case.expected}",
        )
