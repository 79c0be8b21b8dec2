"""Statistics of measurements: pure functions, deterministic for a seed.

Read `describe` first: figures of one set of values, and the steady part of a run. `inference` has
tests, and finds drifts and jumps over time.
Distributions, ranks and slopes are scipy's.
Every function refuses empty input and NaN with `ValueError` instead of returning NaN, which no comparison
with a limit would catch. Times are the client's: divide a rate of a server whose clock runs *speed* times as
fast by *speed*.
"""

from sparkwright.verify.statistics.describe import (
    Summary,
    Window,
    percentile,
    ratio_interval,
    steady_window,
    summary,
    t_quantile,
    whole_run,
)
from sparkwright.verify.statistics.inference import (
    Slope,
    mcnemar,
    one_sided_excess,
    share_interval,
    theil_sen,
)

__all__ = [
    "Slope",
    "Summary",
    "Window",
    "mcnemar",
    "one_sided_excess",
    "percentile",
    "ratio_interval",
    "share_interval",
    "steady_window",
    "summary",
    "t_quantile",
    "theil_sen",
    "whole_run",
]
