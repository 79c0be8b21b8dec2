"""An objective for the times of requests, and the search for the highest rate at which it holds.

Steps so far in, the next step or the answer out: bracketing by factors of two, bisection in the logarithm of
the rate, then steps around the crossing until the interval is narrow. Everything follows from the steps, so
that an interrupted search continues as if it had not been.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sparkwright.base.errors import ConfigError
from sparkwright.engine.observations import Sample
from sparkwright.verify.statistics import t_quantile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


TIMES = ("ttft", "tpot", "e2e")
SHARES = (50, 90, 95, 99)
_LIMIT = re.compile(r"(?P<name>[a-z0-9]+)_p(?P<share>\d+)=(?P<value>\d+(?:\.\d+)?)(?P<unit>[a-z]*)")
_UNITS = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Slo:
    """Limits that a share of all requests must keep, all of them at once.

    Attributes:
        limits: seconds by the time that they limit: ``ttft`` to the first token, ``tpot`` for each token
            after it, ``e2e`` to the last one.
        share: of the requests, 0 to 1.
    """

    limits: dict[str, float]
    share: float

    def __str__(self) -> str:
        shown = (f"{name.upper()} p{self.share * 100:.0f} ≤ {_shown(s)}" for name, s in self.limits.items())
        return " and ".join(shown)

    @property
    def text(self) -> str:
        """The objective in the form that `parse_slo` reads."""
        # `parse_slo` reads no exponent.
        limits = {name: f"{s * 1000:.6f}".rstrip("0").rstrip(".") for name, s in self.limits.items()}
        return ",".join(f"{name}_p{self.share * 100:.0f}={ms}ms" for name, ms in limits.items())

    def met_by(self, sample: Sample, speed: float) -> bool:
        """Tell if *sample* did not fail and kept every limit; *speed* is the server's seconds in one."""
        times = times_of(sample, speed)
        return sample.failure is None and all(times[name] <= most for name, most in self.limits.items())


def times_of(sample: Sample, speed: float) -> dict[str, float]:
    """Return the times of *sample* in seconds of the server's clock, NaN where it has none.

    They count from the moment at which the request was due, so that no delay on the way is left out.
    """
    begin, scale = sample.due or sample.started, speed / 1e9
    return {
        "ttft": (sample.first - begin) * scale if sample.first else math.nan,
        "tpot": sample.tpot_ms * speed / 1e3,
        "e2e": (sample.last - begin) * scale if sample.last else math.nan,
    }


def parse_slo(text: str) -> Slo:
    """Return the objective that *text* states, such as ``ttft_p95=2s,tpot_p95=100ms``.

    Raises:
        ConfigError: a name, a percentile or a unit is unknown, or the percentiles differ.
    """
    limits: dict[str, float] = {}
    shares: set[int] = set()
    for word in (part.strip() for part in text.split(",")):
        found = _LIMIT.fullmatch(word)
        if found is None:
            raise _refused(word, "it is not of the form NAME_pPERCENT=TIME")
        name, share = found["name"], int(found["share"])
        if name not in TIMES:
            raise _refused(word, f"there is no time {name!r}; there are {', '.join(TIMES)}")
        if share not in SHARES:
            raise _refused(word, f"p{share} is none of {', '.join(f'p{one}' for one in SHARES)}")
        if found["unit"] not in _UNITS:
            raise _refused(word, f"its unit is {found['unit'] or 'missing'}; there are ms and s")
        seconds = float(found["value"]) * _UNITS[found["unit"]]
        if name in limits or not seconds:
            raise _refused(word, f"{name} is limited twice" if name in limits else "no request takes no time")
        limits[name] = seconds
        shares.add(share)
    if len(shares) > 1:
        raise _refused(text, "its percentiles differ, and a request counts as good if it keeps all limits")
    return Slo(limits, shares.pop() / 100)


def _refused(word: str, because: str) -> ConfigError:
    return ConfigError(
        f"the objective {word!r} cannot be used",
        because=because,
        next_step="give limits such as ttft_p95=2s,tpot_p95=100ms",
    )


