"""The result of a search: a ranking, the configuration to serve, and where speculation stops paying."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sparkwright.engine.observations import Observation
from sparkwright.verify.checks.figures import figures
from sparkwright.verify.tune.search import Known, pairs_of, rules_of
from sparkwright.verify.tune.space import Configuration
from sparkwright.verify.tune.strategy import (
    OWN,
    Noise,
    Ratio,
    Rules,
    Standing,
    State,
    Trial,
    at_grid_cost,
    contenders,
    objective_noise,
    ratio_of,
    recommended,
    standings,
)

ERROR = 0.025
"""Chance that the truth lies beyond one end of an interval that is shown."""
_ORDER = tuple(State)
_BOUNDED = "; the search ended at the grid's number of starts"


class Outcome(StrEnum):
    """The outcome of a search."""

    OTHER = "another configuration than the recipe as it is"
    KEEP = "the recipe as it is"
    NONE = "no configuration can be recommended"


@dataclass(frozen=True)
class LevelFigures:
    """Figures of one configuration at one concurrency, means over starts; times in seconds.

    Attributes:
        rate: the objective's tokens a second of all requests together.
        on_front: no configuration gives more tokens at a shorter time for each of them.
    """

    level: int
    rate: float
    ttft_p50: float
    ttft_p95: float
    tpot_p50: float
    on_front: bool = False


@dataclass(frozen=True)
class Row:
    """One configuration in the ranking.

    Attributes:
        to_own: its objective over that of the recipe as it is; `None` if unknown.
        checked: its quality was measured.
    """

    index: int
    configuration: Configuration
    standing: Standing
    trial: Trial
    to_own: Ratio | None
    levels: tuple[LevelFigures, ...] = ()
    remarks: tuple[str, ...] = ()
    checked: bool = False


@dataclass(frozen=True)
class Payoff:
    """Speed with speculation over that without, at one concurrency."""

    level: int
    ratio: Ratio


@dataclass(frozen=True)
class Speculation:
    """Speed of one configuration beside the same without speculation, by concurrency.

    Attributes:
        without: name of the one that differs by having no speculation.
    """

    configuration: str
    without: str
    payoffs: tuple[Payoff, ...]
    said: str


@dataclass(frozen=True)
class TuneResult:
    """The result of a search.

    Attributes:
        chosen: the row to serve; `None` if none can be recommended.
        speculation: of the configuration to serve and of the recipe as it is, as far as they were measured
            with it and without.
        open: names of configurations that are not told apart from the chosen one.
        within: share by which each of those may differ from the chosen one at the most; 0 if there are none.
        bounded: the search ended at the grid's number of starts, with something undecided.
    """

    outcome: Outcome
    said: str
    rows: tuple[Row, ...]
    chosen: Row | None
    speculation: tuple[Speculation, ...]
    starts: int
    noise: Noise
    open: tuple[str, ...]
    within: float = 0.0
    bounded: bool = False


def conclude_search(known: Known) -> TuneResult:
    """Return the result of what is known, also of an unfinished search."""
    trials, rules = known.trials(), rules_of(known.search)
    found, rivals = standings(trials, rules), contenders(trials, rules)
    noise = objective_noise(trials, rules)
    rows = _with_front(_rows(known, trials, found, noise))
    by_index = {row.index: row for row in rows}
    chosen = by_index[recommended(rivals)] if rivals else None
    others = [by_index[index] for index in rivals if chosen and index != chosen.index]
    within = _within(
        [row.to_own if chosen and chosen.index == OWN else row.standing.to_best for row in others]
    )
    bounded = any(one.state is State.OPEN for one in found) and at_grid_cost(trials, rules)
    outcome, said = _said(chosen, by_index, rivals)
    said += _equal(len(others), within) + (_BOUNDED if bounded else "")
    return TuneResult(
        outcome=outcome,
        said=said,
        rows=rows,
        chosen=chosen,
        speculation=_speculation(known, trials, chosen, rules),
        starts=len(known.facts),
        noise=noise,
        open=tuple(row.configuration.name for row in others),
        within=within,
        bounded=bounded,
    )


# The ranking --------------------------------------------------------------------------------------------


def _rows(known: Known, trials: Sequence[Trial], found: Sequence[Standing], noise: Noise) -> list[Row]:
    own, qualities = trials[OWN].scores, known.qualities()
    rows = []
    for index, configuration in enumerate(known.search.space.configurations):
        trial, quality = trials[index], qualities.get(configuration.key)
        ratio = ratio_of(trial.scores, own, noise, ERROR) if trial.scores and own and index != OWN else None
        rows.append(
            Row(
                index, configuration, found[index], trial, ratio,
                _levels(known, configuration, trial), quality.remarks if quality else (), quality is not None,
            )
        )  # fmt: skip
    return sorted(rows, key=_rank)


def _rank(row: Row) -> tuple[int, float, int]:
    """Order by the objective; what is out for another reason than its speed stands behind."""
    out = row.standing.state not in {State.BEST, State.TIED, State.OPEN, State.SLOWER}
    score = math.fsum(row.trial.scores) / len(row.trial.scores) if row.trial.scores else -math.inf
    return (_ORDER.index(row.standing.state) if out else 0, -score, row.index)


def _levels(known: Known, configuration: Configuration, trial: Trial) -> tuple[LevelFigures, ...]:
    """Return means over the starts that count, level by level."""
    speed = known.search.options.profile.speed
    starts = [
        known.seen(known.cells(configuration.key, number))
        for number, start in enumerate(trial.starts)
        if not start.disturbed
    ]
    made = []
    for position, level in enumerate(known.search.options.levels if starts else ()):
        seen = [start[position] for start in starts]
        rates = [start.rates[position] for start in trial.counted]
        made.append(_level(level, seen, rates, speed))
    return tuple(made)


def _level(level: int, seen: Sequence[Observation], rates: Sequence[float], speed: float) -> LevelFigures:
    of = [figures(one, speed) for one in seen]
    times = (
        [one.ttft_ms.p50 for one in of],
        [one.ttft_ms.p95 for one in of],
        [one.tpot_ms.p50 for one in of],
    )
    first, late, each = (math.fsum(values) / len(values) / 1000 for values in times)
    return LevelFigures(level, math.fsum(rates) / len(rates), first, late, each)


def _with_front(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Mark the figures that no configuration in the race beats in both throughput and time per token."""
    import dataclasses

    usable = {State.BEST, State.TIED, State.OPEN, State.SLOWER}
    points = [one for row in rows if row.standing.state in usable for one in row.levels]

    def beaten(one: LevelFigures) -> bool:
        return any(
            other.rate >= one.rate and other.tpot_p50 <= one.tpot_p50
            and (other.rate, other.tpot_p50) != (one.rate, one.tpot_p50)
            for other in points
        )  # fmt: skip

    return tuple(
        dataclasses.replace(
            row,
            levels=tuple(
                dataclasses.replace(one, on_front=row.standing.state in usable and not beaten(one))
                for one in row.levels
            ),
        )
        for row in rows
    )


