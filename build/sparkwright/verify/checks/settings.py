"""Comparison of settings of a recipe: each configuration is an arm, started again while it may be the best.

A start is measured as in `compare`, and its value is the mean over the concurrencies. Before another
configuration is recommended than the recipe as it is, its answers are judged beside the recipe's: known
facts, broken text, tasks with one right answer, and greedy answers with log-probabilities. Greedy answers may
differ where the settings change the arithmetic on purpose, such as the KV cache's type.

An arm is left out once it is surely slower than the best one, or surely no better by more than `WITHIN`; the
others are started again, in rounds of which each runs against the one before, so that drift, for example of
the temperature, affects early and late ones alike. All arms are taken to have the same spread between starts;
until arms were started several times it is assumed, with the weight of a few starts, so that no single start
decides by luck.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean

import msgspec

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context
from sparkwright.verify.checks import coherence, lossless
from sparkwright.verify.checks.common import Check, Values, finding
from sparkwright.verify.checks.compare import (
    LEVELS,
    NAME,
    Place,
    judge_quality,
    ratio_values,
    speed_of,
    start_cells,
)
from sparkwright.verify.checks.figures import figures
from sparkwright.verify.checks.machine import disturbances
from sparkwright.verify.checks.triage import CheckedCells, troubles
from sparkwright.verify.compare import SPREAD, Ratio, Spread, ratio_of
from sparkwright.verify.rate_search import Slo
from sparkwright.verify.space import Configuration

# Which may be the best, and which is started next -----------------------------------------------------------

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


# Their cells, answers and findings ------------------------------------------------------------------------

STARTS = 3
"""Starts of a configuration, as a mean over all: those of a grid."""
RESERVE_GIB = 4.0
"""Memory of the machine that a configuration must leave available."""
SHOWN_ERROR = 0.025
"""Chance that the truth lies beyond one end of an interval that is shown."""
BEST = "to serve"
"""Name of the measured value that holds the arm to serve."""
STANDING = "standing"
_QUALITY = 100  # number of the start at which answers are judged: its cells differ from those of speed
_BAD = (Verdict.FAIL, Verdict.INVALID, Verdict.INCONCLUSIVE)
_ANSWERS = "greedy answers are the same up to near ties"
# Settings that leave the arithmetic of the target model as it is.
_SAME_ARITHMETIC = {
    "num-speculative-tokens",
    "max-num-seqs",
    "max-num-batched-tokens",
    "max-model-len",
    "gpu-memory-utilization",
    "enable-prefix-caching",
    "async-scheduling",
}


def settings_check(
    configurations: Sequence[Configuration],
    levels: Sequence[int] = (),
    slo: Slo | None = None,
    *,
    simulated: bool = False,
) -> Check:
    """Return the check that compares *configurations*, the recipe as it is first.

    Each must keep *slo* at each concurrency, the usual ones without *levels*. Speed and memory of servers
    that are *simulated* are not the machine's.
    """
    comparison = SettingsComparison(tuple(configurations), tuple(levels) or LEVELS, slo, simulated)
    return Check(NAME, comparison.cells, comparison.judge)


def arm_of(configurations: Sequence[Configuration], index: int) -> str:
    """Return the arm's name: that of the server under test for the recipe as it is."""
    return "main" if index == OWN else configurations[index].key


