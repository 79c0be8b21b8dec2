"""The server's counters, and ``/metrics``: Prometheus' text format, with vLLM's names and labels.

Of vLLM's series there are those that clients read, and those that are easily taken for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparkwright.verify.simulator.engine import Engine
from sparkwright.verify.simulator.settings import BLOCK, plan_memory


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
        ("kv_cache_usage_perc", engine.pool.usage),
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
        "num_preemptions": counters.preemptions,
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
    yield "# TYPE vllm:cache_config_info gauge"
    yield f"vllm:cache_config_info{_labels(labels)} 1.0"
