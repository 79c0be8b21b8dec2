"""Choose the next configuration to start, and those that may be the best, from all figures so far.

Pure: an interrupted search continues with the same decisions. A configuration is left out when it is surely
slower than the best one, surely breaks a limit, or could surely not be better by more than the tolerance.
Where nothing can be left out, halving ends at the number of starts that the grid takes.

Starts are the unit of replication: kernels are selected at each start. All configurations are taken to have
the same spread, which is measured over those that were started several times; until then it is assumed, with
the weight of a few starts, so that a single start decides nothing by luck.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from sparkwright.verify.statistics import t_quantile

ASSUMED = 4.0
"""Degrees of freedom that the assumed spread counts as."""


@dataclass(frozen=True)
class Noise:
    """The spread between starts of one configuration.

    Attributes:
        spread: standard deviation of the logarithm.
    """

    spread: float
    degrees: float

    @classmethod
    def measured(cls, repeated: Iterable[Sequence[float]], assumed: float) -> Noise:
        """Return the spread within *repeated*, one sequence of logarithms for each configuration.

        Args:
            repeated: values of all starts; sequences of one add nothing.
            assumed: standard deviation before anything was measured.
        """
        squares, degrees = ASSUMED * assumed**2, ASSUMED
        for values in repeated:
            if len(values) > 1:
                mean = math.fsum(values) / len(values)
                squares += math.fsum((value - mean) ** 2 for value in values)
                degrees += len(values) - 1
        return cls(math.sqrt(squares / degrees), degrees)

    def half_width(self, error: float, *counts: int) -> float:
        """Return the half width of an interval of a difference of means, or of one mean.

        Args:
            error: chance that the truth lies beyond one end.
            counts: starts of each mean.
        """
        scale = math.sqrt(math.fsum(1 / count for count in counts))
        return t_quantile(1 - error, self.degrees) * self.spread * scale


@dataclass(frozen=True)
class Ratio:
    """A ratio with its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{percent(self.value)} ({percent(self.low)} to {percent(self.high)})"


def percent(ratio: float) -> str:
    """Return a ratio as a difference: 1.04 as ``+4.0 %``."""
    return f"{100 * (ratio - 1):+.1f} %".replace("-", "\N{MINUS SIGN}")


def ratio_of(one: Sequence[float], other: Sequence[float], noise: Noise, error: float) -> Ratio:
    """Return the ratio of *one* to *other*, from logarithms by start."""
    difference = _mean(one) - _mean(other)
    width = noise.half_width(error, len(one), len(other))
    return Ratio(math.exp(difference), math.exp(difference - width), math.exp(difference + width))


SPREAD_OF_TIMES = 0.10
"""Assumed standard deviation between starts of the logarithm of a time."""
OWN = 0
"""Position of the recipe as it is. It is recommended where nothing is surely better, so that it is told apart
from the best one to either side."""
LEAST = 2
"""Starts of configurations that are named in the result."""
LOOKS = 4
"""Divides the error of calling something better than the recipe, which is judged again at each start."""
MOST_CHECKED = 4
"""Configurations whose quality is checked for one answer, at the most."""


@dataclass(frozen=True)
class Rules:
    """The rules of a search.

    Attributes:
        most_starts: of each that may be the best; twice as many of the best one and of the recipe as it is.
        within: share by which a configuration must surely be no better, for the search to end.
        spread: assumed standard deviation between starts.
        error: chance of a wrong word on one configuration.
        limits: limits of times by name, such as ``ttft``, in seconds.
    """

    strategy: Literal["halving", "grid"] = "halving"
    starts: int = 3
    most_starts: int = 6
    within: float = 0.03
    spread: float = 0.025
    error: float = 0.01
    limits: Mapping[str, float] = field(default_factory=dict)
    reserve_mib: float = 0.0
    quality: bool = False


@dataclass(frozen=True)
class StartFigures:
    """Figures of one start of a configuration.

    Attributes:
        score: the objective, as a logarithm.
        rates: tokens a second at each level.
        times: seconds at each level by the limited time, at the objective's percentile.
        memory_mib: least available memory of the machine; -1 if unknown.
        disturbed: reason for which the machine was slower than usual; empty if it was not.
    """

    score: float
    rates: tuple[float, ...] = ()
    times: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    memory_mib: float = -1
    disturbed: str = ""


@dataclass(frozen=True)
class Trial:
    """Measured starts and refusals of one configuration.

    Attributes:
        refused: reason for which it cannot be measured; empty if it can.
        worse: reason for which its answers are worse; empty if they are not, `None` if that is unknown.
    """

    starts: tuple[StartFigures, ...] = ()
    refused: str = ""
    worse: str | None = None

    @property
    def counted(self) -> tuple[StartFigures, ...]:
        """Starts on an undisturbed machine."""
        return tuple(start for start in self.starts if not start.disturbed)

    @property
    def scores(self) -> tuple[float, ...]:
        """The objective of each start that counts."""
        return tuple(start.score for start in self.counted)


