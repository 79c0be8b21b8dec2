"""Comparison of settings of a recipe: each configuration is an arm, and `ranking` says what is started next.

A start is measured at each concurrency, and its value is the mean logarithm of the tokens a second there.
Before another configuration is recommended than the recipe as it is, its answers are judged beside the
recipe's: known facts, broken text, tasks with one right answer, and greedy answers with log-probabilities.
Greedy answers may differ where the settings change the arithmetic on purpose, such as the KV cache's type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context
from sparkwright.verify.checks import coherence, lossless
from sparkwright.verify.checks.common import Check, Values, finding
from sparkwright.verify.checks.figures import figures
from sparkwright.verify.checks.machine import disturbances
from sparkwright.verify.checks.quality import judge_quality
from sparkwright.verify.checks.triage import CheckedCells, troubles
from sparkwright.verify.compare import Ratio, ratio_of
from sparkwright.verify.ranking import (
    MOST_STARTS,
    OWN,
    Planned,
    State,
    Trial,
    contenders,
    next_start,
    recommended,
    spread_of,
    standings,
    starts_left,
)
from sparkwright.verify.slo import Slo
from sparkwright.verify.space import Configuration
from sparkwright.verify.statistics import share_interval

NAME = "settings"
LEVELS = (1, 8, 32)
STARTS = 3
"""Starts of a configuration, as a mean over all: those of a grid."""
RESERVE_GIB = 4.0
"""Memory of the machine that a configuration must leave available."""
ERROR = 0.025
"""Chance that the truth lies beyond one end of an interval that is shown."""
BEST = "to serve"
"""Name of the measured value that holds the arm to serve."""
STANDING = "standing"
_QUALITY = 100  # number of the start at which answers are judged: its cells differ from those of speed
_REQUESTS, _OF_EACH, _TOKENS = 12, 2, 256
_STAGGER_S = 0.02
_BAD = (Verdict.FAIL, Verdict.INVALID, Verdict.INCONCLUSIVE)
_ANSWERS = "greedy answers are the same up to near ties"
# Settings that leave the arithmetic of the target model as it is.
_SAME_ARITHMETIC = {
    "method",
    "num-speculative-tokens",
    "max-num-seqs",
    "max-num-batched-tokens",
    "max-model-len",
    "gpu-memory-utilization",
    "enable-prefix-caching",
    "async-scheduling",
}


def settings_check(
    configurations: Sequence[Configuration], levels: tuple[int, ...], slo: Slo | None, *, simulated: bool
) -> Check:
    """Return the check that compares *configurations*, the recipe as it is first.

    Args:
        configurations: of one recipe.
        levels: requests at a time.
        slo: limits that one must keep, at each concurrency; none if `None`.
        simulated: the servers are simulators, whose speed and memory are not the machine's.
    """
    comparison = SettingsComparison(tuple(configurations), levels, slo, simulated)
    return Check(NAME, comparison.cells, comparison.judge)


def arm_of(configurations: Sequence[Configuration], index: int) -> str:
    """Return the arm's name: that of the server under test for the recipe as it is."""
    return "main" if index == OWN else configurations[index].key


