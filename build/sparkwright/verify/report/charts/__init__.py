"""Charts of a report, by check.

The charts of a check are in a module of its name, as ``charts(run)``; ``ORDER`` places them on the page.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from sparkwright.verify.report.charts.chart import Chart
from sparkwright.verify.run import Run

__all__ = ["Chart", "charts_by_check"]


def charts_by_check(run: Run) -> list[tuple[str, Chart]]:
    """Return each chart for which *run* has figures with the name of its check, in the order of the page."""
    modules = {module.name: import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)}
    makers = [(name, module) for name, module in modules.items() if hasattr(module, "charts")]
    makers.sort(key=lambda one: one[1].ORDER)
    return [(name, chart) for name, module in makers for chart in module.charts(run)]
