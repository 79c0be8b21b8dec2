"""Comparison of a server's speed with another one's, over several alternating starts of both.

Kernels are selected at each start, and a server may be 15 % faster or slower for its whole life. So starts
are the unit of replication, not requests, and they alternate (ABBAAB), so that drift, for example of the
temperature, affects both alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.verify.check import RegisteredCheck
from sparkwright.verify.checks.acceptance import acceptance
from sparkwright.verify.checks.baseline import baseline_failures_as_invalid
from sparkwright.verify.checks.common import conclude, triage
from sparkwright.verify.model import Cell, Load, Verdict
from sparkwright.verify.statistics import hierarchical_bootstrap_log_ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sparkwright.verify.check import Context
    from sparkwright.verify.checks.common import CheckedCells, Reason
    from sparkwright.verify.model import BootFacts, Finding, Observation, Sample
    from sparkwright.verify.statistics import Effect

ARMS = ("main", "baseline")
LEVELS = (1, 8)
WAVES = 3
MATERIAL = 0.05
"""A server that is slower by no more than this passes."""
ERROR = 0.05
"""Chance that the interval of either level misses the truth."""
TOLERANCE = 0.10
"""Largest slowdown within the interval of a server that passes: with three starts of each whose speeds differ
by 1 % from start to start, intervals reach 7 % to either side, and with 5 % they reach 18 %."""

_Values = dict[str, list[list[dict[str, float]]]]
"""By arm: for each start, for each wave, a value for each prompt."""


@dataclass(frozen=True)
class Compare:
    """The same prompts to two servers, several starts of each, one request at a time and eight."""

    name: str = "compare"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return cells start by start in the order ABBAAB for three starts each."""
        cells = []
        for boot in range(context.profile.boots):
            for arm in ARMS if boot % 2 == 0 else reversed(ARMS):
                cells += [_cell(context, arm, boot, level, wave) for level in LEVELS for wave in range(WAVES)]
        return tuple(cells)

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return a finding for each level: better, worse, equal or undecided."""
        seen = baseline_failures_as_invalid(triage(self, context, observations))
        return [_speed(seen.tagged(level=str(level)), level, context) for level in LEVELS]


# In no profile: --against selects it.
CHECK = RegisteredCheck(Compare())


def _cell(context: Context, arm: str, boot: int, level: int, wave: int) -> Cell:
    sizes = context.profile
    requests = max(level, math.ceil(sizes.comparison_requests / WAVES))
    name = f"c={level} wave {wave}"
    return Cell(
        check="compare",
        name=name,
        load=Load(
            concurrency=level,
            requests=requests,
            warm_up=level if wave == 0 else 0,
            max_tokens=sizes.max_tokens,
            seed=sizes.seed,
        ),
        prompts=context.prompts_in_turn(requests, f"compare {name}"),
        arm=arm,
        boot=boot,
        tags={"level": str(level), "wave": str(wave)},
    )


# Judging -------------------------------------------------------------------------------------------------


def _decode_rate(sample: Sample) -> float:
    """Return tokens a second after the first one; NaN where no time passed between first and last."""
    return 1000 / sample.tpot_ms if sample.tpot_ms > 0 else math.nan


def _speed(seen: CheckedCells, level: int, context: Context) -> Finding:
    effect = _effect(seen, _decode_rate, context.profile.seed)
    against: list[Reason] = []
    passed, measured, warnings = "", dict[str, float | str](), list(seen.notes)
    if effect is None:
        against.append((Verdict.INCONCLUSIVE, "no measurements of both servers to compare"))
    else:
        verdict, shown = _verdict(effect, context.profile.boots)
        measured = {
            "verdict": shown.partition(":")[0],
            "speed over the baseline's": round(effect.ratio, 4),
            "low": round(effect.low, 4),
            "high": round(effect.high, 4) if math.isfinite(effect.high) else "unknown",
            "smallest difference that would show %": _percent(effect.minimum_detectable),
        }
        steps, why = _why(seen, effect)
        measured |= steps
        if verdict is Verdict.PASS:
            passed = shown
        else:
            against.append((verdict, shown + why))
        warnings += _differing_facts(context.facts, context.profile.boots)
        warnings += _first_token(seen, context)
    return conclude(
        seen,
        f"as fast as the baseline at c={level}",
        "Decode rate of a request over that of the same prompt on the baseline: geometric mean over starts,"
        " waves and prompts, with a bootstrap interval over all three (starts are the unit of replication).",
        against=against,
        passed=passed,
        threshold=f"worse where the whole interval lies below 1 and reaches below {1 - MATERIAL}; else a pass"
        f" where it lies above {1 - TOLERANCE}; undecided otherwise; both levels' intervals hold the truth in"
        f" {1 - ERROR:.0%} of runs",
        measured=measured,
        warnings=warnings,
    )


def _verdict(effect: Effect, boots: int) -> Reason:
    interval = f"{effect.ratio:.3f} times as fast ({effect.low:.3f} to {effect.high:.3f})"
    if effect.high < 1 and effect.low < 1 - MATERIAL:
        return Verdict.FAIL, f"worse: {interval}"
    if effect.low >= 1 - TOLERANCE:
        name = "better" if effect.low > 1 else "equal" if effect.high <= 1 + TOLERANCE else "not worse"
        return Verdict.PASS, f"{name}: {interval}"
    if math.isinf(effect.minimum_detectable):
        return Verdict.INCONCLUSIVE, f"inconclusive: {boots} start of each does not represent other starts"
    smallest = _percent(effect.minimum_detectable)
    return Verdict.INCONCLUSIVE, f"inconclusive: {interval}; differences below {smallest} % would not show"


def _percent(share: float) -> float | str:
    return round(100 * share, 1) if math.isfinite(share) else "unknown"


def _effect(seen: CheckedCells, value: Callable[[Sample], float], seed: int) -> Effect | None:
    """Return values of main over those of the baseline; `None` if an arm has none."""
    values = _values(seen, value)
    if not all(values[arm] for arm in ARMS):
        return None
    main, baseline = (_without_prompts(values, arm) for arm in ARMS)
    return hierarchical_bootstrap_log_ratio(baseline, main, seed, level=1 - ERROR / len(LEVELS))


def _values(seen: CheckedCells, value: Callable[[Sample], float]) -> _Values:
    values: _Values = {arm: [] for arm in ARMS}
    for arm in ARMS:
        of_arm = [o for o in seen.sound if o.cell.arm == arm]
        for boot in sorted({o.cell.boot for o in of_arm}):
            waves = [
                {s.prompt: found for s in o.counted if math.isfinite(found := value(s)) and found > 0}
                for o in of_arm
                if o.cell.boot == boot
            ]
            values[arm].append([wave for wave in waves if wave])
    return {arm: [boot for boot in boots if boot] for arm, boots in values.items()}


def _without_prompts(values: _Values, arm: str) -> list[list[list[float]]]:
    """Return values of an arm over their prompt's geometric mean, so that prompts cancel out."""
    every: dict[str, list[float]] = {}
    for boots in values.values():
        for wave in (wave for boot in boots for wave in boot):
            for prompt, value in wave.items():
                every.setdefault(prompt, []).append(math.log(value))
    usual = {prompt: math.fsum(logs) / len(logs) for prompt, logs in every.items()}
    return [
        [[value / math.exp(usual[prompt]) for prompt, value in wave.items()] for wave in boot]
        for boot in values[arm]
    ]


