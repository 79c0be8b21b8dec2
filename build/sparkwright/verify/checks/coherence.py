"""Detection of broken text: answers with natural ends, alone and under load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.verify.check import RegisteredCheck
from sparkwright.verify.checks.acceptance import acceptance
from sparkwright.verify.checks.common import conclude, describe, triage
from sparkwright.verify.checks.text import flaw
from sparkwright.verify.model import Cell, Load, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.verify.check import Context
    from sparkwright.verify.checks.common import Reason
    from sparkwright.verify.checks.text import Flaw
    from sparkwright.verify.model import Finding, Observation, Sample

ALONE = 2
"""Prompts of each category one at a time, and twice as many under load."""
LOADED = 16
REPEATING = 0.10
"""Share of answers that may end in a loop: with greedy sampling a sound model does, now and then."""


@dataclass(frozen=True)
class Coherence:
    """Chat answers that end by themselves, one at a time and many at a time."""

    name: str = "coherence"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return one cell alone and one under load."""
        return (_cell(context, "alone", 1, ALONE), _cell(context, "loaded", LOADED, 2 * ALONE))

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return a finding on broken answers and one on loops."""
        seen = triage(self, context, observations)
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
        ]


CHECK = RegisteredCheck(Coherence(), profiles={"full": 20, "demo": 20})


def _cell(context: Context, name: str, level: int, each: int) -> Cell:
    sizes = context.profile
    prompts = context.prompts_of_each(each, f"coherence {name}")
    load = Load(
        concurrency=min(level, len(prompts)),
        requests=len(prompts),
        max_tokens=sizes.max_tokens,
        natural_stop=True,
        chat=True,
        seed=sizes.seed,
    )
    return Cell(check="coherence", name=f"{name} c={load.concurrency}", load=load, prompts=prompts)


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
