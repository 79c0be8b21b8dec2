"""The server's counters, and ``/metrics``: Prometheus' text format, with vLLM's names and labels."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sparkwright.verify.simulator.settings import BLOCK, plan_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkwright.verify.simulator.engine import Engine, Request

_SHORT: Final = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
)
_PER_TOKEN: Final = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
)
_LONG: Final = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_SIZES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)
_ITERATION: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram:
    """Observations counted by upper bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


def _histograms() -> dict[str, Histogram]:
    return {
        "iteration_tokens_total": Histogram(_ITERATION),
        "request_prompt_tokens": Histogram(_SIZES),
        "request_generation_tokens": Histogram(_SIZES),
        "time_to_first_token_seconds": Histogram(_SHORT),
        "inter_token_latency_seconds": Histogram(_PER_TOKEN),
        "request_time_per_output_token_seconds": Histogram(_PER_TOKEN),
        "e2e_request_latency_seconds": Histogram(_LONG),
        "request_queue_time_seconds": Histogram(_LONG),
        "request_inference_time_seconds": Histogram(_LONG),
        "request_prefill_time_seconds": Histogram(_LONG),
        "request_decode_time_seconds": Histogram(_LONG),
    }


@dataclass
class Counters:
    """The counters of one start of the server.

    A *draft* is one request in one step with drafted tokens; the token that follows the accepted ones is not
    among them. Drafts count before an output is cut at its end, generated tokens after that.
    """

    k: int
    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    per_position: list[int] = field(default_factory=list)
    generated: int = 0
    prompt: int = 0
    prompt_cached: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    success: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0)
    )
    histograms: dict[str, Histogram] = field(default_factory=_histograms)

    def __post_init__(self) -> None:
        self.per_position = [0] * self.k

    def observe_draft(self, drafted: int, accepted: int) -> None:
        """Count one draft of *drafted* tokens of which the first *accepted* were accepted."""
        self.drafts += 1
        self.draft_tokens += drafted
        self.accepted += accepted
        for position in range(accepted):
            self.per_position[position] += 1

    def iteration(self, prefilled: int, generated: int) -> None:
        """Count one step of the engine."""
        self.histograms["iteration_tokens_total"].observe(prefilled + generated)
        self.generated += generated

    def tokens(self, request: Request, count: int, end: float) -> None:
        """Count *count* tokens that *request* got at the simulated time *end*."""
        spans = request.spans
        end = max(end, spans.arrived)  # a late engine may be behind a request that has just arrived
        if spans.first < 0:
            spans.first = end
            self.prompt += request.prompt_tokens
            self.prompt_cached += request.cached
            self.histograms["time_to_first_token_seconds"].observe(end - spans.arrived)
        elif count:
            self.histograms["inter_token_latency_seconds"].observe(end - spans.last)
        spans.last = end

    def finished(self, request: Request) -> None:
        """Count a finished request."""
        spans, observe = request.spans, self._observe
        self.success[request.finish] += 1
        observe("request_prompt_tokens", request.prompt_tokens)
        observe("request_generation_tokens", request.output_tokens)
        observe("e2e_request_latency_seconds", spans.last - spans.arrived)
        observe("request_queue_time_seconds", spans.scheduled - spans.arrived)
        observe("request_inference_time_seconds", spans.last - spans.scheduled)
        observe("request_prefill_time_seconds", spans.first - spans.scheduled)
        observe("request_decode_time_seconds", spans.last - spans.first)
        if request.output_tokens > 1:
            per_token = (spans.last - spans.first) / (request.output_tokens - 1)
            observe("request_time_per_output_token_seconds", per_token)

    def _observe(self, name: str, value: float) -> None:
        self.histograms[name].observe(value)


@dataclass(frozen=True)
class ProcessTimes:
    """Times of the server's process in its metrics.

    Attributes:
        started_s: start of the process, seconds since 1970.
        cpu_s: simulated seconds since.
    """

    started_s: float
    cpu_s: float


