"""Comparison of a server's speed with another one's, over several alternating starts of both.

Kernels are selected at each start, and a server may be 15 % faster or slower for its whole life. So starts
are the unit of replication, not requests, and they alternate (ABBAAB), so that drift, for example of the
temperature, affects both alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import BootFacts, Observation, Sample
from sparkwright.verify.check import Context
from sparkwright.verify.checks.acceptance import acceptance, paired_ratio
from sparkwright.verify.checks.common import Check, Values, conclude, not_applicable
from sparkwright.verify.checks.figures import event_gap_ms, figures
from sparkwright.verify.checks.machine import without_disturbed
from sparkwright.verify.checks.triage import CheckedCells, Reason, triage
from sparkwright.verify.compare import Ratio, compare_starts
from sparkwright.verify.profile import Profile

ARMS = ("main", "baseline")
LEVELS = (1, 8)
WAVES = 3
LOOKS = (3, 5, 7, 10)
"""Starts of each server after which the comparison is judged: it ends as soon as it is decided."""
FALSE_WORSE = 0.008
"""Chance that a server as fast as the baseline is called worse by its steps, over all of these moments."""
TRIVIAL = 0.02
"""A server that is slower by less passes, however surely."""
MATERIAL = 0.04
"""Largest slowdown within the interval of a server that passes before the last start."""
TOLERANCE = 0.10
"""The same after the last one."""
LATER = 0.05
"""A first token that surely takes longer by more than this is a warning."""
ONE_STEP = 0.15
"""Largest share by which the time between events may differ from a step's by counters, if each is a step."""


