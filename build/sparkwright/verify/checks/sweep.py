"""Concurrency from 1 to 64: speed by category, invariants over levels, batch sizes that break the server."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from sparkwright.engine.cell import Cell, Prompt
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.metrics.counters import identities
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import Check, Values, conclude
from sparkwright.verify.checks.figures import (
    AT_TIMES,
    FEW_DRAFTS,
    Acceptance,
    Figures,
    drafter_finding,
    figures,
    not_speculating,
    ratio,
    surely,
)
from sparkwright.verify.checks.machine import progress_finding, slow_state, state_findings, told_of
from sparkwright.verify.checks.triage import CheckedCells, Reason, describe
from sparkwright.verify.datasets import CHATS

INVARIANCE = 0.10
"""Largest share that a mean acceptance length may be off the lowest level's. Other servers stay within
3 % over c=1 to 64 (TensorRT-LLM#16914, sglang#16818)."""
WIDEST = 0.20
"""An interval wider than this to either side decides nothing; of a quick run, twice as wide a one."""
COLLAPSE = 0.75
"""Throughput below this share of a lower level's is a warning."""
STAGGER_S = 0.02
CLEAR = 10.0
"""A time is trusted when it is this many times the client's own error."""
CLOCK_STEP_S = 1.0

_Grid = dict[tuple[str, int], "Figures"]


def cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield a closed loop for each category and level, levels of a category in order."""
    for category in context.sweep_categories:
        for level in context.profile.levels:
            yield cell(context, category, level)


def judge(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return findings on speed by category, and on invariants over levels and counters."""
    speed = context.profile.speed
    grid: _Grid = {(o.cell.tags["category"], o.cell.load.concurrency): figures(o, speed) for o in seen.sound}
    findings = [_category(seen.tagged(category=name), name, grid) for name in context.sweep_categories]
    definition = "Over the whole sweep tokens are drafted, and at least 0.05 of them a draft are accepted."
    findings.append(drafter_finding(seen, context.main, definition))
    if len(context.profile.levels) > 1:
        findings.append(_invariance(seen, grid, context))
    findings += [_tokens(seen, context.main.speculative_method), _client(seen, grid, context)]
    return [*findings, *state_findings(seen, speed)]


CHECK = Check("sweep", cells, judge)


def cell(context: Context, category: str, level: int) -> Cell:
    """Return the cell of one category and level: at least three waves, after one that warms up.

    Each prompt begins with a nonce, so that nothing comes from the prefix cache, and every output is of the
    same length, so that speed does not depend on the content.
    """
    sizes = context.profile
    requests = max(sizes.least_requests, sizes.requests_per_client * level)
    name = f"{category} c={level}"
    prompts = context.prompts_of(category, requests, f"sweep {name}")
    return context.cell(
        "sweep",
        name,
        prompts,
        tags={"category": category, "level": str(level)},
        concurrency=level,
        requests=requests,
        warm_up=level,
        max_tokens=sizes.max_tokens,
        stagger_s=STAGGER_S,
        chat=any(prompt.category == CHATS for prompt in prompts),
    )


# Speed ---------------------------------------------------------------------------------------------------


def _category(seen: CheckedCells, category: str, grid: _Grid) -> Finding:
    levels = {level: found for (of, level), found in sorted(grid.items()) if of == category}
    shown = ", ".join(map(str, levels)) or "none"
    # Cells during which the machine was slowed or swapped; a finding has slow states.
    disturbed = (one for o in seen.sound if not slow_state(o.host) for one in told_of(o))
    return conclude(
        seen,
        "sweep.category",
        told={"category": category},
        passed=f"{sum(f.requests for f in levels.values())} requests at c={shown} were answered in full",
        measured={
            f"c={level} {name}": value
            for level, found in levels.items()
            for name, value in found.measured().items()
        },
        warnings=[
            *_collapses(category, levels),
            *seen.notes,
            *(f"{one}: its times are not the usual ones" for one in disturbed),
        ],
    )


def _collapses(category: str, levels: Mapping[int, Figures]) -> list[str]:
    """Return warnings on levels with much less throughput than a lower one."""
    found, best, of = [], 0.0, 0
    for level, seen in levels.items():
        rate = seen.whole_tok_s
        if rate < COLLAPSE * best:
            found.append(f"{category} c={level} gives {rate:.0f} tok/s, c={of} gave {best:.0f}")
        if rate > best:
            best, of = rate, level
    return found


# Acceptance ----------------------------------------------------------------------------------------------


def _invariance(seen: CheckedCells, grid: _Grid, context: Context) -> Finding:
    known = {key: found.acceptance for key, found in grid.items() if found.acceptance is not None}
    lowest = min(context.profile.levels, default=1)
    widest = 2 * WIDEST if context.profile.name == "quick" else WIDEST
    against, measured = _compare_levels(known, lowest, widest)
    if unfit := not_speculating(context.main):
        against = unfit
    elif not known and not seen.troubles:
        against = [(Verdict.INCONCLUSIVE, "nothing was drafted: there is no acceptance to judge")]
    return conclude(
        seen,
        "sweep.invariance",
        told={"lowest": lowest, "widest": widest},
        against=against,
        passed=f"every level is within {INVARIANCE:.0%} of c={lowest}, as far as can be told apart from"
        " chance",
        measured=measured,
    )


def _compare_levels(
    known: Mapping[tuple[str, int], Acceptance], lowest: int, widest: float
) -> tuple[list[Reason], Values]:
    pairs = [
        (category, level, found, known[category, lowest])
        for (category, level), found in sorted(known.items(), key=lambda item: (item[0][1], item[0][0]))
        if level != lowest and (category, lowest) in known
    ]
    levels = sorted({level for _, level, _, _ in pairs})
    width = surely(len(pairs) + len(levels), 0.01)
    against: list[Reason] = []
    measured: Values = {}
    for level in levels:
        of = [(category, found, base) for category, there, found, base in pairs if there == level]
        value, spread = _mean_ratio([(found, base) for _, found, base in of])
        measured[f"c={level} MAL over c={lowest}"] = round(value, 4)
        low, high = value * math.exp(-width * spread), value * math.exp(width * spread)
        shown = f"at c={level} the mean acceptance length is {value:.2f} times that at c={lowest}"
        few = min(sum(found.drafts for _, found, _ in of), sum(base.drafts for _, _, base in of))
        if few < FEW_DRAFTS:
            against.append((Verdict.INCONCLUSIVE, f"{shown}, but {few:.0f} drafts decide nothing"))
            continue
        if _beyond(low, high):
            against.append((Verdict.FAIL, f"{shown} ({low:.2f} to {high:.2f})"))
            continue
        if math.exp(width * spread) > 1 + widest:
            against.append((Verdict.INCONCLUSIVE, f"{shown}, but it may be {low:.2f} to {high:.2f}"))
        for category, found, base in of:
            if min(found.drafts, base.drafts) < FEW_DRAFTS:
                continue
            one = ratio(found, base, width)
            if _beyond(one.low, one.high):
                shown = f"{category} c={level}: the mean acceptance length is {one} times that at c={lowest}"
                against.append((Verdict.FAIL, shown))
    return against, measured


def _mean_ratio(pairs: Sequence[tuple[Acceptance, Acceptance]]) -> tuple[float, float]:
    """Return the geometric mean of ratios, and the standard error of its logarithm."""
    logs = [math.log(found.mal / base.mal) for found, base in pairs]
    squares = [(found.error / found.mal) ** 2 + (base.error / base.mal) ** 2 for found, base in pairs]
    return math.exp(fmean(logs)), math.sqrt(sum(squares)) / len(pairs)


def _beyond(low: float, high: float) -> bool:
    return low > 1 + INVARIANCE or high < 1 - INVARIANCE


# Counters ------------------------------------------------------------------------------------------------


def _tokens(seen: CheckedCells, method: str) -> Finding:
    """Return a finding on the agreement of counters and clients, with speculation by *method*."""
    against, largest = [], 0.0
    for observation in seen.sound:
        before, after = observation.before, observation.after
        if before is None or after is None:
            continue
        steps = math.inf if method in AT_TIMES else 0
        if not method:  # nor does the log say so: each chunk is a step, with or without a draft
            steps = sum(len(sample.chunks) for sample in observation.samples)
        for identity in identities(before, after, observation.samples, steps=steps):
            largest = max(largest, identity.deviation)
            if identity.broken:
                shown = f"{describe(observation.cell)}: “{identity.name}” is off by {identity.deviation:.1%}"
                against.append((Verdict.INVALID, f"{shown}, and {identity.limit:.1%} is allowed"))
    return conclude(
        seen,
        "sweep.tokens",
        against=against,
        passed=f"all identities hold within {largest:.2%}",
        measured={"largest deviation": round(largest, 5)},
    )


# The client ----------------------------------------------------------------------------------------------


def _client(seen: CheckedCells, grid: _Grid, context: Context) -> Finding:
    """Return a finding on the client's own share in the measured times."""
    against: list[Reason] = []
    flags: list[str] = []
    speed = context.profile.speed
    for observation in seen.sound:
        where = describe(observation.cell)
        found = grid[observation.cell.tags["category"], observation.cell.load.concurrency]
        late, first = observation.lag_ms[1] * speed, found.ttft_ms.p50  # of the client's loop, p99
        # An accelerated clock multiplies the client's lag too, so they are not compared.
        if speed == 1 and late * CLEAR > first:
            flags.append(f"{where}: late client: {late:.1f} ms of a TTFT of {first:.1f} ms")
        if abs(observation.clock_step_s) > CLOCK_STEP_S:
            flags.append(f"{where}: the wall clock jumped by {observation.clock_step_s:+.1f} s")
        # Steps of the tiny models of a smoke run take no longer than this machine's own delays.
        if speed == 1 and context.profile.name != "smoke" and late > first / 2:
            shown = f"{where}: {late:.1f} ms of a time to first token of {first:.1f} ms"
            against.append((Verdict.INVALID, f"late client: {shown} may be the client's own"))
    passed = f"{len(flags)} flags, see the warnings" if flags else "nothing is flagged"
    if speed != 1:
        passed += f"; its own errors are not judged where a clock runs {speed:g} times as fast"
    return conclude(
        seen,
        "sweep.client",
        against=against,
        passed=passed,
        measured={"worst lag ms": max((o.lag_ms[0] for o in seen.sound), default=0.0)},
        warnings=flags,
    )


# The crash hunt ------------------------------------------------------------------------------------------

BURST_TOKENS = 64
"""Output of a burst; long enough for several verify steps at its full size."""
DRAIN_LEAST = 16
DRAIN_STEP = 6
"""Tokens between the lengths of two requests that drain: about two verify steps at each size."""
DOCUMENT_TOKENS = (200, 700, 1500, 4000)
"""Lengths of prompts that are mixed in, so that prefills meet decodes."""
RESERVE = 2000
"""Tokens for their output, and for documents that turn out longer than planned."""


def _crash_cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield bursts on and between the grid, a drain-down through all sizes, and mixed waves.

    The known crash comes where requests are counted with padding in one place and without in another, as at
    17 requests padded to a graph for 24. So sizes between the graphs' matter more than large ones.
    """
    sizes = context.profile
    levels = sorted({*sizes.levels, *sizes.off_grid})
    for level in levels:
        name = f"burst c={level}"
        yield context.cell(
            "crash",
            name,
            context.prompts_in_turn(level, name),
            tags={"kind": "burst"},
            shape="burst",
            concurrency=level,
            max_tokens=min(BURST_TOKENS, sizes.max_tokens),
        )
    level = max(levels if sizes.waves else sizes.off_grid or levels, default=1)
    name = f"drain from c={level}"
    yield _drain(context, name, "drain", context.prompts_in_turn(level, name))
    for number in range(1, sizes.waves + 1):
        yield _wave(context, number)


def _judge_crash(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return one finding for each load that was planned; a crash names the requests in flight."""
    bursts, drain, waves = (seen.tagged(kind=kind) for kind in ("burst", "drain", "wave"))
    levels = ", ".join(str(cell.load.concurrency) for cell in bursts.planned)
    passed = "every size down to one was passed through"
    findings = [
        conclude(bursts, "sweep.bursts", passed=f"bursts of {levels} were answered", warnings=seen.notes),
        conclude(drain, "sweep.drain", passed=passed),
    ]
    if waves.planned:
        findings.append(conclude(waves, "sweep.waves", passed=f"waves answered: {len(waves.sound)}"))
    return [*findings, progress_finding(seen, context.profile.speed)]


CRASH = Check("crash", _crash_cells, _judge_crash)


def _drain(context: Context, name: str, kind: str, prompts: Sequence[Prompt], seed: int = 0) -> Cell:
    level = len(prompts)
    return context.cell(
        "crash",
        name,
        prompts,
        tags={"kind": kind},
        shape="drain",
        concurrency=level,
        max_tokens=DRAIN_LEAST + DRAIN_STEP * level,
        min_tokens=DRAIN_LEAST,
        seed=context.profile.seed + seed,
    )


def _wave(context: Context, number: int) -> Cell:
    """Return a drain of random size in which some prompts are documents."""
    sizes = context.profile
    chance = random.Random(f"crash wave {sizes.seed} {number}")  # noqa: S311 - a choice, not a secret
    level = chance.choice([*sizes.off_grid, *sizes.levels])
    longest = context.main.max_model_len
    lengths = [tokens for tokens in DOCUMENT_TOKENS if longest < 0 or tokens + RESERVE <= longest]
    name = f"wave {number} c={level}"
    documents = [
        context.corpus.document(chance.choice(lengths), seed=sizes.seed + 1000 * number + i, salt=name)
        for i in range(-(-level // 4) if lengths else 0)
    ]
    prompts = [*context.prompts_in_turn(level - len(documents), name), *documents]
    chance.shuffle(prompts)
    return _drain(context, name, "wave", prompts, seed=number)
