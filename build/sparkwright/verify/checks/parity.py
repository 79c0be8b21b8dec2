"""Comparison of greedy answers with those of another server of the same model: another wheel, or a plain one.

A smaller sibling of `lossless`, for servers that take a minute to start and compute as others do: one start
of each, and no tasks, which a small model does not solve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import BASELINE, Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context
from sparkwright.verify.checks.answers import ALTERNATIVES, Agreement, answers_agree, too_noisy
from sparkwright.verify.checks.common import Check, Values, conclude
from sparkwright.verify.checks.triage import CheckedCells, Reason

LEVELS = (1, 8)
LENGTH = 48
FEW_PROMPTS = 8


def cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield the same prompts to both servers, one at a time and eight at a time, the main one's first."""
    sizes = context.profile
    each = -(-sizes.lossless_prompts // len(sizes.categories))
    prompts = context.prompts_of_each(each, "parity")[: sizes.lossless_prompts]
    for arm in ("main", "baseline"):
        for level in LEVELS:
            yield context.cell(
                "parity",
                f"answers c={level}",
                prompts,
                arm=arm,
                tags={"level": str(level)},
                concurrency=level,
                max_tokens=min(LENGTH, sizes.max_tokens),
                logprobs=ALTERNATIVES,
            )


def judge(_: Context, seen: CheckedCells) -> list[Finding]:
    """Return one finding on the first tokens at which answers differ."""
    seen = seen.without_failed_baseline()
    by_place = {(o.cell.arm, o.cell.load.concurrency): o for o in seen.sound}
    found, measured = Agreement(), Values()
    against = [(Verdict.INCONCLUSIVE, "there are no answers of the other server")]
    if (reference := by_place.get(("baseline", 1))) is not None:
        of_itself = by_place.get(("baseline", LEVELS[-1]))
        found = answers_agree(
            ((reference, o) for (arm, _), o in by_place.items() if arm == "main"),
            [(reference, of_itself)] if of_itself is not None else (),
        )
        against = list(found.against) or _against(found)
        if not found.against:
            measured = {**found.figures, "other server's largest gap nat": round(found.usual, 4)}
    return [
        conclude(
            seen,
            "parity.answers",
            told={"limit": found.limit},
            against=against,
            passed=f"{measured.get('answers that differ', 0)} of {measured.get('answers', 0)} answers"
            f" differ, none by more than {measured.get('largest gap nat', 0)} nat",
            measured=measured,
            warnings=seen.notes,
            needs=(BASELINE,),
        )
    ]


# In no profile: rehearsals run it, and --checks.
CHECK = Check("parity", cells, judge)


def _against(found: Agreement) -> list[Reason]:
    if found.fewest < FEW_PROMPTS:
        return [(Verdict.INCONCLUSIVE, f"fewer than {FEW_PROMPTS} answers to compare")]
    if noisy := too_noisy("the other server differs from itself", found.usual):
        return noisy
    parted = found.beyond(found.limit, "leave the other server's")
    return [(Verdict.FAIL, parted)] if parted else []
