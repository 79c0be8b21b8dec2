"""Tests of differences, and the quantiles that they require."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

SHUFFLES = 10_000


def one_sided_excess(null: Sequence[float], observed: Sequence[float], seed: int = 0) -> float:
    """Return the probability of values as large as *observed* if they have the distribution of *null*.

    Wilcoxon's rank-sum test against "larger", by 10 000 permutations, so that ties need no care. Give one
    value for each prompt, 0 where there is nothing: then rate and size of what is not 0 count together.

    False alarms, counted over 400 seeds with 10 to 96 values a side: 2.8 to 4.5 % at p < 0.05, 0.3 to 0.8 %
    at p < 0.01.

    Args:
        null: values that are known to be in order, shape (n,).
        observed: values to judge, shape (m,).
        seed: seed of the permutations.

    Returns:
        The p-value, at least 1/10001.

    Raises:
        ValueError: either is empty or not finite.
    """
    import numpy as np
    from scipy.stats import rankdata

    from sparkwright.verify.statistics.describe import finite

    ranks = rankdata(np.concatenate([finite(null), finite(observed)]))
    sum_of_ranks = ranks[len(null) :].sum()
    shuffled = np.random.default_rng(seed).permuted(np.tile(ranks, (SHUFFLES, 1)), axis=1)
    as_large = (shuffled[:, len(null) :].sum(axis=1) >= sum_of_ranks - 1e-9).sum()
    return float((1 + as_large) / (1 + SHUFFLES))


def mcnemar(b: int, c: int) -> float:
    """Return the two-sided p-value of McNemar's exact test: *b* pairs changed one way, *c* the other.

    Under the null a pair that changed did so either way with probability 1/2 (McNemar 1947; the exact form
    is a sign test).

    Raises:
        ValueError: a count is negative.
    """
    if min(b, c) < 0:
        raise ValueError(f"counts of pairs are {b} and {c}")
    from scipy.stats import binomtest

    return float(binomtest(b, b + c).pvalue) if b + c else 1.0


@lru_cache(maxsize=4096)  # a search asks for the same ones again and again
def share_interval(count: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Return the confidence interval of a share, *count* of *total* (Wilson 1927).

    Raises:
        ValueError: there are more than all, or none at all.
    """
    if not 0 <= count <= total or total < 1:
        raise ValueError(f"{count} of {total} is no share")
    from scipy.stats import binomtest

    interval = binomtest(count, total).proportion_ci(confidence_level=level, method="wilson")
    return float(interval.low), float(interval.high)
