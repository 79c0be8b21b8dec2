"""The charts of a report, by check, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sparkwright.verify.report.charts.chart import Chart
from sparkwright.verify.report.charts.over_time import machine_charts, soak_charts
from sparkwright.verify.report.charts.servers import boot_charts, compare_charts, crash_charts
from sparkwright.verify.report.charts.under_load import capacity_charts, context_charts, sweep_charts
from sparkwright.verify.run import Run

__all__ = ["Chart", "charts_by_check"]

_MAKERS: dict[str, Callable[[Run], Iterator[Chart]]] = {
    "capacity": capacity_charts,
    "sweep": sweep_charts,
    "soak": soak_charts,
    "context": context_charts,
    "crash": crash_charts,
    "compare": compare_charts,
    "boot": boot_charts,
    "machine": machine_charts,
}


def charts_by_check(run: Run) -> list[tuple[str, Chart]]:
    """Return each chart for which *run* has figures with the name of its check."""
    return [(check, chart) for check, make in _MAKERS.items() for chart in make(run)]
