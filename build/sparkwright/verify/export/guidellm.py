"""A run in the form of guidellm's report (``benchmarks.json``): a benchmark for each cell."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from sparkwright.base.digests import to_json
from sparkwright.base.text import clean
from sparkwright.verify.export.definitions import GUIDELLM, told
from sparkwright.verify.export.distribution import concurrency_distribution, distribution, rate_distribution
from sparkwright.verify.export.timed import failed_of, timed_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sparkwright.engine.cell import Load
    from sparkwright.engine.observations import Observation, Sample
    from sparkwright.verify.export.distribution import Weighted
    from sparkwright.verify.export.timed import TimedRequest
    from sparkwright.verify.run import Run

FORM = "0.8.1"
"""Release of guidellm whose form this is; the report's version is its 2."""
_VERSION = 2
_NO_ADDRESS = "http://127.0.0.1:0"
_DELAYS = (
    "queued_time",
    "resolve_start_delay",
    "resolve_targeted_start_delay",
    "request_start_delay",
    "request_targeted_start_delay",
    "resolve_end_delay",
    "finalized_delay",
    "processed_delay",
)
_TEXTS = ("tokens", "words", "characters")
_MEDIA = {
    "image": ("tokens", "images", "pixels", "bytes"),
    "video": ("tokens", "frames", "seconds", "bytes"),
    "audio": ("tokens", "samples", "seconds", "bytes"),
    "tool_call": ("tokens", "mixed_tokens", "count"),
}


def render_guidellm(run: Run, observations: Sequence[Observation]) -> bytes:
    """Return the report on *observations* of *run* as JSON.

    Times of day are those of the run's start plus the client's monotonic time since its first cell.
    """
    measured = [seen for seen in observations if timed_requests(seen, run.speed)]
    origin = min((seen.counted[0].started for seen in measured), default=0)
    began = _moment(str(run.manifest.get("started", "")))
    streams = [max(seen.cell.load.concurrency, 1) for seen in measured]
    return (
        to_json(
            {
                "metadata": {"version": _VERSION, "guidellm_version": FORM},
                "config": {
                    "metadata": {"labels": {"source": "sparkwright verify", **_labels(run)}},
                    "spec": {
                        "backend": {
                            "kind": "openai_http",
                            "target": str(run.manifest.get("url") or _NO_ADDRESS),
                        },
                        "profile": {"kind": "concurrent", "streams": streams or [1]},
                        "data": [{"kind": "synthetic_text", "prompt_tokens": 1}],
                    },
                },
                "benchmarks": [
                    _benchmark(run, seen, number, began - origin / 1e9)
                    for number, seen in enumerate(measured)
                ],
            }
        )
        + b"\n"
    )


def _labels(run: Run) -> dict[str, str]:
    """Return the definitions of all metrics, and what the required settings above do not mean."""
    return {
        "run": clean(str(run.manifest.get("title", ""))),
        "note": "spec names no data of this run: its requests are those of each benchmark",
        **{f"definition {name}": text for name, text in told(GUIDELLM).items()},
    }


def _moment(stamp: str) -> float:
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return 0.0


def _benchmark(run: Run, seen: Observation, number: int, epoch: float) -> dict[str, Any]:
    """Return the benchmark of one cell.

    Args:
        run: the run.
        seen: the cell's observation.
        number: of the cell.
        epoch: seconds of the day's clock at the origin of the client's monotonic one.
    """
    requests = timed_requests(seen, run.speed)
    begin = epoch + requests[0].sample.started / 1e9
    end = begin + max(request.end for request in requests)
    failed = failed_of(seen)
    totals = _statuses(len(requests), len(failed))
    cell = seen.cell
    return {
        "type_": "generative_benchmark",
        "config": {
            "id_": cell.key,
            "run_id": clean(str(run.manifest.get("title", ""))) or "run",
            "run_index": number,
            "strategy": _strategy(cell.load),
            "constraints": {},
            "profile": {"check": cell.check, "cell": cell.name, "server": f"{cell.arm}-{cell.boot}"},
            "requests": {"requests": cell.load.requests, "max_tokens": cell.load.max_tokens},
            "backend": {},
            "environment": {},
        },
        "scheduler_state": {
            "start_time": begin,
            "end_time": end,
            "processed_requests": len(requests) + len(failed),
            "successful_requests": len(requests),
            "errored_requests": len(failed),
        },
        "scheduler_metrics": _scheduler(requests, begin, end, totals),
        "metrics": _metrics(requests, totals),
        "requests": {
            "successful": [_request(request, begin) for request in requests],
            "errored": [_failure(sample, epoch) for sample in failed],
            "incomplete": [],
        },
    }


def _strategy(load: Load) -> dict[str, Any]:
    if load.shape == "open":
        return {"type_": "poisson", "rate": load.rate}
    return {"type_": "concurrent", "streams": max(load.concurrency, 1)}


def _scheduler(
    requests: Sequence[TimedRequest], begin: float, end: float, totals: dict[str, int]
) -> dict[str, Any]:
    """Return times of the benchmark; there is no scheduler beside the client, so its delays are 0."""
    mean = sum(request.end - request.start for request in requests) / len(requests)
    return {
        "start_time": begin,
        "request_start_time": begin,
        "measure_start_time": begin,
        "measure_end_time": end,
        "request_end_time": end,
        "end_time": end,
        "requests_made": totals,
        **{f"{name}_avg": 0.0 for name in _DELAYS},
        "request_time_avg": mean,
        "resolve_time_avg": mean,
    }


