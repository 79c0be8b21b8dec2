"""Which charts a report shows: each module makes those of one check, from figures to drawings and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkwright.verify.report.charts.boot import boot_charts
from sparkwright.verify.report.charts.chart import Chart
from sparkwright.verify.report.charts.compare import compare_charts
from sparkwright.verify.report.charts.context import context_charts
from sparkwright.verify.report.charts.crash import crash_charts
from sparkwright.verify.report.charts.soak import soak_charts
from sparkwright.verify.report.charts.sweep import sweep_charts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.verify.report.figures import CellFigures
    from sparkwright.verify.run import Run

__all__ = ["Chart", "all_charts"]


def all_charts(run: Run, found: Sequence[CellFigures]) -> tuple[Chart, ...]:
    """Every chart for which *run* has figures."""
    makers = (sweep_charts, soak_charts, context_charts, crash_charts, compare_charts, boot_charts)
    return tuple(chart for make in makers for chart in make(run, found))
