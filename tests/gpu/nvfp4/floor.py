"""Expected time of a kernel on a card that is not here, from what it does and from times on another card.

A kernel's work is counted: bytes of memory, and instructions of a warp by pipe and thread block. A card turns
each into a least time; the longest of them is the floor. What a measured time is above its floor comes from
two sources, kept apart:

- *reach*: the best share of a pipe's or the memory's rate that any measured case has shown;
- *delay*: what one case takes beyond the longest of its least times at that reach (latency, barriers, tails).

A prediction takes the reach of the source card and the case's own delay to the other card. Its *low* end has
no delay, its *high* end adds memory and the busiest pipe up, as if nothing overlapped; both are widened by
the largest error that the same model made between two cards that were both measured (`check`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "CARDS",
    "MEMORY",
    "Card",
    "Case",
    "Check",
    "Expected",
    "Work",
    "check",
    "delay",
    "least",
    "predict",
    "reach",
]

MEMORY = "memory"
LAUNCH_US = 4.9  # of the smallest graph on an H200, its events included
KERNEL_US = 1.0  # of each further kernel of a graph; assumed

# Instructions of a warp that a multiprocessor starts a clock: 4 in all; 64 lanes for "alu", 128 for "fma", 32
# for "lsu" and 16 for "xu", as the CUDA C++ Programming Guide has results a clock for capability 9.0.
HOPPER = {"issue": 4.0, "alu": 2.0, "fma": 4.0, "lsu": 1.0, "xu": 0.5}


@dataclass(frozen=True)
class Card:
    """A card: multiprocessors, clock in GHz, memory in GB/s as a copy reaches it, and rates of its pipes.

    *rates* are instructions of a warp a clock and multiprocessor.
    """

    name: str
    units: int
    clock: float
    bandwidth: float
    rates: Mapping[str, float]
    launch_us: float = LAUNCH_US


CARDS = {
    card.name: card
    for card in (
        # What a copy reached: 4.25 TB/s on an H200, about 3.0 on an H100. The clock is the data sheet's.
        Card("H200", 132, 1.98, 4250, HOPPER),
        Card("H100", 132, 1.98, 3000, HOPPER),
        # 225 GB/s is what users measure, of 273 by the data sheet; 2.4 GHz is what they see under load. The
        # pipes are taken to be a Hopper's, which was not measured.
        Card("GB10", 48, 2.4, 225, HOPPER),
    )
}


@dataclass(frozen=True)
class Work:
    """A case on one architecture: bytes of memory, and instructions of a warp by pipe.

    *per_block* are those of one of the *blocks* of the main kernel, *shared* those of all others together,
    spread over the card. *resident* blocks fit a multiprocessor at a time; *kernels* follow each other.
    """

    bytes: float
    per_block: Mapping[str, float]
    blocks: int
    resident: int
    shared: Mapping[str, float]
    kernels: int = 1


@dataclass(frozen=True)
class Case:
    """A measurement on a card: the case's *name*, its work there, and its time in microseconds."""

    name: str
    work: Work
    us: float


def least(work: Work, card: Card) -> dict[str, float]:
    """Return the least microseconds of *work* on *card*, for the memory and for each pipe.

    The busiest multiprocessor has the blocks of a fair share, rounded up: a card that is filled once and a
    little takes as long as one that is filled twice, where a multiprocessor holds one block.
    """
    busiest = math.ceil(work.blocks / card.units)
    found = {MEMORY: work.bytes / card.bandwidth / 1e3}
    for pipe, rate in card.rates.items():
        instructions = busiest * _of(work.per_block, pipe) + _of(work.shared, pipe) / card.units
        found[pipe] = instructions / rate / card.clock / 1e3
    return found


def _of(instructions: Mapping[str, float], pipe: str) -> float:
    """Return the instructions of *pipe*; all of them for ``issue``."""
    return sum(instructions.values()) if pipe == "issue" else instructions.get(pipe, 0.0)