class State(StrEnum):
    """The standing of a configuration."""

    BEST = "best"
    TIED = "not told apart from the best"
    OPEN = "undecided"
    SLOWER = "slower"
    BREAKS = "breaks a limit"
    WORSE = "worse answers"
    REFUSED = "untestable"
    UNKNOWN = "not measured"


@dataclass(frozen=True)
class Standing:
    """One configuration among all.

    Attributes:
        why: the reason, for those that are out.
        to_best: its objective over that of the best one, with an interval; `None` if unknown.
        kept: true if it surely keeps the limits, `None` if that is undecided.
    """

    state: State
    why: str = ""
    to_best: Ratio | None = None
    kept: bool | None = True


@dataclass(frozen=True)
class Planned:
    """One start to make: of a configuration, for its speed or for its quality."""

    index: int
    number: int
    quality: bool = False


# Standings ----------------------------------------------------------------------------------------------


def standings(trials: Sequence[Trial], rules: Rules) -> list[Standing]:
    """Return the standing of each configuration."""
    found: list[Standing | None] = [_out(trial) for trial in trials]
    limits = _Limits.of(trials, rules)
    kept: dict[int, bool | None] = {}
    for index, trial in enumerate(trials):
        if found[index] is None:
            kept[index], why = limits.judge(trial)
            if kept[index] is False:
                found[index] = Standing(State.BREAKS, why, kept=False)
    running = [index for index, one in enumerate(found) if one is None]
    best = _best(trials, kept, running)
    noise = objective_noise(trials, rules)
    return [
        one if one is not None else _compared(trials, index, best, (noise, rules), kept=kept[index])
        for index, one in enumerate(found)
    ]


def objective_noise(trials: Sequence[Trial], rules: Rules) -> Noise:
    """Return the spread of the objective between starts."""
    return Noise.measured([trial.scores for trial in trials], rules.spread)


def _out(trial: Trial) -> Standing | None:
    if trial.refused:
        return Standing(State.REFUSED, trial.refused)
    if trial.worse:
        return Standing(State.WORSE, trial.worse)
    if trial.scores:
        return None
    slowed = [start.disturbed for start in trial.starts]
    why = f"the machine was disturbed in each of its {len(slowed)} starts: {slowed[0]}" if slowed else ""
    return Standing(State.UNKNOWN, why)


def _best(trials: Sequence[Trial], kept: Mapping[int, bool | None], running: Sequence[int]) -> int:
    """Return the configuration with the highest objective; -1 if none is left.

    One that surely keeps the limits goes before all that may break one.
    """
    sure = [index for index in running if kept[index]]
    return max(sure or running, key=lambda index: _mean(trials[index].scores), default=-1)


def _compared(
    trials: Sequence[Trial], index: int, best: int, by: tuple[Noise, Rules], *, kept: bool | None
) -> Standing:
    noise, rules = by
    if index == best:
        return Standing(State.BEST, kept=kept)
    pair = trials[index].scores, trials[best].scores
    ratio = ratio_of(*pair, noise, rules.error)
    error = rules.error
    if index == OWN:  # the best of many is lucky: it must beat the recipe by more than one rival would
        error /= LOOKS * max(1, sum(bool(trial.scores) for trial in trials) - 1)
    if ratio_of(*pair, noise, error).high < 1:
        return Standing(State.SLOWER, f"{ratio} against the best", ratio, kept)
    sure = ratio.high <= 1 + rules.within and (index != OWN or ratio.low >= 1 - rules.within)
    return Standing(State.TIED if sure else State.OPEN, "", ratio, kept)


@dataclass(frozen=True)
class _Limits:
    """Limits of times and memory, with the spread of times between starts."""

    rules: Rules
    noise: Mapping[str, Noise]

    @classmethod
    def of(cls, trials: Sequence[Trial], rules: Rules) -> _Limits:
        noise = {}
        for name in rules.limits:
            by_level = [
                [math.log(start.times[name][level]) for start in trial.counted]
                for trial in trials
                for level in range(len(trial.counted[0].times[name]) if trial.counted else 0)
            ]
            noise[name] = Noise.measured(by_level, SPREAD_OF_TIMES)
        return cls(rules, noise)

    def judge(self, trial: Trial) -> tuple[bool | None, str]:
        """Return true if *trial* surely keeps all limits, false with a reason if it surely breaks one."""
        reserve, known = self.rules.reserve_mib, [s.memory_mib for s in trial.counted if s.memory_mib >= 0]
        if reserve and known and min(known) < reserve:
            return False, f"{min(known) / 1024:.1f} GiB of memory stay available, below {reserve / 1024:.1f}"
        sure = True
        for name, most in self.rules.limits.items():
            for level in range(len(trial.counted[0].times[name])):
                logs = [math.log(start.times[name][level]) for start in trial.counted]
                width = self.noise[name].half_width(self.rules.error, len(logs))
                if _mean(logs) - width > math.log(most):
                    return False, f"{name.upper()} {math.exp(_mean(logs)):.2f} s, above {most:g} s"
                sure = sure and _mean(logs) + width <= math.log(most)
        return (True if sure else None), ""


# The next start -----------------------------------------------------------------------------------------


