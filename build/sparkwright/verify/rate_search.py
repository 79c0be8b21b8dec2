"""An objective for the times of requests, and the search for the highest rate at which it holds.

Steps so far in, the next step or the answer out: bracketing by factors of two, bisection in the logarithm of
the rate, and a longer step at each end of a narrow bracket, since a short one may hold or fail by luck.
Everything follows from the steps, so that an interrupted search continues as if it had not been.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sparkwright.base.errors import ConfigError
from sparkwright.engine.observations import Sample

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


CLOSE = 1.1
"""Ratio of the bracket's ends at which bisection is over."""
LONGER = 16
"""Times the usual length of the steps that confirm the bracket's ends."""
TRIES = 3
"""Steps in a row that say nothing before the search gives up."""
SETTLING = 8
"""Times the usual length of a step after which a queue that still grows is taken to grow for ever."""
_WARM_UP_DURATIONS, _DURATIONS = 10.0, 5.0  # of a request; near its capacity an empty queue fills slowly
_MOST_WARM_UP = 0.5  # of a longer step
_LIMITS = 10.0  # a step lasts for so many: at a rate that is 10 % too high, waiting reaches the limit in it
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
    """

    share: float
    longest_s: float
    first: float = 1.0
    least: float = 1 / 64
    most: float = 1024.0
    requests: int = 200

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
        held: highest rate below all that failed; 0 if none held.
        failed: lowest rate that failed; infinite if none did.
        growing: there the queue grows, though the limits were kept for the length of a step.
    """

    outcome: Outcome
    rate: float
    held: float = 0.0
    failed: float = math.inf
    growing: bool = False


def decide(steps: Sequence[Step], plan: SearchPlan) -> NextStep | Capacity:
    """Return the step to measure after *steps*, or the answer."""
    decisive = _decisive(steps, plan)
    failed = min((rate for rate, step in decisive.items() if not _holds(step, plan)), default=math.inf)
    held = max((rate for rate, step in decisive.items() if rate < failed), default=0.0)
    if len(steps) >= TRIES and all(step.void for step in steps[-TRIES:]):
        outcome = Outcome.DISTURBED if steps[-1].disturbed else Outcome.LATE
        return Capacity(outcome, steps[-1].rate, held, failed)
    if steps and (steps[-1].void or _unsettled(steps[-1], plan)):
        return _sized(steps, plan, steps[-1].rate, steps[-1].factor * (1 if steps[-1].void else 2))
    if held and failed <= CLOSE * held:
        for rate in (held, failed):
            if decisive[rate].factor < LONGER:
                return _sized(steps, plan, rate, LONGER)
        return Capacity(Outcome.FOUND, held, held, failed, growing=decisive[failed].kept(plan.share))
    return _outside(steps, plan, held, failed)


def _outside(steps: Sequence[Step], plan: SearchPlan, held: float, failed: float) -> NextStep | Capacity:
    """Return the next step of bracketing or of bisection."""
    if not held and failed <= plan.least:
        return Capacity(Outcome.NEVER, failed, 0.0, failed)
    if held >= plan.most:
        return Capacity(Outcome.UNSATURATED, held, held)
    if not held:
        rate = plan.first if math.isinf(failed) else max(failed / 2, plan.least)
    else:
        rate = min(2 * held, plan.most) if math.isinf(failed) else math.sqrt(held * failed)
    return _sized(steps, plan, rate)


def _decisive(steps: Sequence[Step], plan: SearchPlan) -> dict[float, Step]:
    """Return the step that decides each rate: its last one, which is its longest."""
    return {step.rate: step for step in steps if not (step.void or _unsettled(step, plan))}


def _holds(step: Step, plan: SearchPlan) -> bool:
    return step.kept(plan.share) and not step.grows


def _unsettled(step: Step, plan: SearchPlan) -> bool:
    """Tell if a longer step is needed: the limits were kept while the queue grew."""
    return not step.void and step.kept(plan.share) and step.grows and step.factor < SETTLING


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