def _shown(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


_ROUNDS = 50
_SURE = 0.975
_LEAST = 3
_KNOWN = 0.5
"""Share of the degrees of freedom that the scatter has. Queues are rarely long: most searches see too few
long ones, and take the scatter for smaller than it is more often than with a normal distribution."""


@dataclass(frozen=True)
class Crossing:
    """A rate with its 95 % interval, requests a second."""

    rate: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Half of the interval, relative to the rate."""
        return max(self.rate - self.low, self.high - self.rate) / self.rate

    def within(self, low: float, high: float) -> Crossing:
        """Return the same with every rate between *low* and *high*."""
        return Crossing(*(min(max(one, low), high) for one in (self.rate, self.low, self.high)))


def fit_crossing(counts: Sequence[tuple[float, int, int]], share: float) -> Crossing:
    """Return the rate at which *share* of the requests are good, by logistic regression on its logarithm.

    Requests of one step resemble each other, since one burst delays many: the variance is scaled by the
    steps' own scatter (quasi-likelihood), never below that of independent requests. Half a request of each
    kind is added to a step, so that shares of all and none are finite. The interval is infinite where fewer
    than three steps were given, or where the share does not fall with the rate.
    """
    import numpy as np

    rates = np.array([rate for rate, _, _ in counts], dtype=np.float64)
    good = np.array([count for _, count, _ in counts], dtype=np.float64) + 0.5
    total = np.array([count for _, _, count in counts], dtype=np.float64) + 1.0
    middle = float(np.log(rates).mean())
    x = np.column_stack([np.ones_like(rates), np.log(rates) - middle])
    unknown = Crossing(math.exp(middle), 0.0, math.inf)
    if rates.size < _LEAST or np.ptp(rates) == 0:
        return unknown
    coefficients, covariance = _regress(x, good, total)
    slope = float(coefficients[1])
    if slope >= 0:
        return unknown
    at = (math.log(share / (1 - share)) - float(coefficients[0])) / slope
    ends = _fieller(float(coefficients[0]) - math.log(share / (1 - share)), slope, covariance, rates.size - 2)
    low, rate, high = (math.exp(min(max(middle + x, -700), 700)) for x in (ends[0], at, ends[1]))
    return Crossing(rate, low, high)


def _fieller(
    height: float, slope: float, covariance: NDArray[np.float64], freedom: int
) -> tuple[float, float]:
    """Return the 95 % interval of the place where a line crosses zero (Fieller's theorem).

    The slope has an error too, so the interval is wider on the side where the line is less well known; it is
    infinite where the slope might be zero.
    """
    quantile = t_quantile(_SURE, max(1.0, _KNOWN * freedom)) ** 2
    a = slope**2 - quantile * float(covariance[1, 1])
    b = height * slope - quantile * float(covariance[0, 1])
    c = height**2 - quantile * float(covariance[0, 0])
    if a <= 0 or b * b < a * c:
        return -math.inf, math.inf
    half = math.sqrt(b * b - a * c)
    return (-b - half) / a, (-b + half) / a


def _regress(
    x: NDArray[np.float64], good: NDArray[np.float64], total: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return coefficients of the log odds and their covariance, by iteratively reweighted least squares."""
    import numpy as np

    share: NDArray[np.float64] = good / total
    odds = np.log(share / (1 - share))
    coefficients: NDArray[np.float64] = np.zeros(2)
    fitted, weights = share, total * share * (1 - share)
    for _ in range(_ROUNDS):
        target = odds + (share - fitted) / (fitted * (1 - fitted))
        gram = x.T @ (weights[:, None] * x)
        new = np.linalg.solve(gram, x.T @ (weights * target))
        done = np.allclose(new, coefficients, atol=1e-9)
        coefficients = np.asarray(new, dtype=np.float64)
        odds = np.asarray(np.clip(x @ coefficients, -30, 30), dtype=np.float64)
        fitted = np.asarray(1 / (1 + np.exp(-odds)), dtype=np.float64)
        weights = total * fitted * (1 - fitted)
        if done:
            break
    covariance: NDArray[np.float64] = np.asarray(np.linalg.inv(x.T @ (weights[:, None] * x)))
    scatter = float(((good - total * fitted) ** 2 / weights).sum()) / max(1, len(total) - 2)
    return coefficients, covariance * max(1.0, scatter)


CLOSE = 1.1
"""Ratio of the bracket's ends at which bisection is over: ±5 %."""
LEAST_REPEATS, MOST_REPEATS = 12, 26
"""Steps around the crossing. A search that stops at its first narrow interval stops where the scatter happens
to be small: with six steps at the least, 95 % intervals held the truth in 78 % of searches."""
LONGER = 4
"""Times the usual length of the steps around the crossing."""
TRIES = 3
"""Steps in a row that say nothing before the search gives up."""
SETTLING = 8
"""Times the usual length of a step after which a queue that still grows is taken to grow for ever."""
WINDOW = 1.4
"""Steps within this factor of the bracket's middle decide the answer."""
_OFFSETS = (1.0, 0.95, 1.05, 0.9)
_WARM_UP_DURATIONS, _DURATIONS = 10.0, 5.0  # of a request; near its capacity an empty queue fills slowly
_MOST_WARM_UP = 0.5  # of a step around the crossing
_LIMITS = 10.0  # a step lasts for so many: at a rate that is 10 % too high, waiting reaches the limit in it
_STRAY = 1.2  # factor by which a fit may leave the middle that it began with
_LEAST_WARM_UP, _MOST_REQUESTS = 10, 5000
_HIGH = 0.95


@dataclass(frozen=True)
class SearchPlan:
    """The limits of a search.

    Attributes:
        share: of good requests at which a rate holds.
        longest_s: longest limit of the objective.
        first: first rate, requests a second.
        least: lowest rate to try.
        most: highest rate to try.
        requests: of a step, at the least.
        width: half of the answer's interval, relative, at which the steps suffice.
    """

    share: float
    longest_s: float
    first: float = 1.0
    least: float = 1 / 64
    most: float = 1024.0
    requests: int = 200
    width: float = 0.05

    @classmethod
    def of(cls, slo: Slo, requests: int) -> SearchPlan:
        """Return the limits of a search for the rate at which *slo* holds."""
        waits = [seconds for name, seconds in slo.limits.items() if name != "tpot"]
        # Ten requests beyond a high percentile, or its share means little.
        tail = round(10 / (1 - slo.share)) if slo.share > _HIGH else 0
        return cls(slo.share, max(waits, default=0.0), requests=max(requests, tail))


@dataclass(frozen=True)
class Step:
    """The outcome of one rate.

    Attributes:
        rate: requests a second.
        good: those of them that kept the objective.
        duration_s: median duration of a request.
        grows: more and more requests were in flight.
        late: the client did not send in time, so that the step says nothing.
        disturbed: the machine was slowed or swapped, so that the step says nothing.
        factor: times the usual length.
    """

    rate: float
    requests: int
    good: int
    duration_s: float = 0.0
    grows: bool = False
    late: bool = False
    factor: int = 1
    disturbed: bool = False

    @property
    def void(self) -> bool:
        """Tell if the step says nothing about the server."""
        return self.late or self.disturbed

    def kept(self, share: float) -> bool:
        """Tell if enough requests were good, whatever the queue did."""
        return self.good >= share * self.requests - 1e-9


@dataclass(frozen=True)
class NextStep:
    """A step to measure."""

    rate: float
    requests: int
    warm_up: int
    factor: int = 1


class Outcome(StrEnum):
    """The end of a search."""

    FOUND = "found"
    NEVER = "never"  # not even the lowest rate holds
    UNSATURATED = "unsaturated"  # the highest rate holds
    LATE = "late"  # the client is too slow
    DISTURBED = "disturbed"  # the machine is slowed or swaps


@dataclass(frozen=True)
class Capacity:
    """The answer of a search.

    Attributes:
        rate: the highest rate that holds; for other outcomes than found, the last rate that says so.
        low: lower end of its 95 % interval.
        high: upper end.
        held: highest rate below all that failed; 0 if none held.
        failed: lowest rate that failed; infinite if none did.
        repeats: steps around the crossing.
        growing: above it the queue grows, though the limits were kept for the length of a step.
    """

    outcome: Outcome
    rate: float
    low: float
    high: float
    held: float = 0.0
    failed: float = math.inf
    repeats: int = 0
    growing: bool = False


def decide(steps: Sequence[Step], plan: SearchPlan) -> NextStep | Capacity:
    """Return the step to measure after *steps*, or the answer."""
    if len(steps) >= TRIES and all(step.void for step in steps[-TRIES:]):
        held, failed = _bracket(steps, plan)
        outcome = Outcome.DISTURBED if steps[-1].disturbed else Outcome.LATE
        return Capacity(outcome, steps[-1].rate, held, failed, held, failed)
    if steps and steps[-1].void:
        return _sized(steps, plan, steps[-1].rate, steps[-1].factor)
    if steps and _unsettled(steps[-1], plan):
        return _sized(steps, plan, steps[-1].rate, 2 * steps[-1].factor)
    closed = _closed_after(steps, plan)
    return _outside(steps, plan) if closed is None else _around(steps, closed, plan)


def _unsettled(step: Step, plan: SearchPlan) -> bool:
    """Tell if a longer step is needed: the limits were kept while the queue grew."""
    return not step.void and step.kept(plan.share) and step.grows and step.factor < SETTLING


def _bracket(steps: Sequence[Step], plan: SearchPlan) -> tuple[float, float]:
    """Return the highest rate that held below all that failed, and the lowest that failed."""
    sure = [step for step in steps if not step.void and not _unsettled(step, plan)]
    failed = min((s.rate for s in sure if s.grows or not s.kept(plan.share)), default=math.inf)
    held = (s.rate for s in sure if s.kept(plan.share) and not s.grows and s.rate < failed)
    return max(held, default=0.0), failed


def _closed_after(steps: Sequence[Step], plan: SearchPlan) -> int | None:
    """Return the number of steps after which the bracket was narrow enough first; `None` if never."""
    for count in range(2, len(steps) + 1):
        held, failed = _bracket(steps[:count], plan)
        if held and failed <= CLOSE * held:
            return count
    return None


def _outside(steps: Sequence[Step], plan: SearchPlan) -> NextStep | Capacity:
    """Return the next step of bracketing or of bisection."""
    held, failed = _bracket(steps, plan)
    if not held and math.isinf(failed):
        rate = plan.first
    elif not held:
        if failed <= plan.least:
            return Capacity(Outcome.NEVER, failed, 0.0, failed, 0.0, failed)
        rate = max(failed / 2, plan.least)
    elif math.isinf(failed):
        if held >= plan.most:
            return Capacity(Outcome.UNSATURATED, held, held, math.inf, held)
        rate = min(2 * held, plan.most)
    else:
        rate = math.sqrt(held * failed)
    return _sized(steps, plan, rate)


def _around(steps: Sequence[Step], closed: int, plan: SearchPlan) -> NextStep | Capacity:
    """Return the next step around the crossing, or the answer."""
    held, failed = _bracket(steps[:closed], plan)
    middle = math.sqrt(held * failed)
    repeats = sum(not step.void for step in steps[closed:])
    # By the steps near the middle first, and then by those near what these say.
    crossing = _fitted(steps, _fitted(steps, middle, plan).rate, plan)
    narrow = repeats >= LEAST_REPEATS and crossing.width <= plan.width + 1e-9
    if narrow or repeats >= MOST_REPEATS:
        held, failed = _bracket(steps, plan)
        bad = [s for s in _near(steps, middle, plan) if s.grows or not s.kept(plan.share)]
        growing = 2 * sum(s.kept(plan.share) for s in bad) > len(bad)
        return Capacity(
            Outcome.FOUND, crossing.rate, crossing.low, crossing.high, held, failed, repeats, growing
        )
    # A fit through steps that all held says little of what lies above them: go where both outcomes were seen.
    held, failed = _bracket(steps, plan)
    rate = min(max(crossing.rate, held), CLOSE * failed)
    return _sized(steps, plan, rate * _OFFSETS[repeats % len(_OFFSETS)], LONGER)


def _fitted(steps: Sequence[Step], middle: float, plan: SearchPlan) -> Crossing:
    near = [(s.rate, _settled_good(s, plan), s.requests) for s in _near(steps, middle, plan)]
    return fit_crossing(near, plan.share).within(middle / _STRAY, middle * _STRAY)


def _settled_good(step: Step, plan: SearchPlan) -> int:
    """Return the good requests of *step*; half where they were enough and the queue grew without end.

    Requests after the step would have waited for longer and longer.
    """
    return step.requests // 2 if step.grows and step.kept(plan.share) else step.good


def _near(steps: Sequence[Step], middle: float, plan: SearchPlan) -> list[Step]:
    """Return the steps near *middle* that decide something."""
    sure = (step for step in steps if not (step.void or _unsettled(step, plan)))
    return [step for step in sure if middle / WINDOW <= step.rate <= middle * WINDOW]


def _sized(steps: Sequence[Step], plan: SearchPlan, rate: float, factor: int = 1) -> NextStep:
    """Return a step at *rate*, long beside the limits and beside the requests seen at the nearest rate."""
    known = [step for step in steps if step.duration_s > 0]
    known = [step for step in known if step.kept(plan.share) and not step.grows] or known
    nearest = min(known, key=lambda step: abs(math.log(step.rate / rate)), default=None)
    duration = nearest.duration_s if nearest else 0.0
    requests = max(plan.requests, rate * max(_LIMITS * plan.longest_s, _DURATIONS * duration))
    most = requests * (factor * _MOST_WARM_UP if factor > 1 else 1.0)
    warm_up = max(_LEAST_WARM_UP, min(rate * _WARM_UP_DURATIONS * duration, most))
    return NextStep(
        rate,
        factor * min(math.ceil(requests), _MOST_REQUESTS),
        min(math.ceil(warm_up), _MOST_REQUESTS),
        factor,
    )