@dataclass(frozen=True, eq=False)
class SettingsComparison:
    """A comparison of configurations, the recipe as it is first."""

    configurations: tuple[Configuration, ...]
    levels: tuple[int, ...] = LEVELS
    slo: Slo | None = None
    simulated: bool = False
    _known: dict[object, list[Trial]] = field(default_factory=dict)  # of the observations seen last
    _answers: dict[str, Cell] = field(default_factory=dict)  # the same for every configuration

    def cells(self, context: Context, seen: Mapping[str, Observation]) -> Iterator[Cell]:
        """Yield the cells that were measured, and those of the next start; at first, of one start of each."""
        yield from (one.cell for one in seen.values())
        trials = self.trials(context, seen)
        starts = [Planned(i, 0) for i, one in enumerate(trials) if not (one.starts or one.out)]
        if not starts and (planned := next_start(trials, STARTS, quality=not context.made_up)):
            starts = [planned]
        for start in starts:
            arm = self._arm(start.index)
            cells = start_cells(context, arm, start.number, self.levels)
            if start.quality:
                cells = (
                    msgspec.structs.replace(cell, check=NAME, name=name, arm=arm, boot=_QUALITY)
                    for name, cell in self._of_quality(context).items()
                )
            yield from (cell for cell in cells if cell.key not in seen)

    def _arm(self, index: int) -> str:
        return arm_of(self.configurations, index)

    def _of_quality(self, context: Context) -> Mapping[str, Cell]:
        """Return the cells by which answers are judged, of the server under test, by their names here."""
        if not self._answers:
            cells = [*coherence.CHECK.cells(context), *lossless.CHECK.cells(context)]
            self._answers.update({f"{one.check} {one.name}": one for one in cells if one.arm == "main"})
        return self._answers

    # What is known of each --------------------------------------------------------------------------------

    def trials(self, context: Context, seen: Mapping[str, Observation]) -> list[Trial]:
        """Return what *seen* and the facts of starts say of each configuration."""
        refused = {place: facts.refused for place, facts in context.facts.items() if facts.refused}
        state = (tuple(seen), tuple(refused.items()))
        if state not in self._known:
            starts: dict[Place, list[Observation]] = {}
            for one in seen.values():
                starts.setdefault((one.cell.arm, one.cell.boot), []).append(one)
            self._known.clear()
            self._known[state] = [
                self._trial(context, index, starts, refused) for index in range(len(self.configurations))
            ]
        return self._known[state]

    def _trial(
        self,
        context: Context,
        index: int,
        starts: Mapping[Place, Sequence[Observation]],
        refused: Mapping[Place, str],
    ) -> Trial:
        arm, scores, seen, number = self._arm(index), list[float](), list[Observation](), 0
        while True:
            found = starts.get((arm, number), ())
            out = refused.get((arm, number)) or next((why for o in found if (why := _trouble(o))), "")
            if out or len(found) < len(self.levels):
                break
            seen += found
            number += 1
            if self.simulated or not any(map(disturbances, found)):
                scores.append(math.fsum(map(speed_of, found)) / len(found))
        worse, remarks, checked = self._quality(context, index, starts)
        out = out or self._breaks(seen, context.profile.speed) or refused.get((arm, _QUALITY), "") or worse
        if not out and number and not scores and number >= MOST_STARTS:
            out = f"the machine was disturbed in each of its {number} starts: {disturbances(seen[0])[0]}"
        return Trial(tuple(scores), number, out, checked, remarks)

    def _breaks(self, seen: Sequence[Observation], speed: float) -> str:
        """Return the limit that is broken; empty if all are kept."""
        left = [one.memory_available_mib for o in seen for one in o.host if one.memory_available_mib >= 0]
        if left and not self.simulated and min(left) < RESERVE_GIB * 1024:
            return f"{min(left) / 1024:.1f} GiB of memory stay available, below {RESERVE_GIB:g}"
        if self.slo is None:
            return ""
        for name in dict.fromkeys(o.cell.name for o in seen):
            samples = [one for o in seen if o.cell.name == name for one in o.samples if one.counted]
            good = sum(self.slo.met_by(one, speed) for one in samples)
            if good < self.slo.share * len(samples):
                return f"{good} of {len(samples)} requests at {name} keep {self.slo}"
        return ""

    def _quality(
        self, context: Context, index: int, starts: Mapping[Place, Sequence[Observation]]
    ) -> tuple[str, tuple[str, ...], bool]:
        """Return why a configuration's answers are worse, what differs and may, and if they were judged."""
        if (self._arm(index), _QUALITY) not in starts:
            return "", (), False
        planned = self._of_quality(context)

        def answers_of(arm: str) -> dict[str, Observation]:
            """Return the answers by the cells of the checks that judge them."""
            seen = ((planned[o.cell.name], o) for o in starts.get((arm, _QUALITY), ()))
            return {cell.key: msgspec.structs.replace(o, cell=cell) for cell, o in seen}

        seen, own = answers_of(self._arm(index)), answers_of(self._arm(OWN))
        if not (len(seen) == len(planned) or any(map(_trouble, seen.values()))):
            return "", (), False
        findings = coherence.CHECK.judge(context, list(seen.values()))
        if index != OWN and (keys := tuple(key for key in seen if key in own)):
            findings += judge_quality(own, seen, keys)
        bad = [one for one in findings if one.verdict in _BAD]
        meant = set(self.configurations[index].settings) - _SAME_ARITHMETIC
        allowed = [one for one in bad if meant and one.name == _ANSWERS]
        worse = next((f"{one.name}: {one.verdict}: {one.cause}" for one in bad if one not in allowed), "")
        return worse, tuple(f"{one.cause} (its settings change the arithmetic)" for one in allowed), True

    # Findings ---------------------------------------------------------------------------------------------

    def judge(self, context: Context, checked: CheckedCells) -> list[Finding]:
        """Return the finding on what to serve, and one for each configuration, the best first."""
        trials = self.trials(context, {one.cell.key: one for one in checked.made})
        spread, own = spread_of(trials), trials[OWN].scores
        ratios = {
            index: ratio_of(one.scores, own, spread, SHOWN_ERROR, SHOWN_ERROR)
            for index, one in enumerate(trials)
            if index != OWN and one.scores and own
        }
        order = sorted(range(len(trials)), key=lambda i: (bool(trials[i].out), -trials[i].mean))
        rows = [self._row(context, index, trials, ratios.get(index), checked.made) for index in order]
        return [self._best(trials, ratios), *rows]

    def _best(self, trials: Sequence[Trial], ratios: Mapping[int, Ratio]) -> Finding:
        """Return the finding on the configuration to serve."""
        rivals = contenders(trials)
        chosen, names = recommended(rivals), [one.name for one in self.configurations]
        others = [index for index in rivals if index != chosen]
        if chosen is None:
            first = next((one.out for one in trials if one.out), "nothing was measured")
            cause = f"none of {len(trials)} configurations can be recommended; the first: {first}"
        elif chosen != OWN:
            cause = names[chosen]
            cause += f": {ratios[chosen].change} against the recipe as it is" if chosen in ratios else ""
            if why := trials[OWN].out:
                cause += f"; the recipe as it is cannot be recommended: {why}"
            if others:
                cause += f"; not told apart from {', '.join(names[index] for index in others[:3])}"
        elif others and others[0] in ratios:
            best = f"{names[others[0]]} is {ratios[others[0]].change}"
            cause = f"the recipe as it is: no difference was shown, the best of the others, {best}"
        else:
            cause = "the recipe as it is: every other configuration is surely slower, or left out"
        measured: Values = {
            BEST: "" if chosen is None else self._arm(chosen),
            "starts": sum(one.starts for one in trials),
            "spread between starts %": round(100 * spread_of(trials).deviation, 2),
        }
        verdict = Verdict.FAIL if chosen is None else Verdict.PASS
        return finding(NAME, "settings.best", verdict, cause, measured=measured)

    def _row(
        self,
        context: Context,
        index: int,
        trials: Sequence[Trial],
        ratio: Ratio | None,
        made: Sequence[Observation],
    ) -> Finding:
        """Return the finding on one configuration: not applicable where it is left out."""
        trial, state = trials[index], standings(trials)[index]
        measured: Values = {STANDING: str(state), "starts": trial.starts}
        measured |= {} if ratio is None else ratio_values(ratio)
        arm, speed = self._arm(index), context.profile.speed
        for level in self.levels:
            cells = [
                figures(o, speed)
                for o in made
                if o.cell.arm == arm and o.cell.name == f"c={level}" and not _trouble(o)
            ]
            if cells:
                measured[f"tok/s c={level}"] = round(fmean(one.whole_tok_s for one in cells), 2)
                measured[f"TTFT p95 ms c={level}"] = round(fmean(one.ttft_ms.p95 for one in cells), 1)
        verdict = Verdict.NOT_APPLICABLE if trial.out or not trial.starts else Verdict.PASS
        cause = trial.out or str(state)
        if ratio is not None and not trial.out:
            cause += f", {ratio.change} against the recipe as it is"
        told = {"name": self.configurations[index].name}
        return finding(
            NAME, "settings.arm", verdict, cause, measured=measured, warnings=trial.remarks, told=told
        )


def _trouble(observation: Observation) -> str:
    """Return the reason for which a cell does not count; empty if it does."""
    return next((one.cause for one in troubles(observation)), "")
