"""Ratios of speed after an upgrade to speed before it, by concurrency, with their intervals.

Kernels are selected at each start, so that two starts of one server differ. With several runs on each side
the difference between starts is measured; with one on each side it is assumed, and the findings say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation, Sample
from sparkwright.verify.checks.acceptance import paired_ratio
from sparkwright.verify.checks.common import Values
from sparkwright.verify.checks.figures import event_gap_ms, figures
from sparkwright.verify.checks.machine import told_of
from sparkwright.verify.checks.triage import troubles
from sparkwright.verify.compare import LEAST_STARTS, Ratio, Spread, common_means, ratio_of
from sparkwright.verify.upgrade.pairs import MatchedCells

CHECK = "compare"
MATERIAL = 0.05
"""A server that is slower by no more than this does not fail."""
ALLOWED = 0.10
"""Largest slowdown within the interval of a server that passes."""
SPREAD = 0.025
"""Assumed standard deviation between starts of one server, where a side has a single start."""
ERROR = 0.05
"""Chance that the interval of any level misses the truth, for each quantity."""
_FEW_REQUESTS = 4


@dataclass(frozen=True)
class Quantity:
    """A quantity of one request that an upgrade may worsen.

    Attributes:
        value: of a request; not finite or not positive where unknown.
        better: 1 where larger is better, -1 where smaller is.
    """

    name: str
    value: Callable[[Sample], float]
    definition: str
    better: int


def _request_rate(sample: Sample) -> float:
    seconds = (sample.ended - sample.started) / 1e9
    return sample.output_tokens / seconds if seconds > 0 else math.nan


QUANTITIES = (
    Quantity(
        "speed of requests",
        _request_rate,
        "Tokens of an answer over the time from its request to its end, of the same prompt after and before:"
        " geometric mean over all prompts. In a closed loop it goes with the throughput.",
        1,
    ),
    Quantity(
        "time to the first token",
        lambda sample: sample.ttft_ms,
        "Time to the first token, of the same prompt after and before: geometric mean over all prompts.",
        -1,
    ),
    Quantity(
        "time of a step",
        lambda sample: event_gap_ms([sample]),
        "Time between two events with output, of the same prompt after and before: geometric mean over all"
        " prompts. What is drafted and accepted does not change it.",
        -1,
    ),
)


@dataclass(frozen=True)
class _Level:
    """The sweep's cells at one of so many concurrencies that are judged together, on both sides, by run."""

    concurrency: int
    comparisons: int
    before: list[list[Observation]]
    after: list[list[Observation]]
    speed: float

    @property
    def arms(self) -> dict[str, list[list[Observation]]]:
        return {"before": self.before, "after": self.after}

    def each(self, of: Callable[[Observation], Sequence[str]]) -> list[str]:
        """Return what *of* says of each cell, with the side."""
        return [
            f"{arm}: {said}"
            for arm, runs in self.arms.items()
            for run in runs
            for observation in run
            for said in of(observation)
        ]

    @property
    def unfit(self) -> list[str]:
        """Reasons for which a cell of either side cannot be used."""
        return self.each(lambda observation: [one.cause for one in troubles(observation, metered=False)[:1]])


def judge_speed(matched: MatchedCells, spread: float) -> list[Finding]:
    """Return findings on each quantity and, if both sides draft, acceptance, for each level of the sweep."""
    by_level: dict[int, list[str]] = {}
    for key in matched.cells("sweep"):
        by_level.setdefault(matched.before[0][key].cell.load.concurrency, []).append(key)
    findings = []
    for concurrency, keys in sorted(by_level.items()):
        before, after = (matched.of(arm, keys) for arm in ("before", "after"))
        level = _Level(concurrency, len(by_level), before, after, matched.speed)
        findings += [_quantity(level, quantity, spread) for quantity in QUANTITIES]
        findings += _acceptance(level)
    if findings and min(matched.starts) < LEAST_STARTS:
        findings[0] = msgspec.structs.replace(findings[0], warnings=(_one_start(matched, spread),))
    return findings


# Ratios --------------------------------------------------------------------------------------------------


def _ratio(level: _Level, quantity: Quantity, spread: float) -> tuple[Ratio | None, int]:
    """Return the ratio of *quantity*, above 1 where it is better, and the number of prompts that it rests on.

    There is none if fewer than four prompts have it on every side.
    """
    new, old = ([_by_prompt(run, quantity) for run in runs] for runs in (level.after, level.before))
    means, prompts = common_means([*new, *old])
    if prompts < _FEW_REQUESTS:
        return None, prompts
    arms, error = (means[: len(new)], means[len(new) :]), ERROR / 2 / max(1, level.comparisons)
    if min(map(len, arms)) >= LEAST_STARTS:
        return ratio_of(*arms, Spread.of(arms), error, error), prompts
    # Starts are as fast or slow at every concurrency, so their part needs no correction for its number.
    of_starts = Spread(spread, math.inf).width(ERROR / 2, len(new), len(old))
    of_prompts = Spread.of([_by_item(new, old)]).width(error, prompts)
    width = math.hypot(of_starts, of_prompts)
    middle = math.fsum(arms[0]) / len(new) - math.fsum(arms[1]) / len(old)
    return Ratio(*(math.exp(middle + side * width) for side in (0, -1, 1))), prompts