def next_start(trials: Sequence[Trial], rules: Rules, *, pairs: Mapping[int, int]) -> Planned | None:
    """Return the next start to make; `None` once everything is decided, or cannot be.

    Args:
        trials: all configurations, the recipe as it is first.
        rules: of the search.
        pairs: the configuration without speculation, for each that speculates.
    """
    wanted = _first(trials, rules) or _further(trials, rules, pairs)
    if wanted:
        return _fewest(trials, wanted)
    if rules.quality and (unchecked := _unchecked(trials, rules)) is not None:
        return Planned(unchecked, 0, quality=True)
    named = [] if at_grid_cost(trials, rules) else _unrepeated(trials, rules, pairs)
    return _fewest(trials, named) if named else None


def grid_cost(configurations: int, starts: int) -> int:
    """Return the starts that halving may take: those of a grid with *starts* for each configuration."""
    return max(starts, LEAST) * configurations


def at_grid_cost(trials: Sequence[Trial], rules: Rules, reserved: int = 0) -> bool:
    """Tell if halving has made all starts that it may, but for *reserved* ones.

    Starts on a disturbed machine are not counted, since the grid repeats them too.
    """
    tested = [one for one in trials if not one.refused]
    made = sum(len(one.counted) for one in tested)
    return rules.strategy == "halving" and made + reserved >= grid_cost(len(tested), rules.starts)


def _first(trials: Sequence[Trial], rules: Rules) -> list[int]:
    """Return configurations without the starts that each gets, whatever its figures are.

    Starts on a disturbed machine are repeated, but not for ever.
    """
    least = rules.starts if rules.strategy == "grid" else 1
    most = max(2 * least, rules.most_starts)
    return [
        index
        for index, one in enumerate(trials)
        if not one.refused and len(one.counted) < least and len(one.starts) < most
    ]


def _further(trials: Sequence[Trial], rules: Rules, pairs: Mapping[int, int]) -> list[int]:
    """Return configurations that may be better than the best one so far, and that one."""
    reserved = len(_unrepeated(trials, rules, pairs))
    if rules.strategy == "grid" or at_grid_cost(trials, rules, reserved):
        return []
    found = standings(trials, rules)
    unsure = [i for i, one in enumerate(found) if one.state is State.OPEN]
    best = [i for i, one in enumerate(found) if one.state is State.BEST and (unsure or one.kept is None)]
    # The recipe and its best rival decide the answer, so both may be started twice as often as others.
    most = {
        index: rules.most_starts * (2 if index == OWN or one.state is State.BEST else 1)
        for index, one in enumerate(found)
    }
    left = [i for i in unsure if len(trials[i].starts) < most[i]]
    return [
        *left,
        *(i for i in best if len(trials[i].starts) < most[i] and (left or found[i].kept is None)),
    ]


def _fewest(trials: Sequence[Trial], wanted: Sequence[int]) -> Planned:
    """Return the next start of those with the fewest; each round runs against the one before it.

    So drift, for example of the temperature, affects early and late ones alike.
    """
    number = min(len(trials[index].starts) for index in wanted)
    due = sorted(index for index in wanted if len(trials[index].starts) == number)
    return Planned(due[0] if number % 2 == 0 else due[-1], number)


def _unchecked(trials: Sequence[Trial], rules: Rules) -> int | None:
    """Return a configuration that may be recommended and whose quality is unknown; the recipe's own first."""
    rivals = contenders(trials, rules)
    if not rivals or OWN in rivals:
        return None
    due = [index for index in (OWN, *rivals[:MOST_CHECKED]) if trials[index].worse is None]
    return next((index for index in due if not trials[index].refused), None)


def contenders(trials: Sequence[Trial], rules: Rules) -> list[int]:
    """Return the best configuration and those not told apart from it, the highest objective first.

    Those whose limits are undecided are left out where there are others.
    """
    found = standings(trials, rules)
    alive = [i for i, one in enumerate(found) if one.state in {State.BEST, State.TIED, State.OPEN}]
    sure = [index for index in alive if found[index].kept]
    return sorted(sure, key=lambda index: (-_mean(trials[index].scores), index))


def _named(trials: Sequence[Trial], rules: Rules, pairs: Mapping[int, int]) -> list[int]:
    """Return configurations that the result compares: recommended, the recipe's own, without speculation."""
    rivals = contenders(trials, rules)
    if not rivals:
        return []
    chosen = recommended(rivals)
    named = {chosen, OWN, *(pairs[i] for i in (chosen, OWN) if i in pairs)}
    return sorted(index for index in named if trials[index].scores and not trials[index].refused)


def _unrepeated(trials: Sequence[Trial], rules: Rules, pairs: Mapping[int, int]) -> list[int]:
    """Return configurations that the result compares and that were started too rarely for that."""
    return [index for index in _named(trials, rules, pairs) if len(trials[index].starts) < LEAST]


def recommended(rivals: Sequence[int]) -> int:
    """Return the configuration to serve: the recipe's own unless something is surely better."""
    return OWN if OWN in rivals else rivals[0]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
