"""Statistics of measurements: pure functions, deterministic for a seed.

Read `describe` first: figures of one set of values. `window` finds the steady part of a run,
`trend` finds drifts and jumps over time, `effect` compares two arms over boots, and `significance` tests.
Distributions, ranks and slopes are scipy's.
Every function refuses empty input and NaN with `ValueError` instead of returning NaN, which no comparison
with a limit would catch. Times are the client's: divide a rate of a server whose clock runs *speed* times as
fast by *speed*.
"""

from sparkwright.verify.statistics.describe import Summary, percentile, ratio_interval, summary, t_quantile
from sparkwright.verify.statistics.effect import Effect, hierarchical_bootstrap_log_ratio, paired_log_ratio
from sparkwright.verify.statistics.significance import mcnemar, one_sided_excess, share_interval
from sparkwright.verify.statistics.trend import ChangePoint, Slope, change_point, theil_sen
from sparkwright.verify.statistics.window import Window, steady_window, whole_run

__all__ = [
    "ChangePoint",
    "Effect",
    "Slope",
    "Summary",
    "Window",
    "change_point",
    "hierarchical_bootstrap_log_ratio",
    "mcnemar",
    "one_sided_excess",
    "paired_log_ratio",
    "percentile",
    "ratio_interval",
    "share_interval",
    "steady_window",
    "summary",
    "t_quantile",
    "theil_sen",
    "whole_run",
]
