"""Requests that decode while long prompts of others are prefilled: they slow down, and lose nothing.

A prompt is prefilled in chunks, and each step with a chunk also decodes one token (or draft) of every other
request. How long such a step takes is a choice of the server's (max-num-batched-tokens); that decoding waits
for all prompts is a fault.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median

from sparkwright.engine.cell import Cell, Prompt
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation, Sample
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import CHAT, Check, Values, conclude, not_applicable
from sparkwright.verify.checks.figures import event_gap_ms
from sparkwright.verify.checks.triage import CheckedCells, Reason

DECODERS, PROMPTS = 4, 3
LONG_TOKENS = 8_000
"""Of a prompt, or half of the longest request if that is less: more than one chunk on most servers."""
TOKENS = 256
BESIDE_TOKENS = 2 * TOKENS
"""Of a request beside prompts: it still decodes when they come, though the client may be late."""
COUNTED = 100
"""Numbers that a decoding request is to write, of which one that is missing shows; its tokens are too few for
all of them, so that requests have one length."""
STARVED = 0.8
"""Share of the time of prefill without a token of any other request. One prompt more or less in a step leaves
two thirds at the most, since prompts arrive one after another."""
STALL_S = 30.0
"""Longest wait for a token. A chunk of 16,384 tokens takes a GB10 ten seconds."""
FEW_GAPS = 10
"""Usual gaps between tokens: prefill that is shorter than so many is not judged as starving others."""
BROKEN = 2
"""Decoding requests that miss numbers, of those that count rightly alone."""
_BEGIN = 0.7  # of a request's duration alone, within which all of them start
_NUMBER = re.compile(r"\d+")


def cells(context: Context, seen: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield counting alone, one request at a time, and once it is known how long, beside long prompts."""
    prompts = _counting(context, "alone")
    first = context.cell("mixed", "decoding alone", prompts, max_tokens=TOKENS, **CHAT)
    yield first
    alone = seen.get(first.key)
    if alone is not None and alone.counted:
        yield _beside(context, alone)


