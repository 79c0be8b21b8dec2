"""The server's log: the lines of a start as vLLM 0.24 and 0.33 write them, stamped with simulated time."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from sparkwright.verify.simulator.clock import Clock
from sparkwright.verify.simulator.settings import MemoryPlan, Settings, plan_memory

_GRAPH_MODE: Final = "FULL_AND_PIECEWISE"
_LARGEST: Final = 512


class LogLine(NamedTuple):
    """One line of the log.

    Attributes:
        where: the source file and line of vLLM 0.24 that write it; empty for a progress bar.
        engine: the engine's process writes it, not the API server's.
    """

    where: str
    text: str
    level: str = "INFO"
    engine: bool = True


def capture_sizes(settings: Settings) -> tuple[int, ...]:
    """Return the batch sizes (in tokens) that graphs are captured for, as the configuration lists them.

    vLLM logs the list before it rounds it to multiples of 1 + k for graphs of whole decode steps.
    """
    largest = min(_LARGEST, settings.max_num_seqs * (1 + settings.k) * 2)
    odd = 3 if "unrounded-graphs" in settings.faults else 0
    sizes = [1, 2, 4, *range(8 + odd, 256, 8), *range(256 + odd, _LARGEST + 1, 16)]
    return tuple(size for size in sizes if size <= largest)


def captured_sizes(settings: Settings) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes that graphs are captured for: piecewise ones, and those of whole decode steps."""
    listed, step = capture_sizes(settings), 1 + settings.k
    if "unrounded-graphs" in settings.faults:
        rounded = listed
    else:
        rounded = tuple(sorted({-(-size // step) * step for size in listed}))
    rounded = tuple(size for size in rounded if size <= listed[-1])
    return rounded, tuple(size for size in rounded if step <= size <= step * settings.max_num_seqs)


def boot_lines(settings: Settings) -> Iterator[LogLine]:
    """Return the lines of a successful start, in order, up to the HTTP server's own."""
    yield from _configuration(settings)
    yield from _loading(settings)
    yield from _sharing(settings)
    yield from _capturing(settings)


def _speculative(settings: Settings) -> str:
    if not settings.k:
        return "None"
    drafter = f"{settings.model}-{settings.method}"
    return f"SpeculativeConfig(method='{settings.method}', model='{drafter}', num_spec_tokens={settings.k})"


def _configuration(settings: Settings) -> Iterator[LogLine]:
    arguments = {
        "model": settings.model,
        "max_model_len": settings.max_model_len,
        "gpu_memory_utilization": settings.utilization,
        "kv_cache_dtype": plan_memory(settings).kv_dtype,
        "max_num_seqs": settings.max_num_seqs,
        "enable_prompt_tokens_details": settings.prompt_details,
    }
    if settings.k:
        arguments["speculative_config"] = {"method": settings.method, "num_speculative_tokens": settings.k}
    yield LogLine("api_utils.py:273", f"non-default args: {arguments}", engine=False)
    yield LogLine("model.py:1725", f"Using max model len {settings.max_model_len}", engine=False)
    text = f"Chunked prefill is enabled with max_num_batched_tokens={settings.max_batched_tokens}."
    yield LogLine("scheduler.py:252", text, engine=False)
    sizes = list(capture_sizes(settings))
    yield LogLine(
        "core.py:114",
        f"Initializing a V1 LLM engine (v{settings.version}) with config: model='{settings.model}', "
        f"speculative_config={_speculative(settings)}, tokenizer='{settings.model}', dtype=torch.bfloat16, "
        f"max_seq_len={settings.max_model_len}, load_format=auto, tensor_parallel_size=1, "
        f"quantization=compressed-tensors, enforce_eager=False, "
        f"kv_cache_dtype={plan_memory(settings).kv_dtype}, device_config=cuda, seed={settings.seed}, "
        f"served_model_name={settings.model}, enable_prefix_caching={settings.prefix_caching}, "
        "enable_chunked_prefill=True, compilation_config={'mode': <CompilationMode.VLLM_COMPILE: 3>, "
        f"'cudagraph_mode': <CUDAGraphMode.{_GRAPH_MODE}: (2, 1)>, 'cudagraph_capture_sizes': {sizes}, "
        f"'max_cudagraph_capture_size': {sizes[-1]}}}",
    )
    if settings.runner == "v2":
        yield LogLine("gpu_worker.py:331", "Using V2 Model Runner")


def _loading(settings: Settings) -> Iterator[LogLine]:
    yield LogLine("gpu_model_runner.py:5160", f"Starting to load model {settings.model}...")
    others = "['FLASHINFER', 'FLASH_ATTN', 'TRITON_ATTN', 'FLEX_ATTENTION']"
    yield LogLine("cuda.py:480", f"Using FLASHINFER attention backend out of potential backends: {others}.")
    yield from _kernels(settings)
    yield LogLine("default_loader.py:430", "Loading weights took 41.37 seconds")
    if settings.k:
        yield LogLine("gpu_model_runner.py:5184", "Loading drafter model...")
        others = "['FLASH_ATTN', 'FLASHINFER', 'TRITON_ATTN', 'FLEX_ATTENTION']"
        yield LogLine(
            "cuda.py:480", f"Using FLASH_ATTN attention backend out of potential backends: {others}."
        )
        yield LogLine("default_loader.py:430", "Loading weights took 3.52 seconds")
    v2 = settings.runner == "v2"
    memory = " memory" if not v2 or settings.dialect != "0.24" else ""
    text = f"Model loading took {settings.weights_gib} GiB{memory} and 47.128843 seconds"
    yield LogLine("model_runner.py:302" if v2 else "gpu_model_runner.py:5255", text)
    yield LogLine("monitor.py:53", "torch.compile took 31.26 s in total")


def _kernels(settings: Settings) -> Iterator[LogLine]:
    """Return the lines on the kernels of linear layers and of experts, both with NVFP4 weights."""
    faults = settings.faults
    others = "['FLASHINFER_CUTLASS', 'VLLM_CUTLASS', 'MARLIN', 'EMULATION']"
    linear = "Marlin" if "fp4-fallback-linear" in faults else "FlashInferCutlass"
    yield LogLine("__init__.py:937", f"Using {linear}NvFp4LinearKernel for NVFP4 GEMM")
    if "fp4-fallback-linear" in faults:
        text = (
            "Your GPU does not have native support for FP4 computation but FP4 quantization is being used. "
            "Weight-only FP4 compression will be used leveraging the Marlin kernel. This may degrade "
            "performance for compute-heavy workloads."
        )
        yield LogLine("marlin.py:34", text, "WARNING")
    moe = "EMULATION" if "fp4-fallback-moe" in faults else "FLASHINFER_CUTLASS"
    yield LogLine("nvfp4.py:214", f"Using '{moe}' NvFp4 MoE backend out of potential backends: {others}.")
    if "fp4-fallback-moe" in faults:
        text = (
            "Using Nvfp4QuantizationEmulationTritonExperts MOE backend. This will dequantize weights on the "
            "fly and may be slower than native quantized MOE."
        )
        yield LogLine("nvfp4_emulation_moe.py:347", text, "WARNING")


def _sharing(settings: Settings) -> Iterator[LogLine]:
    memory = plan_memory(settings)
    if settings.runner == "v1":  # the second model runner estimates nothing
        sizes, full = captured_sizes(settings)
        text = (
            f"PIECEWISE={len(sizes)} (largest={sizes[-1]}), FULL={len(full)} (largest={max(full, default=0)})"
        )
        yield LogLine("gpu_model_runner.py:6488", f"Profiling CUDA graph memory: {text}")
        yield LogLine(
            "gpu_model_runner.py:6594", f"Estimated CUDA graph memory: {memory.graphs_gib:.2f} GiB total"
        )
    if "piecewise-drafts" in settings.faults and settings.k:
        text = (
            f"CUDAGraphMode.{_GRAPH_MODE} is not supported with spec-decode for attention backend "
            "FlashInferMetadataBuilder (support: AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); "
            "setting cudagraph_mode=PIECEWISE"
        )
        yield LogLine("compilation.py:1465", text, "WARNING")
    yield LogLine("gpu_worker.py:508", f"Available KV cache memory: {memory.kv_gib} GiB")
    if settings.runner == "v1" and memory.graphs_gib > 0:
        used, share = settings.utilization, memory.graphs_gib / settings.total_gib
        text = (
            "CUDA graph memory profiling is enabled (default since v0.21.0). The current "
            f"--gpu-memory-utilization={used:.4f} is equivalent to "
            f"--gpu-memory-utilization={used - share:.4f} without CUDA graph memory profiling. To maintain "
            f"the same effective KV cache size as before, increase --gpu-memory-utilization to "
            f"{used + share:.4f}. To disable, set VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0."
        )
        yield LogLine("gpu_worker.py:523", text)
    size = f"GPU KV cache size: {memory.kv_tokens:,} tokens"
    times = memory.kv_tokens / settings.max_model_len
    most = f"Maximum concurrency for {settings.max_model_len:,} tokens per request: {times:.2f}x"
    if settings.dialect == "0.24":
        yield LogLine("kv_cache_utils.py:2146", size)
        yield LogLine("kv_cache_utils.py:2147", most)
    else:
        yield LogLine("kv_cache_utils.py:2146", f"{size}, {most}")


def _capturing(settings: Settings) -> Iterator[LogLine]:
    memory = plan_memory(settings)
    actual = memory.graphs_actual_gib
    v2 = settings.runner == "v2"
    kinds = ("PIECEWISE", "FULL") if v2 else ("mixed prefill-decode, PIECEWISE", "decode, FULL")
    for kind, sizes in zip(kinds, captured_sizes(settings), strict=True):
        many = f"{len(sizes)}/{len(sizes)} [00:01<00:00, 41.08it/s]"
        yield LogLine("", f"Capturing CUDA graphs ({kind}): 100%|██████████| {many}")
    where = "model_runner.py:726" if v2 else "gpu_model_runner.py:6662"
    yield LogLine(where, f"Graph capturing finished in 24 secs, took {actual:.2f} GiB")
    if settings.runner == "v1":
        apart = memory.graphs_gib - actual
        text = (
            f"CUDA graph pool memory: {actual:.2f} GiB (actual), {memory.graphs_gib:.2f} GiB (estimated), "
            f"difference: {abs(apart):.2f} GiB ({abs(apart) / actual:.1%})."
        )
        yield LogLine("gpu_worker.py:667", text)
    level = "DEBUG" if settings.dialect == "0.24" else "INFO"
    yield LogLine("gpu_worker.py:731", _use(settings, memory), level)
    text = "init engine (profile, create kv cache, warmup model) took 96.41 s (compilation: 31.26 s)"
    yield LogLine("core.py:337", text)


def _use(settings: Settings, memory: MemoryPlan) -> str:
    """Return the line on the use of the card's memory, which 0.24 logs at level DEBUG."""
    total = settings.total_gib
    return (
        f"Free memory on device ({total - 3.1:.2f}/{total} GiB) on startup. Desired GPU memory utilization "
        f"is ({settings.utilization}, {settings.utilization * total:.2f} GiB). Actual usage is "
        f"{settings.weights_gib} GiB for weight, 2.11 GiB for peak activation, 1.31 GiB for non-torch "
        f"memory, and {memory.graphs_actual_gib} GiB for CUDAGraph memory. Current kv cache memory in use is "
        f"{memory.kv_gib} GiB."
    )


def failing_lines(settings: Settings) -> tuple[LogLine, ...]:
    """Return the last lines of a start that fails; empty for one that succeeds."""
    faults = settings.faults
    if "boot-cuda-oom" in faults:
        reason = (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.37 GiB. GPU 0 has a total "
            f"capacity of {settings.total_gib} GiB of which 1.12 GiB is free."
        )
    elif "boot-engine" in faults:
        reason = "ValueError: No valid attention backend found for cuda with head_size: 256, dtype: bfloat16."
    elif plan_memory(settings).kv_tokens < settings.max_model_len:
        reason = (
            "ValueError: To serve at least one request with the model's max seq len "
            f"({settings.max_model_len}), more KV cache is needed than is available."
        )
    else:
        return ()
    return (
        LogLine("core.py:1165", "EngineCore failed to start.", "ERROR"),
        LogLine("core.py:1165", "Traceback (most recent call last):", "ERROR"),
        LogLine("core.py:1165", reason, "ERROR"),
        LogLine(
            "api_server.py:581",
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            "ERROR",
            engine=False,
        ),
    )


class Log:
    """A writer of log lines to a file, or to the standard error stream."""

    def __init__(self, path: Path | None, clock: Clock, pids: tuple[int, int]) -> None:
        self._clock = clock
        self.server_pid, self.engine_pid = pids
        self._logger = logging.Logger("simulator")  # noqa: LOG001 - independent of the logging hierarchy
        handler = logging.StreamHandler() if path is None else logging.FileHandler(path, encoding="utf-8")
        self._logger.addHandler(handler)

    def line(self, line: LogLine) -> None:
        """Write one of vLLM's lines."""
        self.write(line.text, where=line.where, level=line.level, engine=line.engine)

    def write(self, text: str, *, where: str, level: str = "INFO", engine: bool = False) -> None:
        """Write a line of the API server's process, or of the engine's; without a place, only its text."""
        process = f"EngineCore pid={self.engine_pid}" if engine else f"APIServer pid={self.server_pid}"
        if not where:
            self._logger.info("(%s) %s", process, text)
            return
        stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(self._clock.wall()))
        self._logger.info("(%s) %s %s [%s] %s", process, level, stamp, where, text)

    def access(self, peer: str, request: str, status: int, reason: str) -> None:
        """Write a line about a request, as uvicorn does."""
        self._logger.info(
            '(APIServer pid=%d) INFO:     %s - "%s" %d %s', self.server_pid, peer, request, status, reason
        )

    def close(self) -> None:
        """Write no more."""
        for handler in self._logger.handlers:
            handler.close()
