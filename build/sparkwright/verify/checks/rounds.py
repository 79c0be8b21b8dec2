"""Cells of a soak: rounds of traffic over shared prefixes, and the same probes around them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import msgspec

from sparkwright.engine.cell import Cell, Prompt
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context

ROUND_S = 300.0
LEAST_ROUNDS = 4
PREFIXES = 4
PREFIX_TOKENS = 2000
PROBES = 24
PROBE_TOKENS = 128


def cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield for each round primers, probes cold and cached, and traffic; then final probes.

    The traffic of all rounds takes `Profile.soak_s`; probes take about a third of that more.
    """
    total = context.profile.soak_s
    rounds = max(LEAST_ROUNDS, math.ceil(total / ROUND_S - 1e-9))
    for number in range(rounds + 1):
        yield from _probe_cells(context, number)
        if number < rounds:
            yield _traffic_cell(context, number, total / rounds)


def _prefix(context: Context, number: int) -> str:
    return context.corpus.notes(PREFIX_TOKENS, number, f"soak {context.profile.seed}")


def _after(prefix: str, question: Prompt, mark: str, *, shared: bool) -> Prompt:
    """Return *question* after the notes in *prefix*: the shared text, or a new copy with a mark."""
    text = prefix if shared else f"[{mark} {question.name.rpartition('/')[2]}]\n{prefix}"
    return Prompt(
        name=f"{question.name}/{mark}",
        category=question.category,
        text=f"{text}[{mark}]\n{question.text}",
        expect=question.expect,
        prefix=prefix if shared else "",
    )


def _probe_cells(context: Context, number: int) -> Iterator[Cell]:
    """Yield primers of the prefixes, and probes after new copies of them and after the prefixes."""
    sizes = context.profile
    prefixes = [_prefix(context, i) for i in range(PREFIXES)]
    questions = context.prompts_in_turn(PROBES, "soak probe")
    tokens = min(PROBE_TOKENS, sizes.max_tokens)
    for kind, count, length, shared in (
        ("primer", PREFIXES, 8, True),
        ("cold", PROBES, tokens, False),
        ("cached", PROBES, tokens, True),
    ):
        prompts = [
            _after(prefixes[i % PREFIXES], question, f"{kind} {number}", shared=shared)
            for i, question in enumerate(questions[:count])
        ]
        yield context.cell(
            "soak",
            f"round {number} {kind}",
            prompts,
            tags={"kind": kind, "round": str(number)},
            concurrency=min(sizes.soak_concurrency, len(prompts)),
            max_tokens=length,
        )


def _traffic_cell(context: Context, number: int, seconds: float) -> Cell:
    """Return traffic: half after shared prefixes, a quarter after notes of its own, a quarter short.

    The questions are the same in every round, so that the mix of what is said does not change.
    """
    sizes = context.profile
    count = 4 * len(sizes.categories)
    mark = f"traffic {number}"
    prompts = []
    for i, question in enumerate(context.prompts_in_turn(count, "soak traffic")):
        # Each category gets each treatment once.
        match (i + i // len(sizes.categories)) % 4:
            case 0 | 2:
                prompts.append(_after(_prefix(context, i % PREFIXES), question, mark, shared=True))
            case 1:
                prompts.append(_after(_prefix(context, PREFIXES + i), question, mark, shared=False))
            case _:
                salted = f"[{mark}]\n{question.text}"
                prompts.append(msgspec.structs.replace(question, name=f"{question.name}/{mark}", text=salted))
    return context.cell(
        "soak",
        f"round {number} traffic",
        prompts,
        tags={"kind": "traffic", "round": str(number)},
        concurrency=sizes.soak_concurrency,
        requests=count,
        max_tokens=sizes.max_tokens,
        seconds=seconds,
        stagger_s=5.0,
    )