def judge(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return a finding on gaps while prompts are prefilled, and one on lost tokens."""
    by_name = {observation.cell.name: observation for observation in seen.sound}
    alone, beside = by_name.get("decoding alone"), by_name.get("beside prompts")
    return [_gaps(context, seen, alone, beside), _lost(context, seen, alone, beside)]


CHECK = Check("mixed", cells, judge)


# Cells --------------------------------------------------------------------------------------------------


def _counting(context: Context, kind: str) -> tuple[Prompt, ...]:
    """Return the requests that decode: each counts from another number."""
    return tuple(
        Prompt(
            name=f"count {kind}/{first}",
            category="extraction",
            text=f"(Series {context.profile.seed}.) Write the numbers from {first} to {first + COUNTED - 1},"
            " separated by commas, and nothing else.",
            expect=str(first),
        )
        for first in range(100, 100 + 200 * DECODERS, 200)
    )


def _beside(context: Context, alone: Observation) -> Cell:
    """Return the cell of both kinds; clients start one after another, those with long prompts last."""
    lasts = median(sample.ended - sample.started for sample in alone.counted) / 1e9 * context.profile.speed
    longest, tokens = context.main.max_model_len, LONG_TOKENS
    if longest > 0:
        tokens = min(tokens, (longest - BESIDE_TOKENS) // 2)
    documents = [context.document(tokens, 1000 * context.profile.seed + n, "mixed") for n in range(PROMPTS)]
    prompts = (*_counting(context, "beside"), *documents)
    return context.cell(
        "mixed",
        "beside prompts",
        prompts,
        concurrency=len(prompts),
        max_tokens=BESIDE_TOKENS,
        # To a tenth of a second, so that the cell has few forms.
        stagger_s=round(_BEGIN * lasts, 1),
        **CHAT,
    )


def _decoders(observation: Observation) -> list[Sample]:
    return [sample for sample in observation.counted if sample.prompt.startswith("count ")]


# Gaps ---------------------------------------------------------------------------------------------------


def _waits(observation: Observation, speed: float) -> tuple[float, list[float], int]:
    """Return the time of prefill, the longest wait of each decoding request in it, and their chunks.

    Times are in seconds of the server's clock.
    """
    long = [sample for sample in observation.counted if not sample.prompt.startswith("count ")]
    begin, end = min(sample.started for sample in long), max(sample.first for sample in long)
    longest, chunks = [], 0
    for sample in _decoders(observation):
        if not sample.first < begin < sample.last:
            continue
        times = [chunk.at for chunk in sample.chunks]
        longest.append(max(min(b, end) - max(a, begin) for a, b in pairwise(times)) / 1e9 * speed)
        chunks += sum(begin < at <= end for at in times)
    return (end - begin) / 1e9 * speed, longest, chunks


def _gaps(
    context: Context, seen: CheckedCells, alone: Observation | None, beside: Observation | None
) -> Finding:
    against: list[Reason] = []
    measured: Values = {}
    if alone is not None and beside is not None:
        gap = event_gap_ms(alone.counted)  # the mean, since one read may return several
        usual = gap / 1e3 * context.profile.speed if math.isfinite(gap) else 0.0
        span, longest, chunks = _waits(beside, context.profile.speed)
        measured = {
            "seconds of prefill": round(span, 3),
            "longest gap s": round(max(longest, default=0.0), 3),
            "usual gap alone s": round(usual, 4),
            "chunks meanwhile": chunks,
        }
        against = _stalled(span, longest, usual)
    return conclude(
        seen,
        "mixed.gaps",
        against=against,
        passed=f"longest gap {measured.get('longest gap s', '')} s in"
        f" {measured.get('seconds of prefill', '')} s of prefill, and"
        f" {measured.get('chunks meanwhile', '')} chunks",
        measured=measured,
        warnings=seen.notes,
    )


def _stalled(span: float, longest: Sequence[float], usual: float) -> list[Reason]:
    """Return the reasons against the *longest* waits in the *span* of prefill."""
    if not longest:
        return [(Verdict.INCONCLUSIVE, "no request decoded when the first long prompt came")]
    if span > FEW_GAPS * usual and min(longest) > STARVED * span:
        shown = f"{len(longest)} requests got no token while prompts were prefilled, for"
        return [(Verdict.FAIL, f"{shown} {min(longest):.1f} of {span:.1f} s: decoding starves")]
    if max(longest) > STALL_S:
        shown = f"a request waited {max(longest):.1f} s for a token while prompts were prefilled"
        return [(Verdict.FAIL, f"{shown}; lower max-num-batched-tokens")]
    return []


# Lost tokens --------------------------------------------------------------------------------------------


def missing(answer: str, first: int) -> str:
    """Return the flaw of an *answer* that counts from *first* on; empty if no number is left out.

    An answer that ends early, or in the middle of a number, has none.
    """
    found = [int(number) for number in _NUMBER.findall(answer)]
    if not found or found[0] != first:
        return f"it begins with {found[0] if found else 'no number'} instead of {first}"
    for before, after in pairwise(found):
        at_the_end = after == found[-1] and str(before + 1).startswith(str(after))
        if after != before + 1 and not at_the_end:
            return f"{after} follows {before}"
    return ""


def _lost(
    context: Context, seen: CheckedCells, alone: Observation | None, beside: Observation | None
) -> Finding:
    against: list[Reason] = []
    warnings: list[str] = []
    sure: set[str] = set()
    if alone is not None and all(s.reasoning_chars and not s.answer.strip() for s in _decoders(alone)):
        shown = f"the model thinks for more than {TOKENS} tokens before it counts"
        return not_applicable(seen, "mixed.lost", shown)
    if alone is not None and beside is not None and not context.made_up:
        flaws = [
            {_first(sample): missing(sample.answer, int(_first(sample))) for sample in _decoders(observation)}
            for observation in (alone, beside)
        ]
        sure = {first for first, flaw in flaws[0].items() if not flaw}
        broken = [f"from {first} on, {flaws[1][first]}" for first in sorted(sure) if flaws[1].get(first)]
        shown = f"{len(broken)} of {len(sure)} answers that are right alone miss numbers beside prompts"
        if len(broken) >= BROKEN:
            against = [(Verdict.FAIL, f"numbers are missing: {shown}, first {broken[0]}")]
        elif len(sure) < BROKEN:
            shown = f"{len(sure)} of {DECODERS} answers count rightly alone: this model cannot be tested so"
            against = [(Verdict.INCONCLUSIVE, shown)]
        elif broken:
            warnings = [f"{shown}: {broken[0]}"]
    return conclude(
        seen,
        "mixed.lost",
        against=against,
        passed=context.judged(f"{len(sure)} of {DECODERS} answers count rightly alone, and beside prompts"),
        warnings=warnings,
    )


def _first(sample: Sample) -> str:
    return sample.prompt.rpartition("/")[2]
