"""Search along an order of changes for the one that makes the difference: candidates apply the first so many.

A posterior over the changes is kept. A candidate that has the culprit shows the failure in a share of runs
that is not known (Beta-Bernoulli), a candidate without it hardly ever; a deterministic judge makes it binary
search, weighted by the prior.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from sparkwright.base.errors import BisectionError

_SURPRISE = 1e-6  # of a judge that always says the same, to be wrong
_FALSE_ALARMS = (0.05, 10.0)  # Beta prior of the share of runs in which a candidate without the culprit fails
_LEAST_INFORMATION = 1e-9  # bits; less is rounding
_LEAST_RATE = 0.02


@dataclass(frozen=True)
class Noise:
    """The noise of a judge, after both ends were run repeatedly.

    Attributes:
        doubt: probability that the failure does not show in each run of a bad candidate.
        shown: runs of the bad end that were bad.
        quiet: runs of the good end, all good.
    """

    doubt: float
    shown: int
    hidden: int
    quiet: int

    @property
    def rate(self) -> float:
        """Return the expected share of runs in which a bad candidate is bad."""
        return 1 - self.doubt + self.doubt * (1 + self.shown) / (2 + self.shown + self.hidden)


@dataclass(frozen=True)
class Counts:
    """Observations of one position."""

    bad: int = 0
    good: int = 0


@dataclass(frozen=True)
class Located:
    """Neighbouring changes, numbered from 1, one of which makes the difference.

    Attributes:
        last: number of the last; the first's where one change is left.
    """

    first: int
    last: int
    confidence: float


@dataclass
class Posterior:
    """The probability of each change to make the difference, in view of what was observed.

    Position *t* means that the first *t* changes are applied. If change *k* makes the difference, positions
    from *k* on have it.

    Attributes:
        weights: prior of each change; they need not sum to 1.
        bad_after: positions with the difference are the bad ones, and not those without it.
    """

    weights: Sequence[float]
    noise: Noise
    bad_after: bool = True
    seen: dict[int, Counts] = field(default_factory=dict)

    def observe(self, position: int, *, bad: bool) -> None:
        """Record one verdict at *position*."""
        before = self.seen.get(position, Counts())
        self.seen[position] = Counts(before.bad + bad, before.good + (not bad))

    def masses(self) -> list[float]:
        """Return the probability of each change; they sum to 1."""
        return self._computed()[0]

    def _computed(self) -> tuple[list[float], list[float], list[float]]:
        """Return for each change its probability, and those of "bad" at positions from it on and before it.

        Changes between the same two observed positions share all of this but the prior.
        """
        places = sorted(self.seen)
        bads = [0, *accumulate(self.seen[place].bad for place in places)]
        goods = [0, *accumulate(self.seen[place].good for place in places)]
        logs, shares = [], []
        for below in range(len(places) + 1):  # positions observed that lie before the change
            before = (bads[below], goods[below])
            after = (bads[-1] - bads[below], goods[-1] - goods[below])
            log, share = self._likelihood(*((after, before) if self.bad_after else (before, after)))
            logs.append(log)
            shares.append(share)
        segments = [bisect_left(places, number) for number in range(1, len(self.weights) + 1)]
        most = max(logs[segment] for segment in segments)
        raw = [
            weight * math.exp(logs[segment] - most)
            for weight, segment in zip(self.weights, segments, strict=True)
        ]
        total = math.fsum(raw)
        failing, quiet = [share[0] for share in shares], [share[1] for share in shares]
        with_it, without = (failing, quiet) if self.bad_after else (quiet, failing)
        return (
            [value / total for value in raw],
            [with_it[segment] for segment in segments],
            [without[segment] for segment in segments],
        )

    def _likelihood(
        self, failing: tuple[int, int], quiet: tuple[int, int]
    ) -> tuple[float, tuple[float, float]]:
        """Return the log likelihood of runs (bad, good) on both sides, and the chance of "bad" on each."""
        noise = self.noise
        a, b = 1.0 + noise.shown, 1.0 + noise.hidden
        c, d = _FALSE_ALARMS[0], _FALSE_ALARMS[1] + noise.quiet
        surprises = failing[1] + quiet[0]
        usual = failing[0] + quiet[1]
        steady = surprises * math.log(_SURPRISE) + usual * math.log1p(-_SURPRISE)
        random = _beta_ratio(a, b, *failing) + _beta_ratio(c, d, *quiet)
        if noise.doubt >= 1:
            log, share = random, 1.0
        else:
            one, other = steady + math.log1p(-noise.doubt), random + math.log(noise.doubt)
            most = max(one, other)
            log = most + math.log(math.exp(one - most) + math.exp(other - most))
            share = math.exp(other - log)
        fails = (a + failing[0]) / (a + b + sum(failing))
        alarms = (c + quiet[0]) / (c + d + sum(quiet))
        return log, ((1 - share) * (1 - _SURPRISE) + share * fails, (1 - share) * _SURPRISE + share * alarms)

    def information(self) -> list[float]:
        """Return the expected information of one observation at each position from 1 to n-1, in bits."""
        masses, with_it, without = self._computed()
        bad = list(accumulate((m * p for m, p in zip(masses, with_it, strict=True)), initial=0.0))
        known = list(accumulate((m * _entropy(p) for m, p in zip(masses, with_it, strict=True)), initial=0.0))
        bad_later = _from_the_end(m * p for m, p in zip(masses, without, strict=True))
        known_later = _from_the_end(m * _entropy(p) for m, p in zip(masses, without, strict=True))
        return [
            _entropy(min(1.0, bad[t] + bad_later[t])) - known[t] - known_later[t]
            for t in range(1, len(masses))
        ]


def _from_the_end(values: Collection[float] | Generator[float]) -> list[float]:
    return list(accumulate(reversed(list(values)), initial=0.0))[::-1]


def _beta_ratio(a: float, b: float, successes: int, failures: int) -> float:
    return _log_beta(a + successes, b + failures) - _log_beta(a, b)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _entropy(p: float) -> float:
    if p <= 0 or p >= 1:
        return 0.0
    return -p * math.log2(p) - (1 - p) * math.log2(1 - p)


def locate(
    posterior: Posterior,
    observe: Callable[[int, float], Generator[Any, Any, bool | None]],
    *,
    confidence: float,
    untestable: Collection[int] = (),
) -> Generator[Any, Any, Located]:
    """Observe positions until one change, or a range that cannot be split, has enough probability.

    The next position is that with the most expected information. Neighbours of an untestable position are
    likely to be so too, and are put off.

    Args:
        posterior: what is known before.
        observe: judges a position: bad, good, or `None` if it cannot be tested. Its second argument is the
            number of observations still expected.
        confidence: the probability that is enough.
        untestable: positions that are known to be so.
    """
    n = len(posterior.weights)
    closed, failed = set(untestable), list[int]()
    rate = max(posterior.noise.rate, _LEAST_RATE)
    budget = math.ceil(10 * (math.log2(n) + 5) / rate)
    while True:
        masses = posterior.masses()
        cuts = [0, *(t for t in range(1, n) if t not in closed), n]
        sums = [0.0, *accumulate(masses)]
        probable, first, last = max(
            (sums[other] - sums[one], one + 1, other) for one, other in pairwise(cuts)
        )
        if probable >= confidence:
            return Located(first, last, min(1.0, probable))
        information = posterior.information()
        best = max(
            (t for t in range(1, n) if t not in closed),
            key=lambda t: (_worth(t, information, failed), -abs(2 * t - n)),
            default=0,
        )
        budget -= 1
        if not best or information[best - 1] < _LEAST_INFORMATION or budget < 0:
            raise BisectionError(
                "the search comes to no end",
                because="further runs tell nothing more: the failure does not depend on these changes alone",
                next_step="read the evaluations in the journal; give a judge that is less noisy",
            )
        left = math.fsum(_entropy_term(mass) for mass in masses) / information[best - 1]
        bad = yield from observe(best, left)
        if bad is None:
            closed.add(best)
            failed.append(best)
        else:
            posterior.observe(best, bad=bad)


def _entropy_term(mass: float) -> float:
    return -mass * math.log2(mass) if mass > 0 else 0.0


def _worth(position: int, information: Sequence[float], failed: Sequence[int]) -> float:
    """Return expected information, lessened near positions that could not be tested."""
    nearest = min((abs(position - other) for other in failed), default=math.inf)
    testable = 1 - 1 / (1 + nearest)
    return round(information[position - 1] * testable, 12)
