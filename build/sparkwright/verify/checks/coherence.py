"""Detection of broken text: answers with natural ends, alone and under load.

Nonsense in good English is text too, so well-known facts are asked for as well: a trained model of any size
knows nearly all of them, and one whose tokens are wrong next to none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.engine.cell import Cell, Load, Prompt
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation, Sample
from sparkwright.verify.check import Context, RegisteredCheck
from sparkwright.verify.checks.acceptance import acceptance
from sparkwright.verify.checks.common import CheckedCells, Reason, conclude, describe, triage
from sparkwright.verify.checks.text import Flaw, excerpt, flaw
from sparkwright.verify.corpus import FACTS, holds

ALONE = 2
"""Prompts of each category one at a time, and twice as many under load."""
LOADED = 16
REPEATING = 0.10
"""Share of answers that may end in a loop: with greedy sampling a sound model does, now and then."""
LEAST_RIGHT = 0.60
"""Share of known facts that are right at the least. SmolLM2-135M-Instruct knows 12 of 12; rounding may cost
it one or two of them, and taking the second most likely token each time costs 8."""


@dataclass(frozen=True)
class Coherence:
    """Chat answers that end by themselves, one at a time and many at a time."""

    name: str = "coherence"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return a cell alone and one under load: of prompts, and of known facts if the model was trained."""
        loads = (("alone", 1, ALONE), ("loaded", LOADED, 2 * ALONE))
        prompts = [
            _cell(context, name, level, context.prompts_of_each(each, f"coherence {name}"))
            for name, level, each in loads
        ]
        facts = () if context.made_up else context.corpus.facts()
        known = [_cell(context, f"{FACTS} {name}", level, facts) for name, level, _ in loads if facts]
        return (*prompts, *known)

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return a finding on broken answers, one on loops and one on known facts."""
        everything = triage(self, context, observations)
        seen = everything.where(lambda cell: not _asks_facts(cell))
        flaws = [(o, sample, _flaw(sample)) for o in seen.sound for sample in o.counted]
        bad = [(o, sample, found) for o, sample, found in flaws if found and found.kind != "repetition"]
        loops = [(o, sample, found) for o, sample, found in flaws if found and found.kind == "repetition"]
        known = {o.cell.name: found for o in seen.sound if (found := acceptance(o)) is not None}
        looping = _against(loops) if len(loops) > max(1, REPEATING * len(flaws)) else []
        return [
            conclude(
                seen,
                "answers are text",
                "No answer is empty, one token over and over, or garbage: characters that are none, alphabets"
                " that change from word to word.",
                against=_against(bad),
                passed=f"{len(flaws)} answers are text",
                threshold="none; “one token” is one that makes up 80 % of 32 tokens or more",
                measured={f"{name} MAL with natural ends": round(a.mal, 3) for name, a in known.items()},
                warnings=seen.notes,
            ),
            conclude(
                seen,
                "answers do not loop",
                "No answer's second half is the same few tokens over and over (a period of up to 100, four"
                " times or more).",
                against=looping,
                passed=f"{len(loops)} of {len(flaws)} answers loop",
                threshold=f"at most {REPEATING:.0%} of the answers, and one",
                warnings=[] if looping else [f"{sample.prompt}: {found.shown}" for _, sample, found in loops],
                lenient=True,
            ),
            _facts(context, everything.where(_asks_facts)),
        ]


CHECK = RegisteredCheck(Coherence(), profiles={"full": 20, "cpu": 20, "demo": 20})


def _cell(context: Context, name: str, level: int, prompts: tuple[Prompt, ...]) -> Cell:
    sizes = context.profile
    load = Load(
        concurrency=min(level, len(prompts)),
        requests=len(prompts),
        max_tokens=sizes.max_tokens,
        natural_stop=True,
        chat=True,
        thinking=context.profile.thinking,
        seed=sizes.seed,
    )
    return Cell(check="coherence", name=f"{name} c={load.concurrency}", load=load, prompts=prompts)


def _asks_facts(cell: Cell) -> bool:
    return any(prompt.category == FACTS for prompt in cell.prompts)


def _facts(context: Context, seen: CheckedCells) -> Finding:
    against: list[Reason] = []
    measured: dict[str, float | str] = {}
    for observation in seen.sound:
        expected = {prompt.name: prompt.expect for prompt in observation.cell.prompts}
        answers = observation.counted
        wrong = [sample for sample in answers if not holds(expected[sample.prompt], sample.text)]
        where, right = describe(observation.cell), len(answers) - len(wrong)
        measured[f"{where} right"] = right
        if right < LEAST_RIGHT * len(answers):
            shown = f"{where}: {right} of {len(answers)} answers are right"
            example = f"{wrong[0].prompt} should have “{expected[wrong[0].prompt]}” in it"
            against.append((Verdict.FAIL, f"{shown}; {example}, and is “{excerpt(wrong[0].text)}”"))
    passed = "; ".join(f"{value} {name}" for name, value in measured.items())
    return conclude(
        seen,
        "known facts are right",
        "Questions of which every trained model knows the answer, such as for capitals of countries.",
        against=against,
        passed="not judged: the model's weights are made up" if context.made_up else passed,
        threshold=f"at least {LEAST_RIGHT:.0%} of each cell's answers hold the expected word",
        measured=measured,
    )


def _flaw(sample: Sample) -> Flaw | None:
    if any(chunk.kind == "tool" for chunk in sample.chunks):
        return None  # arguments are no prose
    return flaw(sample.text, sample.token_ids, sample.output_tokens)


def _against(flawed: Sequence[tuple[Observation, Sample, Flaw]]) -> list[Reason]:
    """Return flaws by cell and kind, with the first answer that has each."""
    groups: dict[tuple[str, str], list[tuple[Sample, Flaw]]] = {}
    totals: dict[str, int] = {}
    for observation, sample, found in flawed:
        where = describe(observation.cell)
        totals[where] = len(observation.counted)
        groups.setdefault((where, found.kind), []).append((sample, found))
    against = []
    for (where, kind), group in groups.items():
        sample, first = group[0]
        shown = f"{where}: {kind} in {len(group)} of {totals[where]} answers"
        against.append((Verdict.FAIL, f"{shown}, first to {sample.prompt}: {first.shown}"))
    return against
