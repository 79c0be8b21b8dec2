"""Distributions by guidellm's definitions: weighted values, rates and concurrency over time."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHARES = {
    "p001": 0.001,
    "p01": 0.01,
    "p05": 0.05,
    "p10": 0.1,
    "p25": 0.25,
    "p50": 0.5,
    "p75": 0.75,
    "p90": 0.9,
    "p95": 0.95,
    "p99": 0.99,
    "p999": 0.999,
}
_NEAR_S = 1e-4  # events so near to each other are one
_LEAST_S = 1e-6  # that the last event's rate is taken over

Weighted = tuple[float, float]
"""A value and its weight, or a time and what happened then."""


def distribution(values: Sequence[Weighted], count: int | None = None) -> dict[str, Any]:
    """Return the summary of weighted *values*: zeros if there are none.

    Args:
        values: with their weights; those of weight 0 do not count unless all have it.
        count: number of observations; the rounded sum of the weights by default.
    """
    if count is None:
        count = round(math.fsum(weight for _, weight in values))
    positive = [one for one in values if one[1] > 0] or [(value, 1.0) for value, _ in values]
    ordered = _joined(sorted(positive))
    total = math.fsum(weight for _, weight in ordered)
    shares = [(value, weight / total) for value, weight in ordered]
    if not shares:
        shares = [(0.0, 1.0)]
    mean = math.fsum(value * share for value, share in shares)
    variance = math.fsum((value - mean) ** 2 * share for value, share in shares)
    percentiles = {name: _quantile(shares, share) for name, share in _SHARES.items()}
    return {
        "mean": mean,
        "median": percentiles["p50"],
        "mode": max(shares, key=lambda one: one[1])[0],
        "variance": variance,
        "std_dev": math.sqrt(variance),
        "min": shares[0][0],
        "max": shares[-1][0],
        "count": count,
        "total_sum": mean * count,
        "percentiles": percentiles,
    }


def _joined(ordered: Sequence[Weighted]) -> list[Weighted]:
    """Return *ordered* values with the weights of equal ones added up."""
    joined: list[Weighted] = []
    for value, weight in ordered:
        if joined and joined[-1][0] == value:
            joined[-1] = (value, joined[-1][1] + weight)
        else:
            joined.append((value, weight))
    return joined


def _quantile(shares: Sequence[Weighted], share: float) -> float:
    """Return the least value up to which at least *share* of the weight lies."""
    reached = 0.0
    for value, weight in shares:
        reached += weight
        if reached >= share:
            return value
    return shares[-1][0]


def rate_distribution(events: Sequence[Weighted], begin: float, end: float) -> dict[str, Any]:
    """Return the distribution of the rate of *events* between two times, weighted by time."""
    within = [(at, weight) for at, weight in events if begin <= at <= end]
    merged = _merged(sorted([(begin, 0.0), *within, (end, 0.0)]))
    if len(merged) < 2:  # noqa: PLR2004 - a rate needs a span
        return distribution([], len(merged))
    times = [at for at, _ in merged]
    middles = [(before + after) / 2 for before, after in pairwise(times)]
    edges = [times[0], *middles, max(times[-1], middles[-1] + _LEAST_S)]
    spans = [after - before for before, after in pairwise(edges)]
    rates = [(weight / span, span) for (_, weight), span in zip(merged, spans, strict=True)]
    return distribution(rates, round(math.fsum(weight for _, weight in merged)))


def concurrency_distribution(spans: Sequence[Weighted], end: float) -> dict[str, Any]:
    """Return the distribution of the number of *spans* (begin, end) at a time, weighted by time."""
    changes = [(begin, 1.0) for begin, _ in spans] + [(over, -1.0) for _, over in spans]
    merged = [*_merged(sorted(changes)), (end, 0.0)]
    running, levels = 0.0, []
    for (at, change), (later, _) in pairwise(merged):
        running += change
        levels.append((max(running, 0.0), max(later - at, 0.0)))
    return distribution([level for level in levels if level[1] > 0], len(spans))


def _merged(ordered: Sequence[Weighted]) -> list[Weighted]:
    """Return events of which those within `_NEAR_S` of a group's first are one, at its time."""
    merged: list[Weighted] = []
    for at, weight in ordered:
        if merged and at - merged[-1][0] <= _NEAR_S:
            merged[-1] = (merged[-1][0], merged[-1][1] + weight)
        else:
            merged.append((at, weight))
    return merged