def _start(work: Work, card: Card) -> float:
    """Return the microseconds that a graph of the case's kernels takes when they do nothing."""
    return card.launch_us + (work.kernels - 1) * KERNEL_US


def reach(cases: Sequence[Case], card: Card) -> dict[str, float]:
    """Return the best share, up to 1, of the memory's and each pipe's rate that any of *cases* has shown.

    Raises:
        ValueError: there is no case, or one that is faster than the start of its kernels.
    """
    if not cases:
        raise ValueError("no case was measured")
    best: dict[str, float] = {}
    for case in cases:
        spent = case.us - _start(case.work, card)
        if spent <= 0:
            raise ValueError(f"{case.name} took {case.us} us, less than the start of its kernels")
        for name, us in least(case.work, card).items():
            best[name] = max(best.get(name, 0.0), us / spent)
    return {name: min(1.0, share) for name, share in best.items()}


def bound(work: Work, card: Card, shares: Mapping[str, float]) -> tuple[str, float]:
    """Return what limits *work* on *card* at the reach *shares*, and its microseconds."""
    times = {name: us / shares[name] for name, us in least(work, card).items() if shares.get(name)}
    most = max(times.values())
    # Pipes that are busy in step were shown no more than their share of it: the best used one is the limit.
    name = max((one for one in times if math.isclose(times[one], most)), key=lambda one: shares[one])
    return name, most


def delay(case: Case, card: Card, shares: Mapping[str, float]) -> float:
    """Return how often its bound a measured case took."""
    return (case.us - _start(case.work, card)) / bound(case.work, card, shares)[1]


@dataclass(frozen=True)
class Expected:
    """Microseconds on another card with their bar, what limits there and on the source, and the delay."""

    name: str
    us: float
    low: float
    high: float
    limit: str
    limit_before: str
    delay: float

    @property
    def carries(self) -> bool:
        """Return whether the same thing limits on both cards; if not, the delay is a guess."""
        return self.limit == self.limit_before


def predict(
    case: Case, source: Card, work: Work, target: Card, shares: Mapping[str, float], *, error: float = 1.0
) -> Expected:
    """Return the expectation of a *case* that *source* measured, whose work on *target* is *work*.

    Args:
        shares: `reach` of the source's cases.
        error: the factor of `check` by which the bar is widened; 1 without a check.
    """
    start, (limit, us) = _start(work, target), bound(work, target, shares)
    factor = delay(case, source, shares)
    times = {name: one / shares[name] for name, one in least(work, target).items() if shares.get(name)}
    memory = times.pop(MEMORY, 0.0)
    apart = memory + max(times.values(), default=0.0)
    return Expected(
        case.name,
        start + factor * us,
        (start + us) / error,
        (start + factor * apart) * error,
        limit,
        bound(case.work, source, shares)[0],
        factor,
    )


@dataclass(frozen=True)
class Check:
    """Predictions for a card that was measured too: expectations, measured times, and the worst factor."""

    rows: tuple[tuple[Expected, float], ...]

    @property
    def ratios(self) -> list[float]:
        """Return measured times in terms of those predicted."""
        return [us / expected.us for expected, us in self.rows]

    @property
    def error(self) -> float:
        """Return the largest factor, at least 1, by which a prediction was wrong in either direction."""
        return max(max(ratio, 1 / ratio) for ratio in self.ratios)

    @property
    def typical(self) -> float:
        """Return the typical factor: the root mean square of the logarithms."""
        logs = [math.log(ratio) ** 2 for ratio in self.ratios]
        return math.exp(math.sqrt(sum(logs) / len(logs)))


def check(source: Card, before: Sequence[Case], target: Card, after: Sequence[Case]) -> Check:
    """Predict every case that both cards measured from the *source* alone.

    Raises:
        ValueError: no case was measured on both.
    """
    shares, measured = reach(before, source), {case.name: case for case in after}
    rows = [
        (predict(case, source, measured[case.name].work, target, shares), measured[case.name].us)
        for case in before
        if case.name in measured
    ]
    if not rows:
        raise ValueError("no case was measured on both cards")
    return Check(tuple(rows))
