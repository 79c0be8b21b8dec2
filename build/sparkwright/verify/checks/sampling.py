"""Sampled chats: seeds decide the answer, and nothing but them; sampled answers are text.

vLLM draws with a generator of each request that has a seed, so that the same request gives the same answer if
its logits are the same. Those depend on the batch and on the share of the prompt that is cached, by rounding:
requests are sent one at a time, and the compared ones find the same blocks in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import median

from sparkwright.engine.cell import Cell, Load, Prompt
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation, Sample
from sparkwright.verify.check import Context, RegisteredCheck
from sparkwright.verify.checks.chatter import (
    against_each,
    answers_in,
    broken_characters,
    reasoning_mark,
    role_mark,
)
from sparkwright.verify.checks.common import CheckedCells, Reason, conclude, triage
from sparkwright.verify.checks.text import flaw

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

_QUESTIONS = (
    "Invent the beginning of a story about a lighthouse. Write three sentences.",
    "Describe an imaginary animal that lives in a forest. Write three sentences.",
    "Write a short poem about rain on a window.",
    "Invent a dish with potatoes and say how it tastes. Write three sentences.",
    "Describe a stranger whom you meet on a train. Write three sentences.",
    "Invent a festival of a small town and describe it in three sentences.",
)
_ONE, _OTHER = 11, 29  # seeds


@dataclass(frozen=True)
class Sampling:
    """The same chats greedily, with two seeds, and with one of these again; then several at a time."""

    name: str = "sampling"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return the passes, one request at a time, and a loaded one; the first fills the prefix cache."""
        prompts = _prompts(context)
        passes = (
            ("greedy", 0.0, _ONE),
            ("seed A", TEMPERATURE, _ONE),
            ("seed A again", TEMPERATURE, _ONE),
            ("seed B", TEMPERATURE, _OTHER),
        )
        alone = [_cell(context, name, prompts, temperature, seed) for name, temperature, seed in passes]
        return (*alone, _cell(context, "loaded", prompts, TEMPERATURE, _OTHER, loaded=True))

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return findings on one seed, on two seeds, on temperature, and on the sampled text."""
        seen = triage(self, context, observations)
        answers = {o.cell.name: {s.prompt: s for s in o.counted} for o in seen.sound}
        return [_same(seen, answers), _others(seen, answers), _text(context, seen)]


CHECK = RegisteredCheck(Sampling(), profiles={"full": 26})


def _prompts(context: Context) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(name=f"sampling/{n}", category="prose", text=f"(Number {context.profile.seed}.) {text}")
        for n, text in enumerate(_QUESTIONS)
    )


def _cell(
    context: Context,
    name: str,
    prompts: tuple[Prompt, ...],
    temperature: float,
    seed: int,
    *,
    loaded: bool = False,
) -> Cell:
    load = Load(
        concurrency=LOADED if loaded else 1,
        requests=len(prompts),
        max_tokens=LONG if loaded else SHORT,
        natural_stop=True,
        chat=True,
        thinking=context.profile.thinking,
        temperature=temperature,
        seed=1000 * context.profile.seed + seed,
    )
    return Cell(check="sampling", name=name, load=load, prompts=prompts, tags={"kind": name})


# Comparing ----------------------------------------------------------------------------------------------

_Answers = dict[str, dict[str, "Sample"]]


@dataclass(frozen=True)
class _Compared:
    """Two passes over the same prompts.

    Attributes:
        shared: tokens at the beginning that both answers of a prompt have, by prompt.
        same: prompts of which both answers are the same.
    """

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
        "a seed gives one answer",
        f"Chats at temperature {TEMPERATURE}, one request at a time: the same request twice, with its prompt"
        " in the prefix cache both times.",
        against=against,
        passed=f"{again} prompts have the same answer",
        threshold=f"{SAME:.0%} of the prompts; fewer fail if they part about as early as those of two seeds",
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
        "sampling draws",
        f"Chats at temperature {TEMPERATURE} with two seeds, and at temperature 0.",
        against=against,
        passed=f"{apart} prompts have the same answer to two seeds",
        threshold=f"at most {REPEATED:.0%} of the prompts",
        measured=_measured("two seeds", apart) | _measured("greedy and sampled", cold),
        lenient=True,
    )


def _text(context: Context, seen: CheckedCells) -> Finding:
    sampled = seen.where(lambda cell: cell.load.temperature > 0)
    against = [] if context.made_up else against_each(sampled, _flaw)
    return conclude(
        sampled,
        "sampled answers are text",
        "No sampled answer is empty, one token over and over, or garbage, and none holds markers of roles,"
        " marks of reasoning or broken characters.",
        against=against,
        passed="not judged: the model's weights are made up"
        if context.made_up
        else f"{answers_in(sampled)} answers are text",
        threshold="none",
        warnings=seen.notes,
    )


def _flaw(_: Observation, sample: Sample) -> str:
    """Return the flaw of a sampled answer; empty if there is none."""
    found = flaw(sample.text, sample.token_ids, sample.output_tokens)
    return (
        (f"{found.kind}: {found.shown}" if found and found.kind != "repetition" else "")
        or role_mark(sample.answer)
        or reasoning_mark(sample.answer)
        or broken_characters(sample.text, cut=sample.finish_reason == "length")
    )


def _of(seen: CheckedCells, *names: str) -> CheckedCells:
    return seen.where(lambda cell: cell.name in names)


def _measured(name: str, compared: _Compared | None) -> dict[str, float | str]:
    if compared is None:
        return {}
    return {f"{name}, same answers": str(compared), f"{name}, tokens shared": median(compared.shared)}
