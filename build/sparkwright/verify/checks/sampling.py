"""Sampled chats: seeds decide the answer, and nothing but them; sampled answers are text.

vLLM draws with a generator of each request that has a seed, so that the same request gives the same answer if
its logits are the same. Those depend on the batch and on the share of the prompt that is cached, by rounding:
requests are sent one at a time, and the compared ones find the same blocks in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from statistics import median

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation, Sample
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import CHAT, Check, Values, conclude
from sparkwright.verify.checks.flaws import against_each, answers_in, prose_flaw
from sparkwright.verify.checks.traffic import questions
from sparkwright.verify.checks.triage import CheckedCells, Reason

TEMPERATURE = 0.7
LOADED = 4
SHORT, LONG = 64, 256
"""Tokens of an answer at the most: of those that are compared, and of those that are read."""
SAME = 0.5
"""Share of prompts of which answers to one seed are the same at the least. A server that rounds otherwise
from time to time reaches some late token before it shows."""
REPEATED = 0.5
"""Share of prompts of which answers to two seeds, or to a seed and to none, may be the same: short answers of
a sure model are, now and then."""
_LATER = 2.0
"""Answers to one seed part at least so many times later than those to two, where rounding parts them."""

_ONE, _OTHER = 11, 29  # seeds


def cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield the same chats greedily and with two seeds, one of them twice; then several at a time.

    The first fills the prefix cache.
    """
    prompts = questions("sampling", "prose", f"(Number {context.profile.seed}.) ")
    for name, temperature, seed, level, length in (
        ("greedy", 0.0, _ONE, 1, SHORT),
        ("seed A", TEMPERATURE, _ONE, 1, SHORT),
        ("seed A again", TEMPERATURE, _ONE, 1, SHORT),
        ("seed B", TEMPERATURE, _OTHER, 1, SHORT),
        ("loaded", TEMPERATURE, _OTHER, LOADED, LONG),
    ):
        yield context.cell(
            "sampling",
            name,
            prompts,
            tags={"kind": name},
            concurrency=level,
            max_tokens=length,
            thinking=context.profile.thinking,
            temperature=temperature,
            seed=1000 * context.profile.seed + seed,
            **CHAT,
        )


def judge(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return findings on one seed, on two seeds, on temperature, and on the sampled text."""
    answers = {o.cell.name: {s.prompt: s for s in o.counted} for o in seen.sound}
    sampled = seen.where(lambda cell: cell.load.temperature > 0)
    text = conclude(
        sampled,
        "sampling.text",
        against=against_each(sampled, lambda _, one: prose_flaw(one), made_up=context.made_up),
        passed=context.judged(f"{answers_in(sampled)} answers are text"),
        warnings=seen.notes,
    )
    return [_same(seen, answers), _others(seen, answers), text]


CHECK = Check("sampling", cells, judge)


# Comparing ----------------------------------------------------------------------------------------------

_Answers = dict[str, dict[str, "Sample"]]


@dataclass(frozen=True)
class _Compared:
    """Two passes over the same prompts."""

    shared: tuple[int, ...]
    same: int

    @property
    def share(self) -> float:
        """Share of the prompts of which both answers are the same."""
        return self.same / len(self.shared)

    def __str__(self) -> str:
        return f"{self.same} of {len(self.shared)}"


def _compared(answers: _Answers, one: str, other: str) -> _Compared | None:
    """Return two passes side by side; `None` if one was not measured."""
    if one not in answers or other not in answers:
        return None
    pairs = [(found, answers[other][name]) for name, found in answers[one].items() if name in answers[other]]
    if not pairs:
        return None
    shared = tuple(_shared(a, b) for a, b in pairs)
    return _Compared(shared, sum(a.text == b.text for a, b in pairs))


def _shared(one: Sample, other: Sample) -> int:
    """Return the number of tokens, or of words without their ids, that both begin with."""
    a, b = one.token_ids or one.text.split(), other.token_ids or other.text.split()
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))))


# Findings -----------------------------------------------------------------------------------------------


def _same(seen: CheckedCells, answers: _Answers) -> Finding:
    again, apart = _compared(answers, "seed A", "seed A again"), _compared(answers, "seed A", "seed B")
    against: list[Reason] = []
    warnings = []
    if again is not None and apart is not None and again.share < 1:
        early, usual = median(again.shared), median(apart.shared)
        shown = f"{again} prompts have the same answer to the same seed; others part after {early:g} tokens"
        shown += f", those of two seeds after {usual:g}"
        if again.share >= SAME:
            warnings = [f"{shown}: rounding differs from request to request"]
        elif early <= _LATER * usual + 1:
            against = [(Verdict.FAIL, f"the seed is ignored: {shown}")]
        else:
            against = [(Verdict.INCONCLUSIVE, f"{shown}: rounding may part them")]
    return conclude(
        _of(seen, "seed A", "seed A again", "seed B"),
        "sampling.same",
        against=against,
        passed=f"{again} prompts have the same answer",
        measured=_measured("same seed", again) | _measured("two seeds", apart),
        warnings=warnings,
    )


def _others(seen: CheckedCells, answers: _Answers) -> Finding:
    apart, cold = _compared(answers, "seed A", "seed B"), _compared(answers, "greedy", "seed A")
    against: list[Reason] = []
    if apart is not None and cold is not None and apart.share > REPEATED:
        shown = f"{apart} prompts have the same answer to two seeds"
        if cold.share > REPEATED:
            shown = f"the temperature is ignored: {shown}, and {cold} have that of temperature 0"
        else:
            shown = f"the seed is ignored: {shown}"
        against = [(Verdict.FAIL, shown)]
    return conclude(
        _of(seen, "greedy", "seed A", "seed B"),
        "sampling.draws",
        against=against,
        passed=f"{apart} prompts have the same answer to two seeds",
        measured=_measured("two seeds", apart) | _measured("greedy and sampled", cold),
    )


def _of(seen: CheckedCells, *names: str) -> CheckedCells:
    return seen.where(lambda cell: cell.name in names)


def _measured(name: str, compared: _Compared | None) -> Values:
    if compared is None:
        return {}
    return {f"{name}, same answers": str(compared), f"{name}, tokens shared": median(compared.shared)}