def render_metrics(engine: Engine, times: ProcessTimes) -> str:
    """Return all series, as the body of ``GET /metrics``."""
    lines = [
        *_process(times),
        *_gauges(engine),
        *_counter_lines(engine, times),
        *_histogram_lines(engine, times),
    ]
    lines += _cache_config(engine)
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return "+Inf" if value == float("inf") else repr(float(value))


def _labels(labels: Mapping[str, str]) -> str:
    escaped = (
        f'{name}="{value.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'
        for name, value in sorted(labels.items())
    )
    return "{" + ",".join(escaped) + "}"


def _head(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _process(times: ProcessTimes) -> Iterator[str]:
    yield from _head("python_info", "Python platform information", "gauge")
    yield 'python_info{implementation="CPython",major="3",minor="12",patchlevel="3",version="3.12.3"} 1.0'
    yield from _head("process_resident_memory_bytes", "Resident memory size in bytes.", "gauge")
    yield f"process_resident_memory_bytes {_number(2.1e9)}"
    yield from _head("process_start_time_seconds", "Start time of the process since unix epoch.", "gauge")
    yield f"process_start_time_seconds {_number(round(times.started_s, 2))}"
    yield from _head(
        "process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", "counter"
    )
    yield f"process_cpu_seconds_total {_number(round(times.cpu_s, 2))}"
    yield from _head("process_open_fds", "Number of open file descriptors.", "gauge")
    yield f"process_open_fds {_number(sum(1 for _ in Path('/proc/self/fd').iterdir()))}"


def _common(engine: Engine) -> dict[str, str]:
    return {"model_name": engine.settings.model, "engine": "0"}


def _gauges(engine: Engine) -> Iterator[str]:
    common = _labels(_common(engine))
    for name, text, value in (
        ("num_requests_running", "Number of requests in model execution batches.", len(engine.running)),
        ("num_requests_waiting", "Number of requests waiting to be processed.", len(engine.waiting)),
        ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", engine.pool.usage),
    ):
        yield from _head(f"vllm:{name}", text, "gauge")
        yield f"vllm:{name}{common} {_number(value)}"
    yield from _head("vllm:num_requests_waiting_by_reason", "Number of waiting requests by reason.", "gauge")
    for reason, value in (("capacity", len(engine.waiting)), ("deferred", 0)):
        labels = _labels(_common(engine) | {"reason": reason})
        yield f"vllm:num_requests_waiting_by_reason{labels} {_number(value)}"
    yield from _head(
        "vllm:engine_sleep_state", "Engine sleep state; awake = 0 means engine is sleeping.", "gauge"
    )
    for state, value in (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)):
        labels = _labels(_common(engine) | {"sleep_state": state})
        yield f"vllm:engine_sleep_state{labels} {_number(value)}"


def _counter(
    engine: Engine,
    times: ProcessTimes,
    name: str,
    text: str,
    values: Mapping[tuple[tuple[str, str], ...], float],
) -> Iterator[str]:
    """Return one counter as Prometheus' own client writes it: ``_total``, and its creation time."""
    sets = [(_labels(_common(engine) | dict(labels)), value) for labels, value in values.items()]
    yield from _head(f"vllm:{name}_total", text, "counter")
    yield from (f"vllm:{name}_total{labels} {_number(value)}" for labels, value in sets)
    yield from _head(f"vllm:{name}_created", text, "gauge")
    yield from (f"vllm:{name}_created{labels} {_number(times.started_s)}" for labels, _ in sets)