@dataclass(frozen=True, eq=False)
class SettingsComparison:
    """A comparison of configurations, the recipe as it is first."""

    configurations: tuple[Configuration, ...]
    levels: tuple[int, ...]
    slo: Slo | None = None
    simulated: bool = False
    _known: dict[object, list[Trial]] = field(default_factory=dict)  # of the observations seen last

    def cells(self, context: Context, seen: Mapping[str, Observation]) -> Iterator[Cell]:
        """Yield the cells that were measured, and those of the next start; at first, of one start of each."""
        yield from (one.cell for one in seen.values())
        trials = self.trials(context, seen)
        starts = [Planned(i, 0) for i, one in enumerate(trials) if not (one.starts or one.out)]
        if not starts and (planned := next_start(trials, STARTS, quality=not context.made_up)):
            starts = [planned]
        for start in starts:
            yield from (cell for cell in self._cells_of(context, start) if cell.key not in seen)

    def _arm(self, index: int) -> str:
        return arm_of(self.configurations, index)

    # Cells ------------------------------------------------------------------------------------------------

    def _cells_of(self, context: Context, start: Planned) -> Iterator[Cell]:
        """Yield the cells of a start: the same prompts for each configuration and each start."""
        arm = self._arm(start.index)
        if start.quality:
            yield from self._quality_cells(context, arm)
            return
        for level in self.levels:
            requests = max(_REQUESTS, _OF_EACH * level)
            yield context.cell(
                NAME,
                f"c={level}",
                context.prompts_in_turn(requests, f"{NAME} c={level}"),
                arm=arm,
                boot=start.number,
                tags={"level": str(level)},
                concurrency=level,
                warm_up=level,
                max_tokens=min(_TOKENS, context.profile.max_tokens),
                stagger_s=_STAGGER_S,
            )

    def _quality_cells(self, context: Context, arm: str) -> Iterator[Cell]:
        for cell in _of_quality(context):
            name = f"{cell.check} {cell.name}"
            yield msgspec.structs.replace(cell, check=NAME, name=name, arm=arm, boot=_QUALITY)

    # What is known of each --------------------------------------------------------------------------------

    def trials(self, context: Context, seen: Mapping[str, Observation]) -> list[Trial]:
        """Return what *seen* and the facts of starts say of each configuration."""
        refused = {place: facts.refused for place, facts in context.facts.items() if facts.refused}
        state = (tuple(seen), tuple(refused.items()))
        if state not in self._known:
            starts: dict[tuple[str, int], list[Observation]] = {}
            for one in seen.values():
                starts.setdefault((one.cell.arm, one.cell.boot), []).append(one)
            qualities = self._qualities(context, starts)
            self._known.clear()
            self._known[state] = [
                self._trial(context, (index, qualities.get(index)), starts, refused)
                for index in range(len(self.configurations))
            ]
        return self._known[state]

    def _trial(
        self,
        context: Context,
        which: tuple[int, JudgedAnswers | None],
        starts: Mapping[tuple[str, int], Sequence[Observation]],
        refused: Mapping[tuple[str, int], str],
    ) -> Trial:
        index, answers = which
        arm, speed = self._arm(index), context.profile.speed
        scores, seen, out = list[float](), list[Observation](), ""
        number = 0
        while True:
            found = starts.get((arm, number), ())
            out = refused.get((arm, number)) or next((why for o in found if (why := _trouble(o))), "")
            if out or len(found) < len(self.levels):
                break
            seen += found
            number += 1
            if self.simulated or not any(map(disturbances, found)):
                rates = [_rate(o, speed) for o in found]
                scores.append(math.fsum(map(math.log, rates)) / len(rates))
        keeps, breaks = self._limits(seen, speed)
        out = out or breaks or refused.get((arm, _QUALITY), "") or (answers.worse if answers else "")
        if not out and number and not scores and number >= MOST_STARTS:
            out = f"the machine was disturbed in each of its {number} starts: {disturbances(seen[0])[0]}"
        remarks = answers.remarks if answers else ()
        return Trial(tuple(scores), number, out, keeps, checked=answers is not None, remarks=remarks)

    def _limits(self, seen: Sequence[Observation], speed: float) -> tuple[bool, str]:
        """Return whether the objective's limits are kept, and the reason if one is surely broken."""
        left = [one.memory_available_mib for o in seen for one in o.host if one.memory_available_mib >= 0]
        if left and not self.simulated and min(left) < RESERVE_GIB * 1024:
            gib = min(left) / 1024
            return False, f"{gib:.1f} GiB of memory stay available, below {RESERVE_GIB:g}"
        keeps = True
        if self.slo is None:
            return keeps, ""
        for name in dict.fromkeys(o.cell.name for o in seen):
            samples = [one for o in seen if o.cell.name == name for one in o.samples if one.counted]
            good = sum(self.slo.met_by(one, speed) for one in samples)
            if share_interval(good, len(samples))[1] < self.slo.share:
                return False, f"{good} of {len(samples)} requests at {name} keep {self.slo}"
            keeps = keeps and good >= self.slo.share * len(samples)
        return keeps, ""

    def _qualities(
        self, context: Context, starts: Mapping[tuple[str, int], Sequence[Observation]]
    ) -> dict[int, JudgedAnswers]:
        """Return the answers of each configuration that they were judged of."""
        planned = {f"{cell.check} {cell.name}": cell for cell in _of_quality(context)}
        found, own = dict[int, JudgedAnswers](), dict[str, Observation]()
        for index in range(len(self.configurations)):
            seen = {}
            for one in starts.get((self._arm(index), _QUALITY), ()):
                cell = planned[one.cell.name]
                seen[cell.key] = msgspec.structs.replace(one, cell=cell)
            if len(seen) == len(planned) or any(map(_trouble, seen.values())):
                found[index] = self._judged(context, index, seen, own)
            if index == OWN:
                own = seen
        return found

    def _judged(
        self, context: Context, index: int, seen: dict[str, Observation], own: dict[str, Observation]
    ) -> JudgedAnswers:
        """Return the answers in *seen* beside those of the recipe as it is."""
        findings = coherence.CHECK.judge(context, list(seen.values()))
        if keys := tuple(key for key in seen if key in own):
            findings += judge_quality([own], [seen], keys)
        changed = set(self.configurations[index].settings) - _SAME_ARITHMETIC
        bad = [one for one in findings if one.verdict in _BAD]
        meant = [one for one in bad if changed and one.name == _ANSWERS]
        worse = next((f"{one.name}: {one.verdict}: {one.cause}" for one in bad if one not in meant), "")
        return JudgedAnswers(
            worse, tuple(f"{one.cause} (its settings change the arithmetic)" for one in meant)
        )

    # Findings ---------------------------------------------------------------------------------------------

    def judge(self, context: Context, checked: CheckedCells) -> list[Finding]:
        """Return the finding on what to serve, and one for each configuration, the best first."""
        seen = {one.cell.key: one for one in checked.made}
        trials = self.trials(context, seen)
        spread, own = spread_of(trials), trials[OWN].scores
        ratios = {
            index: ratio_of(one.scores, own, spread, ERROR, ERROR)
            for index, one in enumerate(trials)
            if index != OWN and one.scores and own
        }
        order = sorted(range(len(trials)), key=lambda i: (bool(trials[i].out), -trials[i].mean))
        rows = [self._row(context, index, trials, ratios.get(index), checked.made) for index in order]
        return [self._best(trials, ratios), *rows]

    def _best(self, trials: Sequence[Trial], ratios: Mapping[int, Ratio]) -> Finding:
        """Return the finding on the configuration to serve."""
        found, rivals = standings(trials), contenders(trials)
        chosen, others = recommended(rivals), [index for index in rivals if index != recommended(rivals)]
        names = [one.name for one in self.configurations]
        verdict = Verdict.FAIL if chosen is None else Verdict.PASS
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
        if State.OPEN in found and starts_left(trials, STARTS) <= 0:
            cause += f"; ended undecided at {sum(one.starts for one in trials)} starts, those of a grid"
        spread = spread_of(trials)
        measured: Values = {
            BEST: "" if chosen is None else self._arm(chosen),
            "starts": sum(one.starts for one in trials),
            "spread between starts %": round(100 * spread.deviation, 2),
        }
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
        if ratio is not None:
            measured |= {
                "speed over the baseline's": round(ratio.value, 4),
                "low": round(ratio.low, 4),
                "high": round(ratio.high, 4),
            }
        arm, speed = self._arm(index), context.profile.speed
        for level in self.levels:
            cells = [o for o in made if o.cell.arm == arm and o.cell.name == f"c={level}" and not _trouble(o)]
            if cells:
                late = [figures(o, speed).ttft_ms.p95 for o in cells]
                rates = [_rate(o, speed) for o in cells]
                measured[f"tok/s c={level}"] = round(math.fsum(rates) / len(rates), 2)
                measured[f"TTFT p95 ms c={level}"] = round(math.fsum(late) / len(late), 1)
        verdict = Verdict.NOT_APPLICABLE if trial.out or not trial.starts else Verdict.PASS
        cause = trial.out or str(state)
        if ratio is not None and not trial.out:
            cause += f", {ratio.change} against the recipe as it is"
        told = {"name": self.configurations[index].name}
        return finding(
            NAME, "settings.arm", verdict, cause, measured=measured, warnings=trial.remarks, told=told
        )


@dataclass(frozen=True)
class JudgedAnswers:
    """The answers of one configuration.

    Attributes:
        worse: reason for which they are worse, or could not be judged; empty if they are as good.
        remarks: what differs and is allowed to.
    """

    worse: str
    remarks: tuple[str, ...] = ()


def _of_quality(context: Context) -> list[Cell]:
    """Return the cells by which answers are judged, of the server under test."""
    cells = [*coherence.CHECK.cells(context), *lossless.CHECK.cells(context)]
    return [cell for cell in cells if cell.arm == "main"]


def _trouble(observation: Observation) -> str:
    """Return the reason for which a cell does not count; empty if it does."""
    return next((one.cause for one in troubles(observation)), "")


def _rate(observation: Observation, speed: float) -> float:
    """Return tokens a second of all requests, in the server's time."""
    found = figures(observation, speed)
    return found.steady_tok_s if math.isfinite(found.steady_tok_s) else found.whole_tok_s