def _statuses(successful: int, errored: int) -> dict[str, int]:
    total = successful + errored
    return {"successful": successful, "errored": errored, "incomplete": 0, "total": total}


# Metrics ------------------------------------------------------------------------------------------------


def _metrics(requests: Sequence[TimedRequest], totals: dict[str, int]) -> dict[str, Any]:
    end = max(request.end for request in requests)
    outputs = [event for request in requests for event in _outputs(request)]
    prompts = [(request.first, float(request.sample.prompt_tokens)) for request in requests]
    rates = {
        "requests_per_second": [(request.end, 1.0) for request in requests],
        "prompt_tokens_per_second": prompts,
        "output_tokens_per_second": outputs,
        "tokens_per_second": [*prompts, *outputs],
    }
    spans = [(request.start, request.end) for request in requests]
    found = {
        **{name: rate_distribution(events, 0.0, end) for name, events in rates.items()},
        "request_concurrency": concurrency_distribution(spans, end),
        **{name: distribution(values) for name, values in _values(requests).items()},
    }
    nothing = distribution([])
    return {
        "request_totals": totals,
        **{name: _by_status(one, nothing) for name, one in found.items()},
        "time_to_last_round_trip_ms": _by_status(nothing, nothing),
        "avg_round_trip_time_ms": _by_status(nothing, nothing),
        "text": dict.fromkeys(_TEXTS),
        **{medium: dict.fromkeys(names) for medium, names in _MEDIA.items()},
    }


def _by_status(successful: dict[str, Any], nothing: dict[str, Any]) -> dict[str, Any]:
    """Return a distribution by status: failed requests have no figures, so the total is the others'."""
    return {"successful": successful, "errored": nothing, "incomplete": nothing, "total": successful}


def _values(requests: Sequence[TimedRequest]) -> dict[str, list[Weighted]]:
    def each(value: Callable[[TimedRequest], float]) -> list[Weighted]:
        return [(value(request), 1.0) for request in requests]

    return {
        "request_latency": each(lambda one: one.end - one.start),
        "time_to_first_token_ms": each(lambda one: 1e3 * (one.first - one.start)),
        "time_to_first_output_token_ms": each(lambda one: 1e3 * (one.content - one.start)),
        "time_per_output_token_ms": [
            (1e3 * (one.last - one.start) / count, float(count))
            for one in requests
            if (count := one.sample.output_tokens)
        ],
        "inter_token_latency_ms": [
            (1e3 * value, one.sample.output_tokens - 1.0)
            for one in requests
            if (value := one.inter_token) is not None
        ],
        "prompt_token_count": each(lambda one: float(one.sample.prompt_tokens)),
        "output_token_count": each(lambda one: float(one.sample.output_tokens)),
        "total_token_count": each(lambda one: float(one.sample.prompt_tokens + one.sample.output_tokens)),
        "request_streaming_iterations_count": each(lambda one: float(len(one.chunks))),
        "output_tokens_per_iteration": each(lambda one: one.sample.output_tokens / len(one.chunks)),
        "iter_tokens_per_iteration": [
            ((one.sample.output_tokens - 1) / (len(one.chunks) - 1), 1.0)
            for one in requests
            if len(one.chunks) > 1
        ],
    }


def _outputs(request: TimedRequest) -> Iterable[Weighted]:
    """Return the tokens of a request by the time at which they came; evenly where chunks have no counts."""
    chunks = request.sample.chunks
    counted = sum(chunk.tokens for chunk in chunks) == request.sample.output_tokens
    even = request.sample.output_tokens / len(chunks)
    return [
        (at, float(chunk.tokens) if counted else even)
        for at, chunk in zip(request.chunks, chunks, strict=True)
    ]


# Requests -----------------------------------------------------------------------------------------------


def _request(request: TimedRequest, begin: float) -> dict[str, Any]:
    sample = request.sample
    return {
        "type_": "generative_request_stats",
        "request_id": sample.request or sample.prompt,
        "info": {
            "request_id": sample.request or sample.prompt,
            "status": "completed",
            "timings": {
                "request_start": begin + request.start,
                "first_token_iteration": begin + request.first,
                "first_output_token_iteration": begin + request.content,
                "last_token_iteration": begin + request.last,
                "token_iterations": len(request.chunks),
                "request_iterations": len(request.chunks),
                "request_end": begin + request.end,
                "resolve_end": begin + request.end,
            },
        },
        "input_metrics": {"text_tokens": sample.prompt_tokens},
        "output_metrics": {"text_tokens": sample.output_tokens},
    }


def _failure(sample: Sample, epoch: float) -> dict[str, Any]:
    told_of = f"{sample.failure.kind}: {sample.failure.detail}" if sample.failure else ""
    return {
        "type_": "generative_request_stats",
        "request_id": sample.request or sample.prompt,
        "info": {
            "request_id": sample.request or sample.prompt,
            "status": "errored",
            "error": clean(told_of),
            "timings": {
                "request_start": epoch + sample.started / 1e9,
                "request_end": epoch + sample.ended / 1e9,
                "resolve_end": epoch + sample.ended / 1e9,
            },
        },
        "input_metrics": {},
        "output_metrics": {},
    }
