"""Charts of a report, by check.

The charts of a check are in a module of its name, as ``charts(run)``; ``ORDER`` places them on the page.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from sparkwright.verify.report.charts.chart import Chart

if TYPE_CHECKING:
    from sparkwright.verify.run import Run

__all__ = ["Chart", "all_charts"]


def all_charts(run: Run) -> tuple[Chart, ...]:
    """Return every chart for which *run* has figures, in the order of the page."""
    found = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    makers = sorted((module for module in found if hasattr(module, "charts")), key=lambda one: one.ORDER)
    return tuple(chart for maker in makers for chart in maker.charts(run))
