"""The server's log, stamped with simulated time, and ``/metrics``, as vLLM 0.33 writes them.

Of vLLM's series there are those that clients read, and those that are easily taken for them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sparkwright.verify.simulator.engine import Engine
from sparkwright.verify.simulator.settings import BLOCK, VERSION, Settings, plan_memory

if TYPE_CHECKING:
    from sparkwright.verify.simulator.machine import Clock

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
    values = _values(settings)
    states = {"k": settings.k, "estimated": values["graphs_gib"] > 0}
    holds = {*settings.faults.active, *(word for word, true in states.items() if true)}
    text = Path(__file__).with_name("boot.txt").read_text(encoding="utf-8")
    for line in (line for line in text.splitlines() if not line.startswith("#")):
        when, where, level, words = (part.strip() for part in line.split("|", 3))
        if all((word.lstrip("!") in holds) != word.startswith("!") for word in when.split()):
            yield LogLine(where.lstrip("@"), words.format_map(values), level, not where.startswith("@"))


def _values(settings: Settings) -> dict[str, Any]:
    """Return the values in the lines of a start by their names."""
    memory, (pieces, full) = plan_memory(settings), captured_sizes(settings)
    arguments = {
        "model": settings.model,
        "max_model_len": settings.max_model_len,
        "gpu_memory_utilization": settings.utilization,
        "kv_cache_dtype": memory.kv_dtype,
        "max_num_seqs": settings.max_num_seqs,
        "enable_prompt_tokens_details": True,
    }
    speculative, used, total = "None", settings.utilization, settings.total_gib
    if settings.k:
        arguments["speculative_config"] = {"method": settings.method, "num_speculative_tokens": settings.k}
        speculative = (
            f"SpeculativeConfig(method='{settings.method}', model='{settings.model}-{settings.method}', "
            f"num_spec_tokens={settings.k})"
        )
    apart = abs(memory.graphs_gib - memory.graphs_actual_gib)
    return {
        **vars(settings),
        **vars(memory),
        "version": VERSION,
        "arguments": arguments,
        "speculative": speculative,
        "sizes": (sizes := list(capture_sizes(settings))),
        "largest_size": sizes[-1],
        "pieces": len(pieces),
        "largest_piece": pieces[-1],
        "full": len(full),
        "largest_full": max(full, default=0),
        "less": used - memory.graphs_gib / total,
        "more": used + memory.graphs_gib / total,
        "times": memory.kv_tokens / settings.max_model_len,
        "apart": apart,
        "apart_share": apart / memory.graphs_actual_gib,
        "free": total - 3.1,
        "desired": used * total,
    }


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


def render_metrics(engine: Engine, started_s: float) -> str:
    """Return all series of a server that *started_s* after 1970, as the body of ``GET /metrics``."""
    lines = [*_gauges(engine, started_s), *_counter_lines(engine, started_s), *_cache_config(engine)]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    escaped = (
        f'{name}="{value.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'
        for name, value in sorted(labels.items())
    )
    return "{" + ",".join(escaped) + "}"


def _common(engine: Engine) -> dict[str, str]:
    return {"model_name": engine.settings.model, "engine": "0"}


def _gauges(engine: Engine, started_s: float) -> Iterator[str]:
    yield "# TYPE process_start_time_seconds gauge"
    yield f"process_start_time_seconds {round(started_s, 2)!r}"
    for name, value in (
        ("num_requests_running", len(engine.running)),
        ("num_requests_waiting", len(engine.waiting)),
        ("kv_cache_usage_perc", engine.usage),
    ):
        yield f"# TYPE vllm:{name} gauge"
        yield f"vllm:{name}{_labels(_common(engine))} {float(value)!r}"
    yield "# TYPE vllm:num_requests_waiting_by_reason gauge"
    for reason, value in (("capacity", len(engine.waiting)), ("deferred", 0)):
        labels = _labels(_common(engine) | {"reason": reason})
        yield f"vllm:num_requests_waiting_by_reason{labels} {float(value)!r}"


def _counter_lines(engine: Engine, started_s: float) -> Iterator[str]:
    """Yield the counters as Prometheus' own client writes them: ``_total``, and their creation times."""
    for name, label, values in _counters(engine):
        sets = [_labels(_common(engine) | ({label: key} if label else {})) for key in values]
        yield f"# TYPE vllm:{name}_total counter"
        for labels, value in zip(sets, values.values(), strict=True):
            yield f"vllm:{name}_total{labels} {float(value)!r}"
        yield f"# TYPE vllm:{name}_created gauge"
        yield from (f"vllm:{name}_created{labels} {started_s!r}" for labels in sets)


def _counters(engine: Engine) -> Iterator[tuple[str, str, dict[str, int]]]:
    """Yield the name of each counter, the label that its values differ in (or ""), and these."""
    counters, faults = engine.counters, engine.settings.faults
    plain = {
        "num_preemptions": 0,
        "prefix_cache_queries": counters.prefix_queries,
        "prefix_cache_hits": counters.prefix_hits,
        "prompt_tokens": counters.prompt,
        "generation_tokens": counters.generated,
    }
    if "nan-drafts" in faults:
        plain["corrupted_requests"] = sum(counters.success.values())
    if engine.settings.k and "no-spec-series" not in faults:
        plain["spec_decode_num_drafts"] = counters.drafts
        plain["spec_decode_num_draft_tokens"] = counters.draft_tokens
        inflated = counters.drafts if "inflated-acceptance" in faults else 0
        plain["spec_decode_num_accepted_tokens"] = counters.accepted + inflated
        by_position = {str(place): count for place, count in enumerate(counters.per_position)}
        yield "spec_decode_num_accepted_tokens_per_pos", "position", by_position
    for name, value in plain.items():
        yield name, "", {"": value}
    yield "request_success", "finished_reason", counters.success


def _cache_config(engine: Engine) -> Iterator[str]:
    settings = engine.settings
    tokens = engine.cache.blocks * BLOCK
    labels = {
        "block_size": str(BLOCK),
        "cache_dtype": plan_memory(settings).kv_dtype,
        "calculate_kv_scales": "False",
        "cpu_offload_gb": "0",
        "enable_prefix_caching": str(settings.prefix_caching),
        "engine": "0",
        "gpu_memory_utilization": str(settings.utilization),
        "is_attention_free": "False",
        "kv_cache_max_concurrency": str(tokens / settings.max_model_len),
        "kv_cache_memory_bytes": "None",
        "kv_cache_size_tokens": str(tokens),
        "mamba_block_size": "None",
        "num_cpu_blocks": "None",
        "num_gpu_blocks": str(engine.cache.blocks),
        "num_gpu_blocks_override": "None",
        "prefix_caching_hash_algo": "sha256",
        "sliding_window": "None",
    }
    yield "# TYPE vllm:cache_config_info gauge"
    yield f"vllm:cache_config_info{_labels(labels)} 1.0"
