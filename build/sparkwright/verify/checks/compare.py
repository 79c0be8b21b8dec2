"""Comparison of a server with a reference over starts of both: two wheels or recipes by turns, finished runs.

Kernels are selected at each start, and a server may be 15 % faster or slower for its whole life. So starts
are the unit of replication, not requests, and they alternate (ABBAAB), so that drift, for example of the
temperature, affects both alike. A finished run is one start. `settings` compares more arms than two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from sparkwright.base.errors import ConfigError
from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import BootFacts, Observation, Sample
from sparkwright.verify import compare
from sparkwright.verify.check import Context
from sparkwright.verify.checks.answers import Solved, answers_agree, right_answers
from sparkwright.verify.checks.common import Check, Values, conclude, finding, not_applicable
from sparkwright.verify.checks.figures import acceptance, event_gap_ms
from sparkwright.verify.checks.machine import without_disturbed
from sparkwright.verify.checks.triage import CheckedCells, Reason, describe, triage
from sparkwright.verify.compare import SPREAD, Compared, Look, Ratio, looks_of
from sparkwright.verify.corpus import load_corpus
from sparkwright.verify.journal import Run
from sparkwright.verify.profiles import Profile

NAME = "compare"
ARMS = ("main", "baseline")
LEVELS = (1, 8, 32)
"""Requests at a time, unless the user says others."""
OF_EACH, TOKENS, STAGGER_S = 2, 256, 0.02
LATER = 0.05
"""A first token that surely takes longer by more than this fails."""
LESS_CACHE = 0.95
"""Share of the reference's tokens that the KV cache holds at the least."""

_NO_CELL = "no cell of a sweep was measured on both sides"

Place = tuple[str, int]


def start_cells(context: Context, arm: str, boot: int, levels: Sequence[int] = LEVELS) -> Iterator[Cell]:
    """Yield the cells of one start: the same prompts for every arm and every start."""
    for level in levels:
        requests = max(context.profile.comparison_requests, OF_EACH * level)
        yield context.cell(
            NAME,
            f"c={level}",
            context.prompts_in_turn(requests, f"{NAME} c={level}"),
            arm=arm,
            boot=boot,
            tags={"level": str(level)},
            concurrency=level,
            warm_up=level,
            max_tokens=min(TOKENS, context.profile.max_tokens),
            stagger_s=STAGGER_S,
        )


