"""vLLM's series in an exposition, as a `MetricsSnapshot`.

Names and meanings are those of ``vllm/v1/metrics/loggers.py`` and ``vllm/v1/spec_decode/metrics.py``, which
are the same in 0.24 and 0.33. Python's front end sends text 0.0.4, the Rust one OpenMetrics; a counter is
found with ``_total`` and without, and never by the beginning of its name.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from sparkwright.base.errors import EndpointError
from sparkwright.engine.metrics.exposition import MetricSample, parse_exposition
from sparkwright.engine.observations import MetricsSnapshot

COUNTERS: Mapping[str, str] = MappingProxyType(
    {
        "drafts": "vllm:spec_decode_num_drafts",
        "draft_tokens": "vllm:spec_decode_num_draft_tokens",
        "accepted": "vllm:spec_decode_num_accepted_tokens",
        "generation_tokens": "vllm:generation_tokens",
        "prompt_tokens": "vllm:prompt_tokens",
        "requests": "vllm:request_success",
        "prefix_queries": "vllm:prefix_cache_queries",
        "prefix_hits": "vllm:prefix_cache_hits",
        "preemptions": "vllm:num_preemptions",
    }
)
"""Fields of `MetricsSnapshot` that only ever grow, and the names under which vLLM registers them."""

_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USAGE = "vllm:kv_cache_usage_perc"
_CACHE = "vllm:cache_config_info"
_START = "process_start_time_seconds"
_REGISTERED = {*COUNTERS.values(), _PER_POSITION}
_EXPOSED = {
    **{name: name for name in (*_REGISTERED, _RUNNING, _WAITING, _KV_USAGE, _CACHE, _START)},
    **{f"{name}_total": name for name in _REGISTERED},
}


def parse_snapshot(text: str, at: int, where: str = "/metrics") -> MetricsSnapshot:
    """Return the snapshot in an exposition, summed over the server's engines.

    The share of the KV cache in use is the mean over engines, whose caches are of one size; ``start_s`` is
    the latest start of a process; ``cache`` is the first engine's. Absent values are -1 or empty.

    Args:
        text: body of ``/metrics``.
        at: time at which it was read, ns of ``perf_counter``.
        where: the address that it was read from, for errors.

    Raises:
        EndpointError: a line is not Prometheus text, or a required series is repeated, or its value is
            negative, infinite or not a number. The message names the line.
    """
    try:
        return _snapshot(_series(parse_exposition(text, _EXPOSED.__contains__)), at)
    except ValueError as error:
        raise EndpointError(
            f"{where} does not hold vLLM's metrics",
            because=str(error),
            next_step="see what stands there: a proxy, or another program, may have written it",
        ) from error


def _snapshot(series: Mapping[str, Sequence[MetricSample]], at: int) -> MetricsSnapshot:
    return MetricsSnapshot(
        at=at,
        **{field: _sum(series[name]) for field, name in COUNTERS.items()},
        accepted_per_position=_by_position(series[_PER_POSITION]),
        running=_sum(series[_RUNNING]),
        waiting=_sum(series[_WAITING]),
        kv_usage=_mean(series[_KV_USAGE]),
        start_s=max((point.value for point in series[_START]), default=-1),
        cache=_cache(series[_CACHE]),
    )


def _series(points: Iterable[MetricSample]) -> defaultdict[str, list[MetricSample]]:
    """Return points by registered name, ``_total`` being preferred where both are exposed."""
    exposed: defaultdict[str, list[MetricSample]] = defaultdict(list)
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for point in points:
        key = (point.name, frozenset(point.labels.items()))
        if key in seen:
            raise ValueError(f"line {point.line} of the metrics repeats a series: {point.name}")
        if not math.isfinite(point.value) or point.value < 0:
            raise ValueError(f"line {point.line} of the metrics: {point.name} is {point.value}")
        seen.add(key)
        exposed[point.name].append(point)
    registered = defaultdict(list, {_EXPOSED[name]: points for name, points in exposed.items()})
    registered.update({_EXPOSED[name]: points for name, points in exposed.items() if name.endswith("_total")})
    return registered


def _sum(points: Sequence[MetricSample]) -> float:
    return math.fsum(point.value for point in points) if points else -1.0


def _mean(points: Sequence[MetricSample]) -> float:
    return _sum(points) / len(points) if points else -1.0


def _by_position(points: Sequence[MetricSample]) -> tuple[float, ...]:
    """Return sums over engines, from position 0 up.

    Raises:
        ValueError: a position is missing, or no number.
    """
    sums: defaultdict[int, float] = defaultdict(float)
    for point in points:
        position = point.labels.get("position", "")
        if not position.isdecimal():
            raise ValueError(f"line {point.line} of the metrics: position is {position!r}")
        sums[int(position)] += point.value
    if sorted(sums) != list(range(len(sums))):
        raise ValueError(f"the metrics name positions {sorted(sums)} of drafts, with gaps")
    return tuple(sums[position] for position in range(len(sums)))


def _cache(points: Sequence[MetricSample]) -> dict[str, str]:
    """Return the labels of the engine with the lowest number."""
    if not points:
        return {}
    first = min(points, key=lambda point: int(point.labels.get("engine") or 0))
    return dict(first.labels)
