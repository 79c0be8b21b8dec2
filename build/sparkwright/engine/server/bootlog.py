"""The facts and the stages of a start in a server's log, for vLLM 0.24 to 0.33 and its FlashInfer.

The lines are upstream's; where a wording or a file changed between 0.24.0 and 0.33.0, the expression matches
both. Beside each stands the file under ``vllm/`` that writes it. Numbers that ``/metrics`` has more exactly
are taken from there by `facts_from_metrics`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from sparkwright.base.events import Task, task
from sparkwright.engine.observations import BootFacts, MetricsSnapshot

# platforms/cuda.py: chosen among several, or named by the user
_ATTENTION = re.compile(r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+) (?:attention )?backend\b")
# v1/worker/gpu_model_runner.py; the second model runner logs no such line
_DRAFTER = re.compile(r"Loading drafter model")
# model_executor/kernels/linear/__init__.py: NVFP4, MXFP4, MXFP6 and MXFP8
_LINEAR = re.compile(r"Using (\w+) for (\w+) GEMM")
# model_executor/layers/fused_moe/oracle/: quoted for NVFP4 and MXFP4, without quotes for FP8
_MOE = re.compile(r"Using '?(\w+)'? (\w+) MoE backend\b")
# model_executor/: layers/quantization/utils/marlin_utils_fp4.py, kernels/linear/nvfp4/marlin.py
_WEIGHT_ONLY = re.compile(r"does not have native support for FP4 computation")
# model_executor/: kernels/linear/__init__.py, layers/fused_moe/experts/*_emulation_moe.py, and Quark's
_EMULATED = re.compile(
    r"falling back to the slow and unoptimized emulation backend"
    r"|Using \w*EmulationTritonExperts M[Oo]E backend"
    r"|Simulated weight dequantization"
)

WEIGHT_ONLY = "weight-only kernels"
EMULATION = "emulation"


def attention_backends(text: str) -> tuple[str, ...]:
    """Return the attention backends that a log names, each once, in order."""
    return tuple(dict.fromkeys(_ATTENTION.findall(text)))


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = r"(-?[\d,]+(?:\.\d+)?)"

# v1/engine/core.py: the one line that holds the whole configuration (config/vllm.py, VllmConfig.__str__)
_ENGINE = re.compile(r"Initializing a V1 LLM engine \(v([^)]+)\) with config: (.*)")
# entrypoints: 0.24 serve/utils/api_utils.py, 0.33 common/startup.py; as a sentence, or in the logo
_VERSION = re.compile(r"(?:vLLM (?:API )?server version|[█▄▀ ]  version) v?(\d[\w.+]*)")
_RUNNER_V2 = re.compile(r"Using V2 Model Runner")  # v1/worker/gpu_worker.py; V1 logs no such line
_LOADING = re.compile(r"Starting to load model|Model loading took|Loading model from scratch")
_KV_MEMORY = re.compile(rf"Available KV cache memory: {_NUMBER} GiB")  # v1/worker/gpu_worker.py
_KV_RESERVED = re.compile(rf"reserved {_NUMBER} GiB memory for KV Cache")  # the same, where the user set it
# v1/core/kv_cache_utils.py: two lines in 0.24, one in 0.33, which may name the pool
_KV_TOKENS = re.compile(rf"KV cache size: {_NUMBER} tokens")
_CONCURRENCY = re.compile(rf"Maximum concurrency for {_NUMBER} tokens per request: {_NUMBER}x")
_WEIGHTS = re.compile(rf"Model loading took {_NUMBER} GiB")  # both runners; V2 of 0.24 omits "memory"
_GRAPHS_ESTIMATED = re.compile(
    rf"Estimated CUDA graph memory: {_NUMBER} GiB total"
)  # v1/worker/gpu_model_runner.py
_GRAPHS_POOL = re.compile(rf"CUDA graph pool memory: {_NUMBER} GiB \(actual\), {_NUMBER} GiB \(estimated\)")
_GRAPHS_TAKEN = re.compile(rf"Graph capturing finished in {_NUMBER} secs, took {_NUMBER} GiB")
# v1/worker/gpu_model_runner.py while profiling; the bars are tqdm's, of V1 and of V2
_PIECEWISE_COUNT = re.compile(r"Profiling CUDA graph memory:.*?PIECEWISE=(\d+)")
_PIECEWISE_BAR = re.compile(
    r"Capturing CUDA graphs \((?:mixed prefill-decode, )?PIECEWISE\):[^\n]*?\d+/(\d+) \["
)
_TOTAL = re.compile(rf"Free memory on device [^(]*\({_NUMBER}/{_NUMBER} GiB\) on startup")
_UTILIZATION = re.compile(r"The current --gpu-memory-utilization=([\d.]+)")
# config/vllm.py, config/compilation.py: what became of the mode after the configuration was printed
_MODE_CHANGED = re.compile(r"(?:Overriding cudagraph_mode(?: from \w+)? to|setting cudagraph_mode=)\s*(\w+)")
_MODE = r"'cudagraph_mode': <CUDAGraphMode\.(\w+)"
_MAX_MODEL_LEN = re.compile(r"Using max model len (\d+)")  # config/model.py: the target's comes first
# platforms/interface.py, before it model_executor/models/config.py: hybrids, whose states need larger blocks
_ALIGNED = re.compile(r"Setting attention block size to (\d+) tokens")
_ARGUMENT = r"'{name}': (?:'([^']*)'|([\d.]+))"  # in "non-default args: {{…}}"

_LEVEL = re.compile(r"^(?:\([^)]*\) )?(?:ERROR|CRITICAL) \d\d-\d\d ")
_BAD = re.compile(
    r"illegal memory access|device-side assert|CUDA error|CUDA out of memory|OutOfMemoryError"
    r"|EngineDeadError|EngineCore encountered|EngineCore failed|Engine core initialization failed"
    r"|block_table must have shape|batch_size must be equal|Traceback \(most recent call last\)"
    r"|^Segmentation fault|Fatal Python error",
    re.IGNORECASE,
)
_LONGEST, _MOST_LINES = 400, 200


def plain(text: str) -> str:
    """Return a log without colours."""
    return _COLOURS.sub("", text)


def error_lines(text: str) -> tuple[str, ...]:
    """Return the first 200 lines that report an error, each cut to 400 characters."""
    lines = (line.rsplit("\r", 1)[-1] for line in plain(text).splitlines())
    bad = [line[:_LONGEST] for line in lines if _LEVEL.search(line) or _BAD.search(line)]
    return tuple(bad[:_MOST_LINES])


def read_boot_log(text: str) -> BootFacts:
    """Return the facts in a log about the server's last start.

    Returns:
        The facts that were found; see `BootFacts` for the values of the others.
    """
    text = plain(text)
    engine = list(_ENGINE.finditer(text))
    config = engine[-1].group(2) if engine else ""
    version = engine[-1].group(1) if engine else _last(_VERSION, text)
    _, _, speculative = config.partition("speculative_config=")
    drafts = speculative.startswith("SpeculativeConfig(")
    k = int(_first(r"num_spec_tokens=(\d+)", speculative) or -1) if drafts else (0 if config else -1)
    pool = _GRAPHS_POOL.findall(text)
    estimate = _last(_GRAPHS_ESTIMATED, text) or (pool[-1][1] if pool else "")
    concurrency = _CONCURRENCY.findall(text)
    totals = _TOTAL.findall(text)
    drafter, quantization = _DRAFTER.search(text), _first(r"\bquantization=([\w-]+)", config)
    slow = ((WEIGHT_ONLY, _WEIGHT_ONLY), (EMULATION, _EMULATED))
    return BootFacts(
        version=version,
        runner=_runner(text),
        backends=attention_backends(text),
        drafter_backends=attention_backends(text[drafter.end() :]) if drafter else (),
        linear_backends=tuple(dict.fromkeys(f"{kind} {name}" for name, kind in _LINEAR.findall(text))),
        moe_backends=tuple(dict.fromkeys(f"{kind} {name}" for name, kind in _MOE.findall(text))),
        slow_paths=tuple(name for name, sign in slow if sign.search(text)),
        quantization=quantization.replace("None", ""),
        eager="enforce_eager=True" in config if config else None,
        asked_linear=_argument(text, "linear_backend"),
        asked_moe=_argument(text, "moe_backend"),
        kv_gib=_number(_last(_KV_MEMORY, text) or _last(_KV_RESERVED, text)),
        kv_tokens=int(_number(_last(_KV_TOKENS, text))),
        kv_dtype=_kv_dtype(config),
        max_concurrency=_number(concurrency[-1][1] if concurrency else ""),
        weights_gib=_number(_last(_WEIGHTS, text)),
        graph_gib=float(estimate.replace(",", "")) if estimate else None,
        graph_actual_gib=_graphs_taken(text, pool),
        total_gib=_number(totals[-1][1] if totals else ""),
        utilization=_number(_last(_UTILIZATION, text) or _argument(text, "gpu_memory_utilization")),
        capture_sizes=_capture_sizes(text, config, k),
        graph_mode=_graph_mode(text, config, engine[-1].end() if engine else 0),
        planned_graphs=_first(_MODE, config),
        speculative_tokens=k,
        speculative_method=_first(r"method='([^']*)'", speculative) if drafts else "",
        max_model_len=int(_first(r"max_seq_len=(\d+)", config) or _first(_MAX_MODEL_LEN.pattern, text) or -1),
        max_num_seqs=int(_number(_argument(text, "max_num_seqs"))),
        block_sizes=tuple(sorted({int(size) for size in _ALIGNED.findall(text)[-1:]})),
    )


def facts_from_metrics(snapshot: MetricsSnapshot, facts: BootFacts) -> BootFacts:
    """Return *facts* with those that ``/metrics`` has more exactly: capacity, type and share of the KV cache.

    The labels of ``vllm:cache_config_info`` are the fields of upstream's ``CacheConfig`` (config/cache.py).
    """
    cache = {name: value for name, value in snapshot.cache.items() if value not in {"", "None"}}
    tokens = cache.get("kv_cache_size_tokens", "")
    if not tokens and {"num_gpu_blocks", "block_size"} <= cache.keys() and facts.kv_tokens < 0:
        # An upper bound for models of several cache groups, which share the blocks.
        tokens = str(int(_number(cache["num_gpu_blocks"]) * _number(cache["block_size"])))
    dtype = cache.get("cache_dtype", "").removeprefix("auto")  # the log has what that came to be
    return msgspec.structs.replace(
        facts,
        kv_tokens=int(_number(tokens)) if tokens else facts.kv_tokens,
        max_concurrency=_known(cache, "kv_cache_max_concurrency", facts.max_concurrency),
        utilization=_known(cache, "gpu_memory_utilization", facts.utilization),
        kv_dtype=dtype or facts.kv_dtype,
        block_sizes=_block_sizes(cache, facts.block_sizes),
    )


def _block_sizes(labels: Mapping[str, str], logged: Iterable[int]) -> tuple[int, ...]:
    """Return the block sizes that labels or the log name; of several groups the label has the smallest."""
    named = (int(_number(labels.get(name, ""))) for name in ("block_size", "mamba_block_size"))
    return tuple(sorted({size for size in (*named, *logged) if size > 1}))


def _known(labels: Mapping[str, str], name: str, otherwise: float) -> float:
    return _number(labels[name]) if name in labels else otherwise


def _kv_dtype(config: str) -> str:
    """Return the type of the KV cache; for ``auto`` the model's own."""
    dtype = _first(r"kv_cache_dtype=([\w.]+)", config)
    return _first(r"\bdtype=(?:torch\.)?(\w+)", config) if dtype == "auto" else dtype


