"""Cells in the form of aiperf's summary: ``profile_export_aiperf.json`` and ``.csv``."""

from __future__ import annotations

import csv
import io
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sparkwright.base.digests import to_json
from sparkwright.base.text import clean
from sparkwright.verify.export.definitions import AIPERF, told
from sparkwright.verify.export.timed import failed_of, timed_requests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.engine.observations import Observation
    from sparkwright.verify.export.timed import TimedRequest
    from sparkwright.verify.run import Run

FORM = "0.13.0"
"""Release of aiperf whose form this is; the schema is its 1.4."""
JSON, CSV = "profile_export_aiperf.json", "profile_export_aiperf.csv"
_SCHEMA = "1.4"
_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_TITLES = {
    "request_latency": "Request Latency",
    "time_to_first_token": "Time to First Token",
    "time_to_second_token": "Time to Second Token",
    "inter_token_latency": "Inter Token Latency",
    "inter_chunk_latency": "Inter Chunk Latency",
    "output_token_throughput_per_user": "Output Token Throughput Per User",
    "output_sequence_length": "Output Sequence Length",
    "input_sequence_length": "Input Sequence Length",
    "benchmark_duration": "Benchmark Duration",
    "request_count": "Request Count",
    "error_request_count": "Error Request Count",
    "request_throughput": "Request Throughput",
    "output_token_throughput": "Output Token Throughput",
    "total_token_throughput": "Total Token Throughput",
    "total_isl": "Total ISL",
    "total_osl": "Total OSL",
    "total_output_tokens": "Total Output Tokens",
}
_COLUMNS = ("avg", "min", "max", "sum", *(f"p{q}" for q in _PERCENTILES), "std")


def render_aiperf(run: Run, observation: Observation) -> dict[str, bytes]:
    """Return the summary of one cell as JSON and CSV, by the names of aiperf's own files."""
    summary = aiperf_summary(run, observation)
    return {JSON: to_json(summary) + b"\n", CSV: _csv(summary).encode()}


def aiperf_summary(run: Run, observation: Observation) -> dict[str, Any]:
    """Return the summary of one cell; fields that cannot be filled by aiperf's definition are absent."""
    requests = timed_requests(observation, run.speed)
    cell = observation.cell
    failures = Counter(sample.failure.kind.value for sample in failed_of(observation) if sample.failure)
    return {
        "schema_version": _SCHEMA,
        "aiperf_version": f"{FORM} (as written by sparkwright {run.manifest.get('sparkwright', '')})",
        "benchmark_id": cell.key,
        **_totals(requests, sum(failures.values())),
        **_distributions(requests),
        "is_complete": "interrupted" not in run.manifest,
        "was_cancelled": "interrupted" in run.manifest,
        "error_summary": [
            {"error_details": {"type": kind, "message": kind}, "count": count}
            for kind, count in failures.most_common()
        ],
        "sparkwright": {
            "run": clean(str(run.manifest.get("title", ""))),
            "check": cell.check,
            "cell": cell.name,
            "server": f"{cell.arm}-{cell.boot}",
            "shape": cell.load.shape,
            "concurrency": cell.load.concurrency,
            "definitions": told(AIPERF),
        },
    }


def _totals(requests: Sequence[TimedRequest], failed: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "request_count": _single("requests", len(requests)),
        "error_request_count": _single("requests", failed),
    }
    seconds = max((request.last for request in requests), default=0.0)
    if seconds <= 0:
        return found
    inputs = sum(request.sample.prompt_tokens for request in requests)
    outputs = sum(request.sample.output_tokens for request in requests)
    return found | {
        "benchmark_duration": _single("sec", seconds),
        "request_throughput": _single("requests/sec", len(requests) / seconds),
        "output_token_throughput": _single("tokens/sec", outputs / seconds),
        "total_token_throughput": _single("tokens/sec", (inputs + outputs) / seconds),
        "total_isl": _single("tokens", inputs),
        "total_osl": _single("tokens", outputs),
        "total_output_tokens": _single("tokens", outputs),
    }


def _distributions(requests: Sequence[TimedRequest]) -> dict[str, Any]:
    each = [one for request in requests if (one := request.inter_token) is not None]
    gaps = [later - before for request in requests for before, later in pairwise(request.chunks)]
    second = [request.chunks[1] - request.first for request in requests if len(request.chunks) > 1]
    values = {
        "request_latency": ("ms", [1e3 * (request.last - request.start) for request in requests]),
        "time_to_first_token": ("ms", [1e3 * (request.first - request.start) for request in requests]),
        "time_to_second_token": ("ms", [1e3 * value for value in second]),
        "inter_token_latency": ("ms", [1e3 * value for value in each]),
        "inter_chunk_latency": ("ms", [1e3 * value for value in gaps]),
        "output_token_throughput_per_user": ("tokens/sec/user", [1 / value for value in each if value > 0]),
        "output_sequence_length": ("tokens", [float(one.sample.output_tokens) for one in requests]),
        "input_sequence_length": ("tokens", [float(one.sample.prompt_tokens) for one in requests]),
    }
    return {name: _distribution(unit, found) for name, (unit, found) in values.items() if found}


def _single(unit: str, value: float) -> dict[str, Any]:
    return {"unit": unit, "avg": float(value)}


def _distribution(unit: str, values: Sequence[float]) -> dict[str, Any]:
    """Return mean, percentiles (linearly interpolated) and the population's standard deviation."""
    import numpy as np

    array = np.asarray(values, dtype=np.float64)
    percentiles = np.percentile(array, _PERCENTILES)
    return {
        "unit": unit,
        "avg": float(array.mean()),
        **{f"p{q}": float(value) for q, value in zip(_PERCENTILES, percentiles, strict=True)},
        "min": float(array.min()),
        "max": float(array.max()),
        "std": float(array.std()),
        "count": len(values),
        "sum": float(array.sum()),
    }


def _csv(summary: dict[str, Any]) -> str:
    """Return the metrics as aiperf's CSV: distributions first, then single values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    metrics = {name: summary[name] for name in _TITLES if name in summary}
    spread = {name: metric for name, metric in metrics.items() if "p50" in metric}
    writer.writerow(["Metric", *_COLUMNS])
    for name, metric in spread.items():
        writer.writerow([_title(name, metric), *(f"{metric[column]:.2f}" for column in _COLUMNS)])
    writer.writerow([])
    writer.writerow(["Metric", "Value"])
    for name, metric in metrics.items():
        if name not in spread:
            writer.writerow([_title(name, metric), f"{metric['avg']:.2f}"])
    return text.getvalue()


def _title(name: str, metric: dict[str, Any]) -> str:
    unit = metric["unit"]
    return f"{_TITLES[name]} ({unit})" if unit != "requests" else _TITLES[name]