# Explanations and warnings --------------------------------------------------------------------------------


def _why(seen: CheckedCells, effect: Effect) -> tuple[dict[str, float | str], str]:
    """Return step time and acceptance over the baseline's: a decode rate is the second over the first."""
    main, baseline = (_acceptance_length(seen, arm) for arm in ARMS)
    length = main / baseline
    step = length / effect.ratio
    why = f"; a verify step takes {step:.3f} times as long and brings {length:.3f} times as many tokens"
    return {"step time over the baseline's": round(step, 4), "MAL over the baseline's": round(length, 4)}, why


def _acceptance_length(seen: CheckedCells, arm: str) -> float:
    """Return the mean acceptance length of an arm; 1 without speculation."""
    found = [acceptance(o) for o in seen.sound if o.cell.arm == arm]
    known = [one for one in found if one is not None]
    drafts = math.fsum(one.drafts for one in known)
    return math.fsum(one.mal * one.drafts for one in known) / drafts if drafts else 1.0


def _first_token(seen: CheckedCells, context: Context) -> list[str]:
    """Return a warning if times to the first token are longer; not on an accelerated clock."""
    if context.profile.speed != 1:
        return []
    effect = _effect(seen, lambda sample: sample.ttft_ms, context.profile.seed)
    if effect is None or effect.low <= 1 + MATERIAL:
        return []
    return [f"the first token takes {effect.ratio:.2f} times as long ({effect.low:.2f} to {effect.high:.2f})"]


_SAME = ("version", "runner", "backends", "kv_dtype", "graph_mode", "capture_sizes", "speculative_tokens")


def _differing_facts(facts: Mapping[tuple[str, int], BootFacts], boots: int) -> list[str]:
    """Return the facts in which the servers differ, or starts of one server."""
    found = []
    for name in _SAME:
        by_arm = {
            arm: {str(getattr(facts[arm, boot], name)) for boot in range(boots) if (arm, boot) in facts}
            for arm in ARMS
        }
        for arm, values in by_arm.items():
            if len(values) > 1:
                found.append(f"starts of {arm} differ in {name}: {', '.join(sorted(values))}")
        if all(by_arm.values()) and by_arm["main"] != by_arm["baseline"]:
            new, old = (", ".join(sorted(by_arm[arm])) for arm in ARMS)
            found.append(f"{name} is {new}, on the baseline {old}")
    return found