def _said(chosen: Row | None, rows: dict[int, Row], rivals: Sequence[int]) -> tuple[Outcome, str]:
    """Return the outcome, and the result in one sentence."""
    if chosen is None:
        return Outcome.NONE, _why_none(list(rows.values()))
    if chosen.index != OWN:
        more = _tied([rows[i] for i in rivals if i != chosen.index])
        return Outcome.OTHER, f"{chosen.configuration.name}: {_gain(chosen, rows[OWN])}{more}"
    best = max((one for one in rows.values() if one.to_own is not None and one.index in rivals),
               key=lambda one: one.to_own.value if one.to_own else 0.0, default=None)  # fmt: skip
    if best is None or best.to_own is None:
        return Outcome.KEEP, "the recipe as it is: every other configuration is surely slower, or left out"
    said = f"no difference was found: the objective of {best.configuration.name}, the best of the others, is"
    return Outcome.KEEP, f"{said} {best.to_own} against the recipe as it is"


def _gain(chosen: Row, own: Row) -> str:
    """Return why *chosen* is recommended in place of the recipe as it is."""
    gain = f"{chosen.to_own} against the recipe as it is" if chosen.to_own else ""
    if own.standing.state is State.SLOWER:
        return gain
    why = own.standing.why or "it was not shown to keep the limits"
    return f"the recipe as it is cannot be recommended ({own.standing.state}: {why}){gain and '; '}{gain}"


def _tied(others: Sequence[Row]) -> str:
    if not others:
        return ""
    names = "; ".join(one.configuration.name for one in others[:3])
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""  # noqa: PLR2004 - those that are named
    return f", not told apart from {names}{more}"


