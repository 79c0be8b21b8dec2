"""The search for the highest rate that holds: steps so far in, the next step or the answer out.

Bracketing by factors of two, bisection in the logarithm of the rate, then steps around the crossing until
the interval is narrow. Everything follows from the steps, so that an interrupted search continues as if it
had not been.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sparkwright.verify.capacity.fit import Crossing, fit_crossing

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
    """A step to measure.

    Attributes:
        rate: requests a second.
        warm_up: before them, at the same rate.
        factor: times the usual length.
    """

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
    crossing = _crossing(steps, middle, plan)
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


def _crossing(steps: Sequence[Step], middle: float, plan: SearchPlan) -> Crossing:
    """Return the crossing by the steps near it: near *middle* first, and then near what these say."""
    return _fitted(steps, _fitted(steps, middle, plan).rate, plan)


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
