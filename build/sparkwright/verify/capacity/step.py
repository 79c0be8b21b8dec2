"""A step of the search, as its observation shows it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from sparkwright.engine.observations import Observation, Sample
from sparkwright.verify.capacity.search import Step
from sparkwright.verify.capacity.slo import Slo, times_of
from sparkwright.verify.statistics import percentile, theil_sen

FACTOR = "length"
"""Tag of a cell: times the usual length of a step."""
LATE_SHARE = 0.25
"""Lateness of the client that a step stands, as a share of the strictest limit of a wait, or of a request's
duration where only the time of a token is limited. Times count from when a request was due, so that lateness
makes them longer, never shorter."""
_SPOILT = 0.25  # of the requests that may be bad: so many may be bad for being sent late
MOMENTS = 20
"""Moments of a step at which the requests in flight are counted."""
_RISE, _LEAST_RISE = 0.25, 2.0  # of the mean requests in flight over the step, and requests


def step_of(observation: Observation, slo: Slo, speed: float) -> Step:
    """Return the step that *observation* is.

    A request that is missing or failed is not good.

    Args:
        observation: of an open loop.
        slo: the objective.
        speed: server's seconds in one of the client's.
    """
    # One of the checks, which are all imported with any of them, imports this module.
    from sparkwright.verify.checks.machine import disturbances

    load = observation.cell.load
    counted = [sample for sample in observation.samples if sample.counted]
    durations = [times_of(sample, speed)["e2e"] for sample in counted if sample.failure is None]
    known = [one for one in durations if math.isfinite(one)]
    duration = percentile(known, 50) if known else 0.0
    good = sum(slo.met_by(sample, speed) for sample in counted)
    in_time = sum(
        slo.met_by(msgspec.structs.replace(sample, due=sample.started), speed) for sample in counted
    )
    spoilt = in_time - good > _SPOILT * (1 - slo.share) * load.requests
    too_late = lateness_s(observation.samples, speed) > allowed_lateness_s(slo, duration)
    return Step(
        rate=load.rate,
        requests=load.requests,
        good=good,
        duration_s=duration,
        grows=grows(observation.samples),
        late=too_late or spoilt,
        factor=int(observation.cell.tags.get(FACTOR, "1")),
        disturbed=bool(disturbances(observation)),
    )


def lateness_s(samples: Sequence[Sample], speed: float) -> float:
    """Return the 95th percentile of the client's lateness in seconds of the server's clock."""
    return percentile([sample.late / 1e9 * speed for sample in samples], 95) if samples else 0.0


def allowed_lateness_s(slo: Slo, duration_s: float) -> float:
    """Return the lateness, in seconds, up to which a step is used whose requests took *duration_s*."""
    waits = [limit for name, limit in slo.limits.items() if name != "tpot"]
    return LATE_SHARE * min(waits, default=duration_s)


def grows(samples: Sequence[Sample]) -> bool:
    """Tell if more and more requests are in flight from the first counted arrival to the last one.

    The slope over twenty moments (Theil and Sen) must surely be positive, and add a quarter of the mean and
    two requests: neighbouring moments resemble each other, so its interval alone is no proof.
    """
    due = [sample.due for sample in samples if sample.counted]
    if not due or min(due) == max(due):
        return False
    begin, span = min(due), max(due) - min(due)
    shares = [(number + 0.5) / MOMENTS for number in range(MOMENTS)]
    moments = [begin + span * share for share in shares]
    running = [float(sum(sample.due <= at < sample.ended for sample in samples)) for at in moments]
    return rises(shares, running)


def rises(shares: Sequence[float], running: Sequence[float]) -> bool:
    """Tell if *running* rises over these shares of a step: surely, by a quarter of its mean and two."""
    slope = theil_sen(shares, running)
    mean = sum(running) / len(running)
    return slope.low > 0 and slope.slope > max(_RISE * mean, _LEAST_RISE)
