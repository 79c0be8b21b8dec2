"""Detection of broken text: answers with natural ends, alone and under load.

Nonsense in good English is text too, so well-known facts are asked for as well: a trained model of any size
knows nearly all of them, and one whose tokens are wrong next to none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import CHAT, Check, Values, answered, conclude
from sparkwright.verify.checks.figures import acceptance
from sparkwright.verify.checks.flaws import against_each, answers_in, excerpt, text_flaw
from sparkwright.verify.checks.triage import CheckedCells, Reason, describe
from sparkwright.verify.corpus import FACTS, holds

ALONE, LOADED = 2, 16
"""Prompts of each category one at a time, with twice as many under load; requests at a time there."""
REPEATING = 0.10
"""Share of answers that may end in a loop: with greedy sampling a sound model does, now and then."""
LEAST_RIGHT = 0.60
"""Share of known facts that are right at the least. SmolLM2-135M-Instruct knows 12 of 12; rounding may cost
it one or two of them, and taking the second most likely token each time costs 8."""


def cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield a cell alone and one under load: of prompts, and of known facts if the model was trained."""
    loads = (("alone", 1, ALONE), ("loaded", LOADED, 2 * ALONE))
    kinds = [(name, level, context.prompts_of_each(each, f"coherence {name}")) for name, level, each in loads]
    if facts := () if context.made_up else context.corpus.facts():
        kinds += [(f"{FACTS} {name}", level, facts) for name, level, _ in loads]
    for name, level, prompts in kinds:
        c = min(level, len(prompts))
        yield context.cell(
            "coherence",
            f"{name} c={c}",
            prompts,
            concurrency=c,
            max_tokens=context.profile.max_tokens,
            thinking=context.profile.thinking,
            **CHAT,
        )


def judge(context: Context, everything: CheckedCells) -> list[Finding]:
    """Return a finding on broken answers, one on loops and one on known facts."""
    seen = everything.where(lambda cell: not _asks_facts(cell))
    loops = [
        (sample, loop) for o in seen.sound for sample in o.counted if (loop := text_flaw(sample, loops=True))
    ]
    known = {o.cell.name: found for o in seen.sound if (found := acceptance(o)) is not None}
    many = len(loops) > max(1, REPEATING * answers_in(seen))
    return [
        conclude(
            seen,
            "coherence.text",
            against=against_each(seen, lambda _, sample: text_flaw(sample)),
            passed=f"{answers_in(seen)} answers are text",
            measured={f"{name} MAL with natural ends": round(a.mal, 3) for name, a in known.items()},
            warnings=seen.notes,
        ),
        conclude(
            seen,
            "coherence.loops",
            against=against_each(seen, lambda _, sample: text_flaw(sample, loops=True)) if many else [],
            passed=f"{len(loops)} of {answers_in(seen)} answers loop",
            warnings=[] if many else [f"{sample.prompt}: {loop}" for sample, loop in loops],
        ),
        _facts(context, everything.where(_asks_facts)),
    ]


CHECK = Check("coherence", cells, judge)


def _asks_facts(cell: Cell) -> bool:
    return any(prompt.category == FACTS for prompt in cell.prompts)


def _facts(context: Context, seen: CheckedCells) -> Finding:
    against: list[Reason] = []
    measured: Values = {}
    for observation in seen.sound:
        answers = answered(observation)
        wrong = [(sample, expect) for sample, expect in answers if not holds(expect, sample.text)]
        where, right = describe(observation.cell), len(answers) - len(wrong)
        measured[f"{where} right"] = right
        if right < LEAST_RIGHT * len(answers):
            sample, expect = wrong[0]
            shown = f"{where}: {right} of {len(answers)} answers are right"
            example = f"{sample.prompt} should have “{expect}” in it"
            against.append((Verdict.FAIL, f"{shown}; {example}, and is “{excerpt(sample.text)}”"))
    passed = "; ".join(f"{value} {name}" for name, value in measured.items())
    return conclude(
        seen, "coherence.facts", against=against, passed=context.judged(passed), measured=measured
    )