def _by_item(new: Sequence[Mapping[str, float]], old: Sequence[Mapping[str, float]]) -> list[float]:
    """Return the difference of mean logarithms of each item that all runs have."""
    common = sorted(set.intersection(*(set(run) for run in (*new, *old))))
    of_new, of_old = (
        [math.fsum(math.log(run[name]) for run in runs) / len(runs) for name in common] for runs in (new, old)
    )
    return [one - other for one, other in zip(of_new, of_old, strict=True)]


def _by_prompt(observations: Sequence[Observation], quantity: Quantity) -> dict[str, float]:
    """Return *quantity* of each counted request by cell and prompt, its inverse where smaller is better."""
    return {
        f"{observation.cell.name} {sample.prompt}": found**quantity.better
        for observation in observations
        for sample in observation.counted
        if math.isfinite(found := quantity.value(sample)) and found > 0
    }


# Findings ------------------------------------------------------------------------------------------------


def _quantity(level: _Level, quantity: Quantity, spread: float) -> Finding:
    finding = _finding(level, quantity.name, quantity.definition, _ratio(level, quantity, spread))
    if disturbed := level.each(told_of):
        cause = f"not compared: {'; '.join(disturbed[:3])}"
        finding = msgspec.structs.replace(finding, verdict=Verdict.INCONCLUSIVE, cause=cause)
    return msgspec.structs.replace(finding, measured={**finding.measured, **_known_figures(level, quantity)})


def _acceptance(level: _Level) -> list[Finding]:
    """Return the finding on accepted tokens; none if neither side drafts."""
    new, old = ([o for run in runs for o in run] for runs in (level.after, level.before))
    found = paired_ratio(new, old, level.comparisons, ERROR)
    if found is None:
        return []
    definition = (
        "Accepted tokens a draft after over before, by the servers' counters, over the same questions"
        " (jackknife over questions). It does not differ from start to start."
    )
    prompts = sum(len(o.counted) for o in old)
    return [_finding(level, "acceptance", definition, (found, prompts))]


def _finding(level: _Level, name: str, definition: str, ratio: tuple[Ratio | None, int]) -> Finding:
    found, prompts = ratio
    verdict, cause = _judged(found, f"{name} at c={level.concurrency}", ALLOWED)
    if (unfit := level.unfit) and verdict is not Verdict.FAIL:
        verdict, cause = Verdict.INCONCLUSIVE, "; ".join(unfit[:3])
    return Finding(
        check=CHECK,
        name=f"{name} at c={level.concurrency}",
        definition=definition,
        verdict=verdict,
        cause=cause,
        measured={
            "speed over the baseline's": round(found.value, 4),
            "low": round(found.low, 4),
            "high": round(found.high, 4) if math.isfinite(found.high) else "unknown",
            "prompts": prompts,
        }
        if found is not None
        else {},
        threshold=f"fails where the whole interval lies below 1 and reaches below {1 - MATERIAL:g}; passes"
        f" where it lies above {1 - ALLOWED:g}; undecided otherwise. Intervals of all concurrencies"
        f" hold the truth in {1 - ERROR:.0%} of comparisons",
        evidence=tuple(o.cell.key for o in level.before[0]),
    )


def _judged(found: Ratio | None, name: str, allowed: float) -> tuple[Verdict, str]:
    if found is None:
        return Verdict.INCONCLUSIVE, f"fewer than {_FEW_REQUESTS} prompts have a {name} on both sides"
    shown = f"{found.value:.3f} times as good ({found.low:.3f} to {found.high:.3f})"
    if found.high < 1 and found.low < 1 - MATERIAL:
        return Verdict.FAIL, f"{name} is worse: {shown}"
    if found.low >= 1 - allowed:
        at_most = 100 * (1 - found.low)
        said = "better" if at_most < 0 else f"not more than {at_most:.1f} % worse"
        return Verdict.PASS, f"{name} is {said}: {shown}"
    return Verdict.INCONCLUSIVE, f"{name} may be {100 * (1 - found.low):.0f} % worse: {shown}"


def _one_start(matched: MatchedCells, spread: float) -> str:
    before, after = matched.starts
    return (
        f"{before} start before and {after} after: a difference of {100 * spread:g} %"
        " between starts of one server is assumed, not measured; more runs of each side, or two wheels by"
        " turns, measure it"
    )


def _known_figures(level: _Level, quantity: Quantity) -> Values:
    """Return throughput, or percentiles of the first token, of both sides: means over categories and runs."""
    shown: dict[str, list[float]] = {}
    for arm, runs in level.arms.items():
        for one in (figures(o, level.speed) for run in runs for o in run if o.counted):
            if quantity.name == "speed of requests":
                shown.setdefault(f"{arm} tok/s", []).append(one.whole_tok_s)
            elif quantity.name == "time to the first token":
                shown.setdefault(f"{arm} TTFT p50 ms", []).append(one.ttft_ms.p50)
                shown.setdefault(f"{arm} TTFT p95 ms", []).append(one.ttft_ms.p95)
    return {name: round(math.fsum(values) / len(values), 2) for name, values in shown.items()}