def _cells(levels: Sequence[int], context: Context, seen: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield starts in the order ABBAAB, and more while nothing is decided, up to `Profile.most_boots`."""
    look = _look(context, seen.values())
    planned = list(_starts(context, look.starts, levels))
    if not look.last and all(cell.key in seen for cell in planned):
        speed, *_ = judge_pair(context, list(seen.values()), planned, look)
        if speed.verdict is Verdict.INCONCLUSIVE:
            later = (one.starts for one in _looks(context) if one.starts > look.starts)
            planned = list(_starts(context, next(later), levels))
    yield from planned


def _judge(levels: Sequence[int], context: Context, seen: CheckedCells) -> list[Finding]:
    """Judge what was observed at the moment at which it was made, whatever starts are planned after it."""
    look = _look(context, seen.made)
    return judge_pair(context, seen.made, list(_starts(context, look.starts, levels)), look)


def pair_check(levels: Sequence[int] = LEVELS) -> Check:
    """Return the check that compares two servers at *levels*."""
    return Check(NAME, partial(_cells, levels), partial(_judge, levels))


# In no profile: `verify compare` selects it.
CHECK = pair_check()


def _looks(context: Context) -> list[Look]:
    return looks_of(context.profile.boots, context.profile.most_boots)


def _look(context: Context, observations: Iterable[Observation]) -> Look:
    """Return the first moment by which all of *observations* were made."""
    begun = 1 + max((o.cell.boot for o in observations), default=0)
    return next(look for look in _looks(context) if look.starts >= begun)


def _starts(context: Context, boots: int, levels: Sequence[int]) -> Iterator[Cell]:
    for boot in range(boots):
        for arm in ARMS if boot % 2 == 0 else reversed(ARMS):
            yield from start_cells(context, arm, boot, levels)


# Judging -------------------------------------------------------------------------------------------------


def judge_pair(
    context: Context,
    observations: Sequence[Observation],
    planned: Sequence[Cell],
    look: Look,
    *,
    lenient: bool = False,
) -> list[Finding]:
    """Return findings on the speed, the first token and the KV cache of `main` beside `baseline`.

    With *lenient*, cells that do not count make a finding inconclusive, since another one reports them.
    """
    seen = without_disturbed(triage(NAME, context, observations, planned).without_failed_baseline())
    if lenient:
        undecided = [replace(one, verdict=Verdict.INCONCLUSIVE) for one in seen.troubles]
        seen = replace(seen, troubles=tuple(undecided))
    places = {(cell.arm, cell.boot) for cell in planned}
    facts = {place: one for place, one in context.facts.items() if not places or place in places}
    return [_speed(seen, facts, look), _first_token(seen, context, look), _cache(seen, facts)]


def request_rate(sample: Sample) -> float:
    """Return tokens of an answer a second, from its request to its end; NaN where no time passed."""
    seconds = (sample.ended - sample.started) / 1e9
    return sample.output_tokens / seconds if seconds > 0 else math.nan


def speed_of(observation: Observation, value: Callable[[Sample], float] = request_rate) -> float:
    """Return the mean logarithm of *value* over the counted requests; NaN without any."""
    found = [one for sample in observation.counted if math.isfinite(one := value(sample)) and one > 0]
    return math.fsum(map(math.log, found)) / len(found) if found else math.nan


def _compared(seen: CheckedCells, look: Look, value: Callable[[Sample], float]) -> Compared | None:
    """Return *value* of both arms over the cells that all of their starts have; `None` if there are none."""
    starts: dict[Place, dict[str, Observation]] = {}
    for one in seen.sound:
        if math.isfinite(speed_of(one, value)):
            starts.setdefault((one.cell.arm, one.cell.boot), {})[one.cell.name] = one
    if {arm for arm, _ in starts} != set(ARMS):
        return None
    common = set.intersection(*(set(cells) for cells in starts.values()))
    names = [name for name in next(iter(starts.values())) if name in common]
    by_arm: dict[str, dict[int, list[float]]] = {arm: {} for arm in ARMS}
    for (arm, _), cells in starts.items():
        levels: dict[int, list[float]] = {}
        for name in names:
            level = cells[name].cell.load.concurrency
            levels.setdefault(level, []).append(speed_of(cells[name], value))
        for level, values in levels.items():
            by_arm[arm].setdefault(level, []).append(math.fsum(values) / len(values))
    return Compared(by_arm["main"], by_arm["baseline"], look) if names else None


def ratio_values(ratio: Ratio) -> Values:
    """Return *ratio* as measured values, which the page shows."""
    return {
        "speed over the baseline's": round(ratio.value, 4),
        "low": round(ratio.low, 4),
        "high": round(ratio.high, 4),
    }


def _speed(seen: CheckedCells, facts: Mapping[Place, BootFacts], look: Look) -> Finding:
    """Return the finding on tokens a second, over all concurrencies and at each."""
    if not seen.planned:
        return not_applicable(seen, "compare.speed", _NO_CELL)
    found = _compared(seen, look, request_rate)
    against: list[Reason] = [(Verdict.INCONCLUSIVE, "no measurements of both servers to compare")]
    measured, warnings = Values(), [*seen.notes, *_differing(facts)]
    if found is not None:
        starts = [len(next(iter(side.values()))) for side in (found.one, found.other)]
        measured = {**ratio_values(found.overall), "starts": " and ".join(map(str, starts))}
        measured |= {f"c={level}": one.change for level, one in found.levels.items()}
        steps, why = _why(seen, look)
        measured |= steps
        against = [] if found.verdict is Verdict.PASS else [(found.verdict, f"{found}{why}")]
        if min(starts) == 1:
            warnings.append(
                f"a difference of {100 * SPREAD:g} % between starts of one server is assumed, not measured:"
                " more starts of each side measure it"
            )
    return conclude(
        seen,
        "compare.speed",
        told={"allowed": look.allowed, "limits": compare},
        against=against,
        passed=str(found),
        measured=measured,
        warnings=warnings,
    )


def _why(seen: CheckedCells, look: Look) -> tuple[Values, str]:
    """Return the time of a step and its tokens over the baseline's, from which a rate follows."""
    rates = _compared(seen, look, lambda one: 1 / gap if (gap := event_gap_ms([one])) > 0 else math.nan)
    if rates is None:
        return {}, ""
    step = 1 / rates.overall.value
    length = _acceptance_length(seen, "main") / _acceptance_length(seen, "baseline")
    shown = f"; a verify step takes {step:.3f} times as long and brings {length:.3f} times as many tokens"
    return {
        "step time over the baseline's": round(step, 4),
        "MAL over the baseline's": round(length, 4),
    }, shown


def _acceptance_length(seen: CheckedCells, arm: str) -> float:
    """Return the mean acceptance length of an arm; 1 without speculation."""
    found = [one for o in seen.sound if o.cell.arm == arm and (one := acceptance(o)) is not None]
    drafts = math.fsum(one.drafts for one in found)
    return math.fsum(one.mal * one.drafts for one in found) / drafts if drafts else 1.0


def _first_token(seen: CheckedCells, context: Context, look: Look) -> Finding:
    """Return the finding on times to the first token, where the clock is that of the server."""
    if not seen.planned or context.profile.speed != 1:
        why = "a simulator's clock runs faster than the client's" if seen.planned else _NO_CELL
        return not_applicable(seen, "compare.first_token", why)
    found = _compared(seen, look, lambda one: 1 / one.ttft_ms if one.ttft_ms > 0 else math.nan)
    against: list[Reason] = [(Verdict.INCONCLUSIVE, "no first tokens of both servers to compare")]
    measured, passed = Values(), ""
    if found is not None:
        later = {
            level: Ratio(1 / one.value, 1 / one.high, 1 / one.low) for level, one in found.levels.items()
        }
        shown = ", ".join(f"c={level}: {one.change}" for level, one in later.items())
        against = (
            [(Verdict.FAIL, f"later: {shown}")] if any(one.low > 1 + LATER for one in later.values()) else []
        )
        measured, passed = {f"c={level}": one.change for level, one in later.items()}, shown
    return conclude(seen, "compare.first_token", against=against, passed=passed, measured=measured)


# Facts of the starts -------------------------------------------------------------------------------------

_SAME = ("version", "runner", "backends", "kv_dtype", "graph_mode", "capture_sizes", "speculative_tokens")
# What the size of the KV cache depends on, and a user chooses.
_CHOSEN = ("kv_dtype", "utilization", "speculative_method", "speculative_tokens")


def _values(facts: Mapping[Place, BootFacts], name: str) -> tuple[set[str], set[str]]:
    """Return the values of a fact at starts of the main server and of the baseline; failed ones have none."""
    main, baseline = (
        {str(getattr(one, name)) for (of, _), one in facts.items() if of == arm and one.version}
        for arm in ARMS
    )
    return main, baseline


def _differing(facts: Mapping[Place, BootFacts]) -> Iterator[str]:
    """Yield the facts in which the servers differ, or starts of one server."""
    for name in _SAME:
        both = _values(facts, name)
        for arm, values in zip(ARMS, both, strict=True):
            if len(values) > 1:
                yield f"starts of {arm} differ in {name}: {', '.join(sorted(values))}"
        if all(both) and both[0] != both[1]:
            new, old = (", ".join(sorted(values)) for values in both)
            yield f"{name} is {new}, on the baseline {old}"


def _cache(seen: CheckedCells, facts: Mapping[Place, BootFacts]) -> Finding:
    """Return the finding on the tokens that fit into the KV cache, where both were configured alike."""
    tokens, before = (
        min((one.kv_tokens for (of, _), one in facts.items() if of == arm and one.kv_tokens > 0), default=0)
        for arm in ARMS
    )
    if not (tokens and before):
        return not_applicable(seen, "compare.cache", "a log does not say how many tokens fit")
    if other := [name for name in _CHOSEN if len(set.union(*_values(facts, name))) > 1]:
        return not_applicable(seen, "compare.cache", f"the servers are to differ: {', '.join(other)}")
    shown = f"{tokens} tokens fit, on the baseline {before}"
    return conclude(
        seen.on_facts(),
        "compare.cache",
        against=[(Verdict.FAIL, shown)] if tokens < LESS_CACHE * before else [],
        passed=shown,
        measured={"tokens": tokens, "tokens on the baseline": before},
    )


# Answers, tasks and failures beside those of another server ----------------------------------------------

SURE = 0.01
FEW_TASKS = 20
Cells = Mapping[str, Observation]
"""Observations of one run, or of one setting of a recipe, by the key of their cell."""


def judge_quality(before: Cells, after: Cells, keys: Sequence[str]) -> list[Finding]:
    """Return findings on greedy answers, solved tasks and failed requests of the cells in *keys*."""

    def both(chosen: Callable[[Cell], bool]) -> tuple[list[Observation], list[Observation]]:
        some = [key for key in keys if chosen(before[key].cell)]
        return [before[key] for key in some], [after[key] for key in some]

    def answers(cell: Cell) -> bool:
        return cell.check == "lossless" and cell.tags.get("kind") == "answers"

    def tasks(cell: Cell) -> bool:
        asked = cell.check in {"lossless", "coherence", "context"}
        return asked and any(prompt.expect for prompt in cell.prompts)

    pairs = [(before[key], after[key]) for key in keys]
    return [_same_answers(*both(answers)), _solved_tasks(*both(tasks)), _failures(pairs)]


def _same_answers(before: Sequence[Observation], after: Sequence[Observation]) -> Finding:
    old, new = ({o.cell.load.concurrency: o for o in side} for side in (before, after))
    if not old or not all(o.counted for o in (*before, *after)):
        why = "answers with log-probabilities were not measured on both sides: run the check `lossless`"
        return finding(NAME, "compare.answers", Verdict.NOT_APPLICABLE, why)
    lowest, *higher = sorted(old)
    found = answers_agree(
        [(old[level], new[level]) for level in old], [(old[lowest], old[up]) for up in higher]
    )
    if found.against:
        return finding(NAME, "compare.answers", Verdict.NOT_APPLICABLE, found.against[0][1])
    parted = found.beyond(found.limit, "part at a token that rounding does not explain")
    differ = sum(gap > 0 for gap in found.gaps)
    return finding(
        NAME,
        "compare.answers",
        Verdict.FAIL if parted else Verdict.PASS,
        parted or f"{differ} of {len(found.gaps)} answers differ, all of them at near ties",
        measured={**found.figures, "largest of one server nat": round(found.usual, 4)},
        evidence=[o.cell.key for o in before],
    )


def _solved_tasks(before: Sequence[Observation], after: Sequence[Observation]) -> Finding:
    solved = Solved.of(right_answers(before), right_answers(after))
    lost, won, p = len(solved.lost), solved.won, solved.p
    verdict = Verdict.PASS
    cause = f"{solved.after} of {solved.total} are solved, before {solved.before}; {lost} lost, {won} won"
    if solved.total < FEW_TASKS:
        verdict, cause = Verdict.NOT_APPLICABLE, f"{solved.total} tasks on both sides are too few to tell"
    elif p < SURE and lost > won:
        verdict, cause = Verdict.FAIL, f"{cause} (p = {p:.4f}), such as {solved.lost[0]}"
    measured: Values = {"solved": solved.after, "solved before": solved.before, "tasks": solved.total}
    evidence = [o.cell.key for o in before]
    return finding(NAME, "compare.tasks", verdict, cause, measured=measured, evidence=evidence)


def _failures(pairs: Sequence[tuple[Observation, Observation]]) -> Finding:
    worse = []
    for old, seen in pairs:
        if len(seen.failed) > len(old.failed):
            failure, where = seen.failed[0].failure, describe(seen.cell)
            why = f": {failure.kind}, {failure.detail}" if failure is not None else ""
            worse.append(f"{len(seen.failed)} requests fail in {where}, before {len(old.failed)}{why}")
        elif seen.died is not None and old.died is None:
            worse.append(f"the server ended in {describe(seen.cell)}")
    total = sum(len(seen.samples) for _, seen in pairs)
    return finding(
        NAME,
        "compare.failures",
        Verdict.FAIL if worse else Verdict.PASS,
        "; ".join(worse[:3]) or f"of {total} requests no more failed than before",
    )


# Finished runs -------------------------------------------------------------------------------------------


def compare_runs(before: Run, after: Run) -> Run:
    """Return the findings on the run *after* an upgrade against the one *before* it.

    Raises:
        ConfigError: the runs have no cell in common, or their clocks differ.
    """
    if before.speed != after.speed:
        raise ConfigError(
            "these runs cannot be compared",
            because=f"their clocks run at {before.speed:g} and {after.speed:g} times real time",
            next_step="compare runs of real servers, or of simulators with the same --speed",
        )
    # A run's own baseline says nothing about an upgrade.
    old, new = (
        {o.cell.key: o for o in run.observations if (o.cell.arm, o.cell.boot) == ("main", 0)}
        for run in (before, after)
    )
    for run, cells in ((before, old), (after, new)):
        if not cells:
            why = next((one.cause for one in run.findings if one.verdict is Verdict.FAIL), "none was made")
            raise ConfigError(f"{_name(run)} has no measurement", because=why, next_step="compare other runs")
    keys = [key for key in old if key in new]
    if not keys:
        raise ConfigError(
            "these runs have no measurement in common",
            because="no cell of one was measured with the same prompts and the same load in the other",
            next_step="verify both servers with the same --profile, --levels and --seed",
        )
    swept = [
        msgspec.structs.replace(o, cell=msgspec.structs.replace(o.cell, arm=arm))
        for arm, cells in zip(ARMS, (new, old), strict=True)
        for key in keys
        if (o := cells[key]).cell.check == "sweep"
    ]
    facts = {
        (arm, 0): run.facts["main", 0]
        for arm, run in zip(ARMS, (after, before), strict=True)
        if ("main", 0) in run.facts
    }
    context = Context(Profile(name="", speed=before.speed), load_corpus(), facts)
    findings = [
        *judge_pair(context, swept, [o.cell for o in swept], Look(1), lenient=True),
        *judge_quality(old, new, keys),
    ]
    manifest: dict[str, Any] = {
        "title": f"{_name(before)} → {_name(after)}",
        "profile": "finished runs",
        "speed": before.speed,
        "checks": (NAME,),
        "cells in common": len(keys),
        "cells left out": len(old.keys() ^ new.keys()),
        "before": _name(before),
        "after": _name(after),
    }
    return Run(manifest=manifest, facts=facts, observations=swept, findings=findings)


def _name(run: Run) -> str:
    """Return the words that tell a run's server from another: its wheel, else its title and version."""
    wheel = run.manifest.get("wheel")
    if isinstance(wheel, dict):
        return str(wheel["name"])
    version = run.facts["main", 0].version if ("main", 0) in run.facts else ""
    title = str(run.manifest.get("title") or run.manifest.get("url") or "server")
    return f"{title} ({version})" if version and version not in title else title