def _runner(text: str) -> str:
    if _RUNNER_V2.search(text):
        return "v2"
    return "v1" if _LOADING.search(text) else ""


def _graphs_taken(text: str, pool: list[tuple[str, str]]) -> float:
    if pool:
        return _number(pool[-1][0])
    taken = _GRAPHS_TAKEN.findall(text)
    return _number(taken[-1][1] if taken else "")


def _graph_mode(text: str, config: str, since: int) -> str:
    changed = _MODE_CHANGED.findall(text[since:])
    return changed[-1] if changed else _first(_MODE, config)


def _capture_sizes(text: str, config: str, k: int) -> tuple[int, ...]:
    """Return the sizes that graphs were captured for.

    The configuration is printed before the worker rounds its sizes to whole requests of 1 + k tokens
    (config/compilation.py, ``adjust_cudagraph_sizes_for_spec_decode``), and the result is printed
    nowhere. But its length is: if it is that of the rounded sizes and not that of the printed ones, they
    were rounded.
    """
    listed = _first(r"'cudagraph_capture_sizes': \[([\d, ]*)\]", config)
    sizes = tuple(int(size) for size in listed.split(",") if size.strip())
    count = int(_last(_PIECEWISE_COUNT, text) or _last(_PIECEWISE_BAR, text) or 0)
    if k <= 0 or not sizes or count == len(sizes):
        return sizes
    if not count:
        return ()  # rounded or not is unknown
    step = 1 + k
    rounded = sorted({-(-size // step) * step for size in sizes})
    rounded = [size for size in rounded if size <= max(sizes)] or [step]
    return tuple(rounded) if len(rounded) == count else sizes


def _argument(text: str, name: str) -> str:
    """Return a value of the last line of arguments that are not vLLM's defaults."""
    _, found, after = text.rpartition("non-default args: ")
    match = re.search(_ARGUMENT.format(name=name), after.partition("\n")[0]) if found else None
    return (match.group(1) or match.group(2) or "") if match else ""


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match.group(1) if match else ""


def _last(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.findall(text)
    return str(found[-1]) if found else ""


def _number(text: str) -> float:
    """Return a number as logs write it, or -1 where there is none."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return -1


_BEGINS = {
    # v1/worker/gpu_model_runner.py, v1/worker/gpu/model_runner.py
    "set up the model": r"Starting to load model",
    # compilation/backends.py
    "compile the model": r"Dynamo bytecode transform time|Compiling a graph for",
    "tune FlashInfer's kernels": r"Autotuning process starts",  # flashinfer/autotuner.py
}
_ENDS = re.compile(
    # The same files; compilation/monitor.py; v1/worker/gpu_worker.py.
    r"Model loading took|torch\.compile (?:and initial profiling run )?took|Available KV cache memory"
    r"|Autotuning process ends|Graph capturing finished"
)
# tqdm's, of model_executor/model_loader/weight_utils.py and of the runners.
_BAR = re.compile(r"(Loading|Capturing)\b([^:]*):\s+\d+%.*?\|\s*(\d+)/(\d+) \[")
_LINE_ENDS = re.compile(r"[\r\n]")


class BootStages:
    """Reports the stage that a server's log has come to, as a task inside the block."""

    def __init__(self, log: Path, *, where: str = "") -> None:
        """Begin at the start of *log*; the names of stages begin with *where*."""
        self._log, self._where, self._at = log, where, 0
        self._open = contextlib.ExitStack()
        self._task: Task | None = None
        self._rest = ""

    def __enter__(self) -> Self:
        """Begin without a stage."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the stage, as it ends the block."""
        self._open.__exit__(kind, error, trace)

    def read(self) -> None:
        """Read what was added to the log."""
        added = b""
        with contextlib.suppress(FileNotFoundError), self._log.open("rb") as stream:
            stream.seek(self._at)
            added = stream.read()
        self._at += len(added)
        *lines, self._rest = _LINE_ENDS.split(self._rest + added.decode(errors="replace"))
        for line in map(plain, lines):
            if bar := _BAR.search(line):
                verb, what, done, total = bar.groups()
                name = "load the weights" if verb == "Loading" else f"capture{what}"
                self._stage(name, int(total), "shards" if verb == "Loading" else "graphs", int(done))
            elif _ENDS.search(line):
                self._end()
            else:
                for name, begins in _BEGINS.items():
                    if re.search(begins, line):
                        self._stage(name)

    def _stage(self, name: str, total: int | None = None, unit: str = "", done: int = 0) -> None:
        name, now = self._where + name, self._task
        if now is None or now.name != name or (total is not None and now.total != total):
            self._end()
            now = self._task = self._open.enter_context(task(name, total=total, unit=unit))
        if done > now.done:
            now.advance(done - now.done)

    def _end(self) -> None:
        self._open.close()
        self._task = None
