"""``/metrics``: the counters in Prometheus' text format, with vLLM's names and labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkwright.verify.simulator.memory import share_out
from sparkwright.verify.simulator.settings import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkwright.verify.simulator.counters import Histogram
    from sparkwright.verify.simulator.engine import Engine


@dataclass(frozen=True)
class Life:
    """One life of the server as its metrics tell it.

    Attributes:
        started_s: when its process started, seconds since 1970.
        cpu_s: simulated seconds since.
    """

    started_s: float
    cpu_s: float


def expose(engine: Engine, life: Life) -> str:
    """All series, as ``GET /metrics`` answers."""
    lines = [*_process(life), *_gauges(engine), *_counters(engine, life), *_histograms(engine, life)]
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


def _process(life: Life) -> Iterator[str]:
    yield from _head("python_info", "Python platform information", "gauge")
    yield 'python_info{implementation="CPython",major="3",minor="12",patchlevel="3",version="3.12.3"} 1.0'
    yield from _head("process_resident_memory_bytes", "Resident memory size in bytes.", "gauge")
    yield f"process_resident_memory_bytes {_number(2.1e9)}"
    yield from _head("process_start_time_seconds", "Start time of the process since unix epoch.", "gauge")
    yield f"process_start_time_seconds {_number(round(life.started_s, 2))}"
    yield from _head(
        "process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", "counter"
    )
    yield f"process_cpu_seconds_total {_number(round(life.cpu_s, 2))}"
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
    engine: Engine, life: Life, name: str, text: str, values: Mapping[tuple[tuple[str, str], ...], float]
) -> Iterator[str]:
    """One counter as Prometheus' own client writes it: ``_total``, and when it was made."""
    sets = [(_labels(_common(engine) | dict(labels)), value) for labels, value in values.items()]
    yield from _head(f"vllm:{name}_total", text, "counter")
    yield from (f"vllm:{name}_total{labels} {_number(value)}" for labels, value in sets)
    yield from _head(f"vllm:{name}_created", text, "gauge")
    yield from (f"vllm:{name}_created{labels} {_number(life.started_s)}" for labels, _ in sets)


def _counters(engine: Engine, life: Life) -> Iterator[str]:
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
        yield from _counter(engine, life, name, text, {(): value})
    sources = {
        "local_compute": counters.prompt - counters.prompt_cached,
        "local_cache_hit": counters.prompt_cached,
        "external_kv_transfer": 0,
    }
    text = "Number of prompt tokens by source."
    labelled: dict[tuple[tuple[str, str], ...], float] = {
        (("source", source),): value for source, value in sources.items()
    }
    yield from _counter(engine, life, "prompt_tokens_by_source", text, labelled)
    labelled = {(("finished_reason", reason),): count for reason, count in counters.success.items()}
    yield from _counter(
        engine, life, "request_success", "Count of successfully processed requests.", labelled
    )
    if engine.settings.k and "no-spec-series" not in engine.settings.faults:
        yield from _speculation(engine, life)


def _speculation(engine: Engine, life: Life) -> Iterator[str]:
    counters = engine.counters
    inflated = counters.drafts if "inflated-acceptance" in engine.settings.faults else 0
    for name, text, value in (
        ("spec_decode_num_drafts", "Number of spec decoding drafts.", counters.drafts),
        ("spec_decode_num_draft_tokens", "Number of draft tokens.", counters.draft_tokens),
        ("spec_decode_num_accepted_tokens", "Number of accepted tokens.", counters.accepted + inflated),
    ):
        yield from _counter(engine, life, name, text, {(): value})
    by_position: dict[tuple[tuple[str, str], ...], float] = {
        (("position", str(position)),): count for position, count in enumerate(counters.per_position)
    }
    text = "Accepted tokens per draft position."
    yield from _counter(engine, life, "spec_decode_num_accepted_tokens_per_pos", text, by_position)


def _histograms(engine: Engine, life: Life) -> Iterator[str]:
    for name, histogram in engine.counters.histograms.items():
        yield from _histogram(engine, life, name, histogram)


def _histogram(engine: Engine, life: Life, name: str, histogram: Histogram) -> Iterator[str]:
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
    yield f"vllm:{name}_created{labels} {_number(life.started_s)}"


def _cache_config(engine: Engine) -> Iterator[str]:
    settings = engine.settings
    tokens = engine.pool.blocks * BLOCK
    labels = {
        "block_size": str(BLOCK),
        "cache_dtype": share_out(settings).kv_dtype,
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
