"""The figures of every cell as a table, for spreadsheets and scripts."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from statistics import fmean

from sparkwright.base.text import clean
from sparkwright.verify.checks.machine import disturbances
from sparkwright.verify.report.figures import CellFigures, cells
from sparkwright.verify.run import Run
from sparkwright.verify.statistics import percentile

_FORMULAE = ("=", "+", "-", "@", "\t", "\r")


def render_csv(run: Run) -> str:
    """Return one row for each cell of *run* as CSV (RFC 4180), with a header; empty where unknown.

    Times are milliseconds and rates tokens a second of the server's clock, memory is MiB, power W, clock MHz,
    temperature °C. Columns are only ever added, at the end.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\r\n")
    writer.writeheader()
    for found in cells(run):
        writer.writerow({name: _written(value(found)) for name, value in _COLUMNS.items()})
    return text.getvalue()


def _written(value: float | str | None) -> str | float:
    """Return *value* for a field: no NaN, and nothing that a spreadsheet takes for a formula."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, str):
        shown = clean(value)
        return f"'{shown}" if shown.startswith(_FORMULAE) else shown
    return round(value, 4)


def _prompt_tokens(found: CellFigures) -> float:
    counted = found.observation.counted
    return sum(sample.prompt_tokens for sample in counted) / len(counted) if counted else math.nan


def _host(
    name: str, summarise: Callable[[Sequence[float]], float]
) -> Callable[[CellFigures], float | str | None]:
    """Return the column of a quantity of the machine, over the samples that have it."""

    def value(found: CellFigures) -> float | None:
        known = [value for sample in found.observation.host if (value := getattr(sample, name)) >= 0]
        return summarise(known) if known else None

    return value


def _late(found: CellFigures) -> float | None:
    """Return the 95th percentile of the client's lateness in an open loop, by its own clock."""
    late = [sample.late / 1e6 for sample in found.observation.samples if sample.due]
    return percentile(late, 95) if late else None


_COLUMNS: dict[str, Callable[[CellFigures], float | str | None]] = {
    "check": lambda found: found.observation.cell.check,
    "cell": lambda found: found.observation.cell.name,
    "server": lambda found: found.observation.cell.arm,
    "start": lambda found: found.observation.cell.boot,
    "category": lambda found: found.category,
    "concurrency": lambda found: found.concurrency,
    "requests": lambda found: found.requests,
    "failed": lambda found: len(found.observation.failed),
    "seconds": lambda found: found.observation.seconds,
    "prompt_tokens_mean": _prompt_tokens,
    "output_tokens": lambda found: sum(one.output_tokens for one in found.observation.counted),
    "throughput_tok_s": lambda found: found.whole_tok_s,
    "throughput_steady_tok_s": lambda found: found.steady_tok_s,
    "decode_tok_s": lambda found: found.decode_tok_s,
    "ttft_p50_ms": lambda found: found.ttft_ms.p50,
    "ttft_p95_ms": lambda found: found.ttft_ms.p95,
    "ttft_p99_ms": lambda found: found.ttft_ms.p99,
    "tpot_p50_ms": lambda found: found.tpot_ms.p50,
    "tpot_p95_ms": lambda found: found.tpot_ms.p95,
    "tpot_p99_ms": lambda found: found.tpot_ms.p99,
    "mean_acceptance_length": lambda found: found.mal,
    "acceptance_rate": lambda found: found.acceptance.rate if found.acceptance else None,
    "step_ms": lambda found: found.step_ms,
    "prefix_cache_hit_rate": lambda found: found.hit_rate,
    "memory_available_min_mib": _host("memory_available_mib", min),
    "server_rss_max_mib": _host("server_rss_mib", max),
    "gpu_clock_min_mhz": _host("gpu_clock_mhz", min),
    "gpu_clock_mean_mhz": _host("gpu_clock_mhz", fmean),
    "gpu_power_mean_w": _host("gpu_power_w", fmean),
    "gpu_temperature_max_c": _host("gpu_temperature_c", max),
    "swap_used_max_mib": _host("swap_used_mib", max),
    "memory_pressure_max_percent": _host("memory_pressure", max),
    "disturbance": lambda found: "; ".join(disturbances(found.observation)),
    "trouble": lambda found: "; ".join(found.trouble),
    "rate_req_s": lambda found: found.observation.cell.load.rate or None,
    "client_late_p95_ms": _late,
    "gpu_utilization_mean_percent": _host("gpu_utilization", fmean),
    "energy_per_token_j": lambda found: found.energy_j,
}
