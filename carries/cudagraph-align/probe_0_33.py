"""Are whole graphs aligned with drafts, and need piecewise ones no alignment, in vLLM 0.33.0?

Model runner V2, the default there, sizes its own graphs: upstream's `CudaGraphManager` lists them and
finds one for each batch; a few numbers around it are stand-ins. With K drafted tokens a decode step has 1
+ K rows for each request.

Healthy: a whole graph holds a number of whole requests, in rows and in requests alike, and takes no step
that is not of decodes; each decode batch that an aligned size can hold gets one; a piecewise graph pads
rows and no requests. The sizes that a configuration gives are left to the manager, so that none of them
can stop a start.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from probekit import expect
from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.worker.gpu import cudagraph_utils

DEFAULT = (1, 2, 4, 8, 16, 24, 32)  # how upstream's own list begins
REQUESTS = 12  # at most, in one batch


class Case(NamedTuple):
    """A configuration as V2 gets it."""

    drafts: int
    mode: CUDAGraphMode = CUDAGraphMode.FULL_AND_PIECEWISE
    sizes: tuple[int, ...] = DEFAULT

    @property
    def query_len(self) -> int:
        """Rows that one request contributes to a decode step."""
        return 1 + self.drafts

    def __str__(self) -> str:
        """Name the case."""
        return f"{self.mode.name}, K={self.drafts}, sizes {self.sizes}"


CASES = tuple(
    Case(drafts, mode, sizes)
    for drafts in (0, 1, 3, 4, 7, 15)
    for mode in (CUDAGraphMode.FULL_AND_PIECEWISE, CUDAGraphMode.FULL_DECODE_ONLY, CUDAGraphMode.PIECEWISE)
    for sizes in (DEFAULT, (5, 6, 7), (1, 2, 4, 8))
)


def settled(case: Case) -> CompilationConfig:
    """Let upstream settle mode and sizes for V2."""
    config = CompilationConfig(
        mode=CompilationMode.VLLM_COMPILE,
        backend="inductor",
        cudagraph_mode=case.mode,
        cudagraph_capture_sizes=list(case.sizes),
        max_cudagraph_capture_size=max(case.sizes),
    )
    config.set_splitting_ops_for_v1(all2all_backend="")
    config.post_init_cudagraph_sizes()
    config.resolve_cudagraph_mode_and_sizes(
        AttentionCGSupport.ALWAYS,
        "SomeBackend",
        uniform_decode_query_len=case.query_len,
        use_v2_model_runner=True,
    )
    sizes = tuple(config.cudagraph_capture_sizes)
    expect(sizes == case.sizes, f"{case}: they became {sizes} before V2 had them")
    return config


def manager(case: Case) -> cudagraph_utils.CudaGraphManager:
    """Return upstream's manager as it is once its graphs are captured."""
    config: Any = SimpleNamespace(
        compilation_config=settled(case),
        scheduler_config=SimpleNamespace(max_num_seqs=REQUESTS),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        cache_config=SimpleNamespace(use_kda_recoverssm=False),
        speculative_config=None,
        num_speculative_tokens=case.drafts,
    )
    with (
        mock.patch.object(cudagraph_utils, "get_pp_group"),
        mock.patch.object(cudagraph_utils, "current_platform"),
    ):
        made = cudagraph_utils.CudaGraphManager(config, torch.device("cpu"), case.mode, case.query_len)
    made._graphs_captured = True  # noqa: SLF001 - as after a capture
    return made


def check_decodes(case: Case, graphs: cudagraph_utils.CudaGraphManager) -> None:
    """Look at the graph of each number of decodes."""
    aligned = [-(-size // case.query_len) * case.query_len for size in case.sizes]
    largest = max(
        (size for size in aligned if size <= min(max(case.sizes), REQUESTS * case.query_len)), default=0
    )
    for requests in range(1, REQUESTS + 1):
        rows = requests * case.query_len
        what = f"{case}: {requests} decodes of {rows} rows"
        graph = graphs.dispatch(requests, rows, case.query_len, 0, case.query_len)
        if case.mode.decode_mode() == CUDAGraphMode.FULL and rows <= largest:
            expect(
                graph.cg_mode == CUDAGraphMode.FULL, f"{what} get no whole graph, and {largest} rows have one"
            )
        if graph.cg_mode == CUDAGraphMode.FULL:
            expect(
                graph.num_reqs is not None and graph.num_reqs * case.query_len == graph.num_tokens >= rows,
                f"{what} get a whole graph of {graph.num_tokens} rows for {graph.num_reqs} requests",
            )
        elif graph.cg_mode == CUDAGraphMode.PIECEWISE:
            expect(
                graph.num_reqs is None, f"{what}: a piecewise graph pads them to {graph.num_reqs} requests"
            )
            expect(graph.num_tokens >= rows, f"{what}: a piecewise graph has {graph.num_tokens} rows")


def check_others(case: Case, graphs: cudagraph_utils.CudaGraphManager) -> None:
    """Look at the graph of steps that are not of decodes only."""
    for rows in range(1, max(case.sizes) + 1):
        graph = graphs.dispatch(1, rows, None, 0, None)
        expect(graph.cg_mode != CUDAGraphMode.FULL, f"{case}: a whole graph takes a prompt of {rows} tokens")


def probe() -> None:
    """Check every case."""
    for case in CASES:
        graphs = manager(case)
        check_decodes(case, graphs)
        check_others(case, graphs)