def _within(ratios: Iterable[Ratio | None]) -> float:
    """Return the largest share by which a true ratio may differ from 1, by the ends of all intervals."""
    return max((max(one.high - 1, 1 - one.low) for one in ratios if one is not None), default=0.0)


def _equal(others: int, within: float) -> str:
    """Return what is known of configurations that no start told apart."""
    if not within:
        return ""
    named = "it is" if others == 1 else f"the {others} that are not told apart are"
    return f"; {named} equal within {100 * within:.1f} %"


def _why_none(rows: Sequence[Row]) -> str:
    counts = {state: sum(row.standing.state is state for row in rows) for state in State}
    told = [f"{count} {state}" for state, count in counts.items() if count]
    first = next((row.standing.why for row in rows if row.standing.why), "")
    return f"of {len(rows)} configurations none can be recommended: {', '.join(told)}" + (
        f"; the first: {first}" if first else ""
    )


# With and without speculation ---------------------------------------------------------------------------


def _speculation(
    known: Known, trials: Sequence[Trial], chosen: Row | None, rules: Rules
) -> tuple[Speculation, ...]:
    """Return the payoff of speculation of the configuration to serve, and of the recipe as it is."""
    configurations, levels = known.search.space.configurations, known.search.options.levels
    made = []
    for with_ in _drafting(known, trials, chosen):
        pair = with_, pairs_of(known.search.space)[with_]
        payoffs = _payoffs(trials, pair, rules, levels)
        names = [configurations[index].name for index in pair]
        made.append(Speculation(names[0], names[1], payoffs, say_payoff(payoffs)))
    return tuple(made)


def _drafting(known: Known, trials: Sequence[Trial], chosen: Row | None) -> list[int]:
    """Return the configurations whose speculation is judged; the fastest that drafts if no other does."""
    measured = [
        index
        for index, plain in pairs_of(known.search.space).items()
        if all(trials[one].scores and not trials[one].refused for one in (index, plain))
    ]
    named = [index for index in (chosen.index if chosen else OWN, OWN) if index in measured]
    fastest = sorted(measured, key=lambda index: -math.fsum(trials[index].scores) / len(trials[index].scores))
    return list(dict.fromkeys(named or fastest[:1]))


def _payoffs(
    trials: Sequence[Trial], pair: tuple[int, int], rules: Rules, levels: Sequence[int]
) -> tuple[Payoff, ...]:
    made = []
    for position in range(len(levels)):
        by_start = [
            [math.log(start.rates[position]) for start in trial.counted] for trial in trials if trial.counted
        ]
        noise = Noise.measured(by_start, rules.spread)
        with_, without = (
            [math.log(start.rates[position]) for start in trials[index].counted] for index in pair
        )
        made.append(Payoff(levels[position], ratio_of(with_, without, noise, ERROR)))
    return tuple(made)


def say_payoff(payoffs: Sequence[Payoff]) -> str:
    """Return where speculation pays and where it costs, in one sentence."""
    ordered = sorted(payoffs, key=lambda one: one.level)
    pays = [one for one in ordered if one.ratio.low > 1]
    costs = [one for one in ordered if one.ratio.high < 1]
    first_loss = min((one.level for one in ordered if one.ratio.low <= 1), default=math.inf)
    up_to = max((one.level for one in pays if one.level < first_loss), default=0)
    last_gain = max((one.level for one in ordered if one.ratio.high >= 1), default=0)
    from_ = next((one for one in costs if one.level > last_gain), None)
    parts: list[str] = []
    if up_to:
        gain = next(one.ratio for one in pays if one.level == up_to)
        parts.append(f"speculation pays up to c = {up_to}, where it gives {gain}")
    if from_ is not None:
        worst = ordered[-1]
        parts.append(f"from c = {from_.level} it costs: {from_.ratio}")
        if worst.level != from_.level:
            parts[-1] += f", at c = {worst.level} {worst.ratio}"
    again = [one for one in pays if one.level > first_loss]
    parts += [f"at c = {one.level} it pays: {one.ratio}" for one in again]
    undecided = [one for one in ordered if one.ratio.low <= 1 <= one.ratio.high]
    if undecided:
        told = ", ".join(f"c = {one.level} ({one.ratio})" for one in undecided)
        parts.append(f"no difference was found at {told}")
    between = [one for one in costs if from_ is None or one.level < from_.level]
    parts += [f"at c = {one.level} it costs: {one.ratio}" for one in between]
    return "; ".join(parts)
