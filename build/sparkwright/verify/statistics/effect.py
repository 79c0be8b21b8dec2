"""The ratio of two arms, over boots, waves and requests.

A boot is the unit of replication: kernels are selected at each start, and the same server may be 15 %
faster or slower until it is restarted. Requests of one boot say little about another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from sparkwright.verify.statistics.describe import finite, t_quantile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arm = Sequence[Sequence[Sequence[float]]]
    PairedArm = Sequence[Sequence[Mapping[str, float]]]
    Boots = Sequence[Sequence[NDArray[np.float64]]]

RESAMPLES = 2000
POWER = 0.8
LEAST_BOOTS = 2


@dataclass(frozen=True)
class Effect:
    """The ratio of arm b to arm a.

    Attributes:
        ratio: b over a, geometric means; above 1 where b's values are larger.
        low: lower end of the 95 % interval.
        high: upper end of the 95 % interval.
        minimum_detectable: the relative difference, 0.05 for 5 %, that would be detected in about four
            runs of five at this noise and number of boots (counted: 70 to 87 %).
    """

    ratio: float
    low: float
    high: float
    minimum_detectable: float


def hierarchical_bootstrap_log_ratio(arm_a: Arm, arm_b: Arm, seed: int, level: float = 0.95) -> Effect:
    """Return the ratio of b to a, with an interval from resampling boots, their waves, and their requests.

    Resampling counts the variance within a boot twice, and that between a few boots with (n-1)/n of its
    size. So the deviations are scaled to the variance of the mean over boots, or to that within boots
    where it is larger, and are widened as Student's t is against the normal distribution (degrees of
    freedom after Welch).

    Counted over 400 seeds: 95 % intervals hold the truth in 96.5 % of cases with three boots an arm that lie
    5 % apart, 94 % with four, 97 % with six, and in up to 100 % where boots do not differ. With three boots
    5 % apart a difference of 17 % can be detected, with six one of 10 %.

    With one boot in an arm the variance between boots is unknown: the interval is 0 to infinity.

    Args:
        arm_a: positive values, such as tokens a second, by boot, wave and request; waves may differ in size.
        arm_b: likewise.
        seed: seed of the 2000 resamples.
        level: level of the interval.

    Raises:
        ValueError: an arm, boot or wave is empty, or a value is not positive.
    """
    import numpy as np

    a, b = _logarithms(arm_a), _logarithms(arm_b)
    ratio = math.exp(_means(b).mean() - _means(a).mean())
    if min(len(a), len(b)) < LEAST_BOOTS:
        return Effect(ratio, 0.0, math.inf, math.inf)
    random = np.random.default_rng(seed)
    of_a, of_b = _deviations(a, random), _deviations(b, random)
    degrees = _welch(float(of_a.var()), len(a), float(of_b.var()), len(b))
    tail = (1 - level) / 2
    t = t_quantile(1 - tail, degrees)
    widened = (of_b - of_a) * t / NormalDist().inv_cdf(1 - tail)
    low, high = np.exp(np.percentile(widened, (100 * tail, 100 * (1 - tail)))) * ratio
    detectable = math.expm1((t + t_quantile(POWER, degrees)) * float((of_b - of_a).std()))
    return Effect(ratio, float(low), float(high), detectable)


def paired_log_ratio(arm_a: PairedArm, arm_b: PairedArm, seed: int, level: float = 0.95) -> Effect:
    """Return the ratio of b to a as `hierarchical_bootstrap_log_ratio` does, for items that both arms have.

    Each value counts over its item's geometric mean over both arms, so that items such as prompts cancel out.

    Args:
        arm_a: positive values by boot, wave and item.
        arm_b: likewise.
        seed: seed of the resamples.
        level: level of the interval.
    """
    logs: dict[str, list[float]] = {}
    for wave in (wave for arm in (arm_a, arm_b) for boot in arm for wave in boot):
        for item, value in wave.items():
            logs.setdefault(item, []).append(math.log(value))
    usual = {item: math.exp(math.fsum(values) / len(values)) for item, values in logs.items()}
    a, b = (
        [[[value / usual[item] for item, value in wave.items()] for wave in boot] for boot in arm]
        for arm in (arm_a, arm_b)
    )
    return hierarchical_bootstrap_log_ratio(a, b, seed, level)


def _logarithms(arm: Arm) -> Boots:
    import numpy as np

    boots = [[np.log(_positive(wave)) for wave in boot] for boot in arm]
    if not boots or not all(boots):
        raise ValueError("an arm has no boot, or a boot no wave")
    return boots


def _positive(wave: Sequence[float]) -> NDArray[np.float64]:
    values = finite(wave)
    if not (values > 0).all():
        raise ValueError("a value is not positive")
    return values


def _means(boots: Boots) -> NDArray[np.float64]:
    """Return for each boot the mean over waves of the mean over requests, shape (boots,)."""
    import numpy as np

    return np.array([math.fsum(float(wave.mean()) for wave in boot) / len(boot) for boot in boots])


def _deviations(boots: Boots, random: np.random.Generator) -> NDArray[np.float64]:
    """Return deviations of resampled means from their mean, scaled to the mean's variance; shape (2000,)."""
    import numpy as np

    means, resampled = _means(boots), _resampled(boots, random)
    deviations = resampled - resampled.mean()
    variance = float(deviations.var())
    between = float(means.var(ddof=1)) / len(boots)
    within = variance - float(means.var()) / len(boots)
    scale = math.sqrt(max(between, within) / variance) if variance > 0 else 1.0
    return np.asarray(deviations * scale)


def _resampled(boots: Boots, random: np.random.Generator) -> NDArray[np.float64]:
    """Return the means of 2000 resamples, shape (2000,)."""
    import numpy as np

    waves = np.array([len(boot) for boot in boots])
    sizes = np.ones((len(boots), waves.max()), dtype=np.int64)
    table = np.zeros((len(boots), waves.max(), max(wave.size for boot in boots for wave in boot)))
    for i, boot in enumerate(boots):
        for j, wave in enumerate(boot):
            sizes[i, j] = wave.size
            table[i, j, : wave.size] = wave
    boot_of = random.integers(len(boots), size=(RESAMPLES, len(boots), 1))
    of_waves = waves[boot_of]
    wave_of = (random.random((RESAMPLES, len(boots), table.shape[1])) * of_waves).astype(np.int64)
    of_requests = sizes[boot_of, wave_of][..., None]
    request_of = (random.random((*wave_of.shape, table.shape[2])) * of_requests).astype(np.int64)
    drawn = table[boot_of[..., None], wave_of[..., None], request_of]
    by_wave = _mean_of_first(drawn, of_requests)
    return np.asarray(_mean_of_first(by_wave, of_waves).mean(axis=-1))


def _mean_of_first(values: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return means over the first *counts* values (last axis 1) of the last axis."""
    import numpy as np

    inside = np.arange(values.shape[-1]) < counts
    return np.asarray(np.where(inside, values, 0).sum(axis=-1) / counts[..., 0])


def _welch(variance_a: float, n_a: int, variance_b: float, n_b: int) -> float:
    """Return the degrees of freedom of a difference of means (Welch 1947), from their variances."""
    both = variance_a + variance_b
    if both <= 0:
        return n_a + n_b - 2
    degrees = both**2 / (variance_a**2 / (n_a - 1) + variance_b**2 / (n_b - 1))
    return max(1.0, degrees)  # it is never less but by rounding