def _counter_lines(engine: Engine, times: ProcessTimes) -> Iterator[str]:
    counters = engine.counters
    plain = [
        ("num_preemptions", "Cumulative number of preemption from the engine.", counters.preemptions),
        (
            "prefix_cache_queries",
            "Prefix cache queries, in number of queried tokens.",
            counters.prefix_queries,
        ),
        ("prefix_cache_hits", "Prefix cache hits, in number of cached tokens.", counters.prefix_hits),
        ("external_prefix_cache_queries", "External prefix cache queries, in tokens.", 0),
        ("external_prefix_cache_hits", "External prefix cache hits, in tokens.", 0),
        ("prompt_tokens", "Number of prefill tokens processed.", counters.prompt),
        ("prompt_tokens_cached", "Number of cached prompt tokens.", counters.prompt_cached),
        ("generation_tokens", "Number of generation tokens processed.", counters.generated),
    ]
    if "nan-drafts" in engine.settings.faults:
        plain.append(("corrupted_requests", "Requests with NaNs in logits.", sum(counters.success.values())))
    for name, text, value in plain:
        yield from _counter(engine, times, name, text, {(): value})
    sources = {
        "local_compute": counters.prompt - counters.prompt_cached,
        "local_cache_hit": counters.prompt_cached,
        "external_kv_transfer": 0,
    }
    text = "Number of prompt tokens by source."
    labelled: dict[tuple[tuple[str, str], ...], float] = {
        (("source", source),): value for source, value in sources.items()
    }
    yield from _counter(engine, times, "prompt_tokens_by_source", text, labelled)
    labelled = {(("finished_reason", reason),): count for reason, count in counters.success.items()}
    yield from _counter(
        engine, times, "request_success", "Count of successfully processed requests.", labelled
    )
    if engine.settings.k and "no-spec-series" not in engine.settings.faults:
        yield from _speculation(engine, times)


def _speculation(engine: Engine, times: ProcessTimes) -> Iterator[str]:
    counters = engine.counters
    inflated = counters.drafts if "inflated-acceptance" in engine.settings.faults else 0
    for name, text, value in (
        ("spec_decode_num_drafts", "Number of spec decoding drafts.", counters.drafts),
        ("spec_decode_num_draft_tokens", "Number of draft tokens.", counters.draft_tokens),
        ("spec_decode_num_accepted_tokens", "Number of accepted tokens.", counters.accepted + inflated),
    ):
        yield from _counter(engine, times, name, text, {(): value})
    by_position: dict[tuple[tuple[str, str], ...], float] = {
        (("position", str(position)),): count for position, count in enumerate(counters.per_position)
    }
    text = "Accepted tokens per draft position."
    yield from _counter(engine, times, "spec_decode_num_accepted_tokens_per_pos", text, by_position)


def _histogram_lines(engine: Engine, times: ProcessTimes) -> Iterator[str]:
    for name, histogram in engine.counters.histograms.items():
        yield from _histogram(engine, times, name, histogram)


def _histogram(engine: Engine, times: ProcessTimes, name: str, histogram: Histogram) -> Iterator[str]:
    text = f"Histogram of {name.replace('_', ' ')}."
    yield from _head(f"vllm:{name}", text, "histogram")
    total = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        total += count
        labels = _labels(_common(engine) | {"le": _number(bound)})
        yield f"vllm:{name}_bucket{labels} {_number(total)}"
    labels = _labels(_common(engine))
    yield f"vllm:{name}_count{labels} {_number(total)}"
    yield f"vllm:{name}_sum{labels} {_number(histogram.sum)}"
    yield from _head(f"vllm:{name}_created", text, "gauge")
    yield f"vllm:{name}_created{labels} {_number(times.started_s)}"


def _cache_config(engine: Engine) -> Iterator[str]:
    settings = engine.settings
    tokens = engine.pool.blocks * BLOCK
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
        "num_gpu_blocks": str(engine.pool.blocks),
        "num_gpu_blocks_override": "None",
        "prefix_caching_hash_algo": "sha256",
        "sliding_window": "None",
    }
    yield from _head("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", "gauge")
    yield f"vllm:cache_config_info{_labels(labels)} 1.0"
