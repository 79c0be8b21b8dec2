"""Rank the arms of a comparison by their starts: which may be the best, and which is started next.

Pure: an interrupted comparison continues with the same decisions. An arm is left out once it is surely slower
than the best one, or surely no better by more than `WITHIN`; the others are started again, in rounds of which
each runs against the one before, so that drift, for example of the temperature, affects early and late ones
alike. All arms are taken to have the same spread between starts; until arms were started several times it is
assumed, with the weight of a few starts, so that no single start decides by luck.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sparkwright.verify.compare import SPREAD, Spread, ratio_of

OWN = 0
"""Position of the recipe as it is. It is recommended where nothing is surely better, so that it is told apart
from the best one to either side."""
WITHIN = 0.03
"""Share by which an arm must surely be no better for it to be started no more."""
MOST_STARTS = 6
"""Of an arm; twice as many of the best one and of the recipe as it is, which decide the answer."""
LEAST_STARTS = 2
"""Of the arms that the answer names."""
MOST_CHECKED = 4
"""Arms whose answers are judged for one answer, at the most."""
WEIGHT = 4.0
"""Degrees of freedom that the assumed spread counts as."""
ERROR = 0.01
"""Chance of a wrong word on one arm."""
_LOOKS = 4  # divides the error of calling something better than the recipe, which is judged at each start


@dataclass(frozen=True)
class Trial:
    """The starts of one arm.

    Attributes:
        scores: logarithm of the objective of each start on an undisturbed machine.
        starts: all of them.
        out: reason for which it cannot be recommended, whatever its speed; empty if there is none.
        checked: its answers were judged.
        remarks: what differs in them and is allowed to.
    """

    scores: tuple[float, ...] = ()
    starts: int = 0
    out: str = ""
    checked: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """Mean score; minus infinity without any."""
        return math.fsum(self.scores) / len(self.scores) if self.scores else -math.inf


class State(StrEnum):
    """The standing of an arm."""

    BEST = "best"
    TIED = "not told apart from the best"
    OPEN = "undecided"
    SLOWER = "slower"
    OUT = "left out"
    UNKNOWN = "not measured"


@dataclass(frozen=True)
class Planned:
    """One start to make: of an arm by its position, for its speed or for its answers."""

    index: int
    number: int
    quality: bool = False


def spread_of(trials: Sequence[Trial]) -> Spread:
    """Return the spread of the objective between starts."""
    return Spread.of((one.scores for one in trials), SPREAD, WEIGHT)


def standings(trials: Sequence[Trial]) -> list[State]:
    """Return the standing of each arm."""
    running = [index for index, one in enumerate(trials) if one.scores and not one.out]
    best = max(running, key=lambda index: trials[index].mean, default=-1)
    spread, rivals = spread_of(trials), max(1, sum(bool(one.scores) for one in trials) - 1)

    def state(index: int, trial: Trial) -> State:
        if index not in running:
            return State.OUT if trial.out else State.UNKNOWN
        if index == best:
            return State.BEST
        # The best of many is lucky: it must beat the recipe by more than one rival would.
        error = ERROR / _LOOKS / rivals if index == OWN else ERROR
        if ratio_of(trial.scores, trials[best].scores, spread, error).high < 1:
            return State.SLOWER
        ratio = ratio_of(trial.scores, trials[best].scores, spread, ERROR, ERROR)
        near = ratio.high <= 1 + WITHIN and (index != OWN or ratio.low >= 1 - WITHIN)
        return State.TIED if near else State.OPEN

    return [state(index, trial) for index, trial in enumerate(trials)]


def contenders(trials: Sequence[Trial]) -> list[int]:
    """Return the arms that may be the best, the highest objective first."""
    alive = {State.BEST, State.TIED, State.OPEN}
    found = [index for index, state in enumerate(standings(trials)) if state in alive]
    return sorted(found, key=lambda index: (-trials[index].mean, index))


def recommended(rivals: Sequence[int]) -> int | None:
    """Return the arm to serve of `contenders`: the recipe's own unless something is surely better."""
    return OWN if OWN in rivals else next(iter(rivals), None)


def next_start(trials: Sequence[Trial], mean: int, *, quality: bool) -> Planned | None:
    """Return the next start to make; `None` once everything is decided, or cannot be.

    Args:
        trials: all arms, the recipe as it is first.
        mean: starts of an arm at the most, as a mean over all that start; those with a score count as made.
        quality: judge the answers of what is recommended in the recipe's place.
    """
    found, rivals = standings(trials), contenders(trials)
    tested = [one for one in trials if not one.out]
    left = max(mean, LEAST_STARTS) * len(tested) - sum(len(one.scores) for one in tested)
    decisive = {OWN, *(i for i, state in enumerate(found) if state is State.BEST)}
    startable = [
        i for i, one in enumerate(trials) if not one.out and one.starts < MOST_STARTS * (1 + (i in decisive))
    ]
    unscored = [i for i in startable if not trials[i].scores and trials[i].starts < MOST_STARTS]
    once = [i for i in startable if i in {OWN, recommended(rivals)} and trials[i].starts < LEAST_STARTS]
    unsure = [i for i in startable if found[i] in {State.OPEN, State.BEST}]
    if State.OPEN not in {found[i] for i in unsure} or left <= len(once):
        unsure = []
    wanted = unscored or unsure or (once if left > 0 else [])
    if wanted:
        number = min(trials[index].starts for index in wanted)
        due = [index for index in wanted if trials[index].starts == number]
        return Planned(due[0] if number % 2 == 0 else due[-1], number)
    if quality and rivals and OWN not in rivals:
        judged = (OWN, *rivals[:MOST_CHECKED])
        due = [index for index in judged if not (trials[index].checked or trials[index].out)]
        return Planned(due[0], 0, quality=True) if due else None
    return None