def cells(context: Context, seen: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield the same prompts to two servers, several starts of each, one request at a time and eight.

    Starts follow in the order ABBAAB for three of each, and are added while nothing is decided, up to
    `Profile.most_boots` of each.
    """
    look = _look(context.profile, seen.values())
    planned = list(_starts(context, look.starts))
    if not look.last and all(cell.key in seen for cell in planned):
        verdicts = {finding.verdict for finding in _judge(context, list(seen.values()))}
        if Verdict.FAIL not in verdicts and Verdict.INCONCLUSIVE in verdicts:
            later = (one.starts for one in looks_of(context.profile) if one.starts > look.starts)
            planned = list(_starts(context, next(later)))
    yield from planned


def judge(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return a finding on the time of a step, and one for each level: better, worse or undecided."""
    return _judge(context, seen.made)


# In no profile: `verify compare` selects it.
CHECK = Check("compare", cells, judge)


def _judge(context: Context, observations: Sequence[Observation]) -> list[Finding]:
    """Judge *observations* at the moment at which they were made, whatever starts are planned after it."""
    look = _look(context.profile, observations)
    seen = triage("compare", context, observations, list(_starts(context, look.starts)))
    seen = without_disturbed(seen.without_failed_baseline())
    unlike = unlike_drafting(context.facts, ARMS)
    steps = not_applicable(seen, "compare.steps", unlike) if unlike else _steps(seen, look)
    return [steps, *(_speed(seen, level, context, look, steps.verdict) for level in LEVELS)]


@dataclass(frozen=True)
class Look:
    """A moment at which a comparison is judged.

    Attributes:
        last: no further starts follow.
        error: chance that a server as fast as the baseline is called worse by its steps at this moment.
    """

    starts: int
    last: bool
    error: float

    @property
    def allowed(self) -> float:
        """Largest slowdown within the interval of a server that passes."""
        return TOLERANCE if self.last else MATERIAL

    @property
    def told(self) -> dict[str, float]:
        """Values in the threshold of a conclusion."""
        return {"trivial": 1 - TRIVIAL, "least": 1 - self.allowed}

    def judged(self, ratio: Ratio) -> tuple[Verdict, str, str]:
        """Return the verdict on a *ratio* of speeds, in one word and in many."""
        shown = f"{ratio.value:.3f} times as fast ({ratio.low:.3f} to {ratio.high:.3f})"
        if ratio.low <= 1:
            shown += f", not more than {100 * (1 - ratio.low):.1f} % slower"
        if ratio.high < 1 and ratio.value < 1 - TRIVIAL:
            return Verdict.FAIL, "worse", shown
        if ratio.low >= 1 - self.allowed:
            return Verdict.PASS, "better" if ratio.low > 1 else "not worse", shown
        return Verdict.INCONCLUSIVE, "inconclusive", shown


def looks_of(profile: Profile) -> list[Look]:
    """Return the moments at which it is judged; the first and the last are the profile's."""
    between = [starts for starts in LOOKS if profile.boots < starts < profile.most_boots]
    planned = sorted({profile.boots, *between, max(profile.boots, profile.most_boots)})
    return [Look(starts, starts == planned[-1], FALSE_WORSE / len(planned)) for starts in planned]


def _look(profile: Profile, observations: Iterable[Observation]) -> Look:
    """Return the first moment by which all of *observations* were made."""
    begun = 1 + max((o.cell.boot for o in observations), default=0)
    return next(look for look in looks_of(profile) if look.starts >= begun)


def _starts(context: Context, boots: int) -> Iterator[Cell]:
    """Yield cells start by start, alternating: drift, for example of the temperature, affects both alike."""
    for boot in range(boots):
        for arm in ARMS if boot % 2 == 0 else reversed(ARMS):
            for level in LEVELS:
                for wave in range(WAVES):
                    requests = max(level, math.ceil(context.profile.comparison_requests / WAVES))
                    name = f"c={level} wave {wave}"
                    yield context.cell(
                        "compare",
                        name,
                        context.prompts_in_turn(requests, f"compare {name}"),
                        arm=arm,
                        boot=boot,
                        tags={"level": str(level), "wave": str(wave)},
                        concurrency=level,
                        warm_up=level if wave == 0 else 0,
                        max_tokens=context.profile.max_tokens,
                    )


# Judging -------------------------------------------------------------------------------------------------


def _decode_rate(sample: Sample) -> float:
    """Return tokens a second after the first one; NaN where no time passed between first and last."""
    return 1000 / sample.tpot_ms if sample.tpot_ms > 0 else math.nan


def _steps(seen: CheckedCells, look: Look) -> Finding:
    """Return the finding on the time of a step, over both levels: what is drafted does not blur it."""
    # By the client's events where each is one step, since counters hold warm-up requests too.
    by_events = all(
        math.isclose(figures(o).step_ms, event_gap_ms(o.counted), rel_tol=ONE_STEP) for o in seen.sound
    )

    def rates(observation: Observation) -> dict[str, float]:
        counted = figures(observation).step_ms
        step = counted if math.isfinite(counted) and not by_events else event_gap_ms(observation.counted)
        return {observation.cell.name: 1 / step} if math.isfinite(step) and step > 0 else {}

    ratio = _ratio(seen, rates, look.error)
    against: list[Reason] = []
    measured: Values = {}
    passed = ""
    if ratio is None:
        against.append((Verdict.INCONCLUSIVE, "no step times of both servers"))
    elif math.isinf(ratio.high):
        against.append((Verdict.INCONCLUSIVE, _too_few(look)))
    else:
        verdict, word, shown = look.judged(ratio)
        measured = {"verdict": word, **interval_of(ratio), "starts of each": look.starts}
        if verdict is Verdict.PASS:
            passed = shown
        else:
            against.append((verdict, f"{word}: {shown}"))
    return conclude(seen, "compare.steps", told=look.told, against=against, passed=passed, measured=measured)


def _ratio(
    seen: CheckedCells, values: Callable[[Observation], dict[str, float]], error: float
) -> Ratio | None:
    """Return the ratio of *values* on the main server to those on the baseline; `None` if an arm has none.

    Args:
        seen: cells of both.
        values: positive ones of an observation, by a name that is the same for all starts.
        error: chance that the truth lies above the interval.
    """
    starts: dict[tuple[str, int], dict[str, float]] = {}
    for observation in seen.sound:
        place = observation.cell.arm, observation.cell.boot
        starts.setdefault(place, {}).update(values(observation))
    starts = {place: found for place, found in starts.items() if found}
    main, baseline = ([found for (of, _), found in starts.items() if of == arm] for arm in ARMS)
    return compare_starts(main, baseline, error)[0]


def interval_of(ratio: Ratio) -> Values:
    """Return *ratio* as measured values."""
    return {
        "speed over the baseline's": round(ratio.value, 4),
        "low": round(ratio.low, 4),
        "high": round(ratio.high, 4) if math.isfinite(ratio.high) else "unknown",
    }


def _too_few(look: Look) -> str:
    return f"{look.starts} start of each does not represent other starts"


def _speed(seen: CheckedCells, level: int, context: Context, look: Look, of_steps: Verdict) -> Finding:
    """Return the finding on decode rates, which acceptance blurs.

    Where they decide nothing, steps and acceptance do: a decode rate is the second over the first.
    """
    seen = seen.tagged(level=str(level))
    ratio = _of_requests(seen, _decode_rate, look)
    against: list[Reason] = []
    passed, measured, warnings = "", Values(), list(seen.notes)
    if ratio is None:
        against.append((Verdict.INCONCLUSIVE, "no measurements of both servers to compare"))
    else:
        verdict, word, shown = look.judged(ratio)
        detectable = _percent(ratio.detectable)
        if math.isinf(ratio.high):
            verdict, word, shown = Verdict.INCONCLUSIVE, "inconclusive", _too_few(look)
        elif verdict is Verdict.INCONCLUSIVE and of_steps is Verdict.PASS and _brings_as_much(seen):
            verdict, word = Verdict.PASS, "not worse"
            shown = f"steps are as fast and bring as many tokens; {ratio.value:.3f} times as fast"
        elif verdict is Verdict.INCONCLUSIVE:
            shown += f"; differences below {detectable} % would not show"
        measured = {
            "verdict": word,
            **interval_of(ratio),
            "smallest difference that would show %": detectable,
        }
        steps, why = _why(seen, ratio)
        measured |= steps
        if verdict is Verdict.PASS:
            passed = f"{word}: {shown}"
        else:
            against.append((verdict, f"{word}: {shown}{why}"))
        warnings += _differing_facts(context.facts, look.starts)
        warnings += _first_token(seen, context, look)
    return conclude(
        seen,
        "compare.speed",
        told={**look.told, "level": level},
        against=against,
        passed=passed,
        measured=measured,
        warnings=warnings,
    )


def _of_requests(seen: CheckedCells, value: Callable[[Sample], float], look: Look) -> Ratio | None:
    """Return the ratio of a value of requests, for the same prompts.

    Rates are noisier than steps, and mostly go with them, so that a quarter of the steps' error is enough.
    """
    return _ratio(seen, lambda observation: by_prompt([observation], value), look.error / 4 / len(LEVELS))


def by_prompt(observations: Iterable[Observation], value: Callable[[Sample], float]) -> dict[str, float]:
    """Return *value* of each counted request by cell and prompt, where it is positive and finite."""
    return {
        f"{observation.cell.name} {sample.prompt}": found
        for observation in observations
        for sample in observation.counted
        if math.isfinite(found := value(sample)) and found > 0
    }


def _brings_as_much(seen: CheckedCells) -> bool:
    """Tell if a step surely brings no fewer tokens than on the baseline, beyond what may pass."""
    main, baseline = ([o for o in seen.sound if o.cell.arm == arm] for arm in ARMS)
    found = paired_ratio(main, baseline, len(LEVELS), 0.05)
    if found is None:
        return True  # nothing is drafted
    accepted = _acceptance_length(seen, "baseline") - 1
    return (1 + accepted * found.low) / (1 + accepted) >= 1 - MATERIAL


def _percent(share: float) -> float | str:
    return round(100 * share, 1) if math.isfinite(share) else "unknown"


# Explanations and warnings --------------------------------------------------------------------------------


def _why(seen: CheckedCells, ratio: Ratio) -> tuple[Values, str]:
    """Return step time and acceptance over the baseline's: a decode rate is the second over the first."""
    main, baseline = (_acceptance_length(seen, arm) for arm in ARMS)
    length = main / baseline
    step = length / ratio.value
    why = f"; a verify step takes {step:.3f} times as long and brings {length:.3f} times as many tokens"
    return {"step time over the baseline's": round(step, 4), "MAL over the baseline's": round(length, 4)}, why


def _acceptance_length(seen: CheckedCells, arm: str) -> float:
    """Return the mean acceptance length of an arm; 1 without speculation."""
    found = [acceptance(o) for o in seen.sound if o.cell.arm == arm]
    known = [one for one in found if one is not None]
    drafts = math.fsum(one.drafts for one in known)
    return math.fsum(one.mal * one.drafts for one in known) / drafts if drafts else 1.0


def _first_token(seen: CheckedCells, context: Context, look: Look) -> list[str]:
    """Return a warning if times to the first token are longer; not on an accelerated clock."""
    if context.profile.speed != 1:
        return []
    ratio = _of_requests(seen, lambda sample: sample.ttft_ms, look)
    if ratio is None or ratio.low <= 1 + LATER:
        return []
    return [f"the first token takes {ratio.value:.2f} times as long ({ratio.low:.2f} to {ratio.high:.2f})"]


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


def unlike_drafting(facts: Mapping[tuple[str, int], BootFacts], arms: Sequence[str]) -> str:
    """Return the reason for which steps of the two *arms* cannot be compared; empty if they draft alike."""
    drafting = [
        {
            (one.speculative_method, one.speculative_tokens) if one.speculative_tokens > 0 else ("", 0)
            for (of, _), one in facts.items()
            if of == arm and one.version  # starts that failed have none
        }
        for arm in arms
    ]
    if not all(drafting) or drafting[0] == drafting[1]:
        return ""
    main, baseline = (
        " or ".join(f"{tokens} tokens by {method}" if tokens else "nothing" for method, tokens in sorted(one))
        for one in drafting
    )
    return (
        f"a step drafts {main}, on the baseline {baseline}: times of such steps are not comparable, and the"
        " rates below decide"
    )
