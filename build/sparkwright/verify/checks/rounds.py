"""Cells of a soak: rounds of traffic over shared prefixes, and the same probes around them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from sparkwright.engine.cell import Cell, Load, Prompt
from sparkwright.verify.check import Context

ROUND_S = 300.0
LEAST_ROUNDS = 4
PREFIXES = 4
PREFIX_TOKENS = 2000
PROBES = 24
PROBE_TOKENS = 128


def plan_rounds(context: Context) -> tuple[Cell, ...]:
    """Return for each round primers, probes cold and cached, and traffic; then final probes.

    The traffic of all rounds takes `Profile.soak_s`; probes take about a third of that more.
    """
    cells: list[Cell] = []
    rounds, seconds = _rounds(context)
    for number in range(rounds + 1):
        cells += _probe_cells(context, number)
        if number < rounds:
            cells.append(_traffic_cell(context, number, seconds))
    return tuple(cells)


def _rounds(context: Context) -> tuple[int, float]:
    """Return the number of rounds of traffic, and the length of each in seconds of the server's clock."""
    total = context.profile.soak_s
    number = max(LEAST_ROUNDS, math.ceil(total / ROUND_S - 1e-9))
    return number, total / number


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


def _probe_cells(context: Context, number: int) -> tuple[Cell, Cell, Cell]:
    """Return primers of the prefixes, and probes after new copies of them and after the prefixes."""
    sizes = context.profile
    prefixes = [_prefix(context, i) for i in range(PREFIXES)]
    questions = context.prompts_in_turn(PROBES, "soak probe")

    def cell(kind: str, prompts: Sequence[Prompt], length: int) -> Cell:
        return Cell(
            check="soak",
            name=f"round {number} {kind}",
            load=Load(
                concurrency=min(sizes.soak_concurrency, len(prompts)),
                requests=len(prompts),
                max_tokens=length,
                seed=sizes.seed,
            ),
            prompts=tuple(prompts),
            tags={"kind": kind, "round": str(number)},
        )

    def asked(kind: str, *, shared: bool) -> list[Prompt]:
        return [
            _after(prefixes[i % PREFIXES], question, f"{kind} {number}", shared=shared)
            for i, question in enumerate(questions)
        ]

    tokens = min(PROBE_TOKENS, sizes.max_tokens)
    primers = asked("primer", shared=True)[:PREFIXES]
    return (
        cell("primer", primers, 8),
        cell("cold", asked("cold", shared=False), tokens),
        cell("cached", asked("cached", shared=True), tokens),
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
    return Cell(
        check="soak",
        name=f"round {number} traffic",
        load=Load(
            concurrency=sizes.soak_concurrency,
            requests=count,
            max_tokens=sizes.max_tokens,
            seconds=seconds,
            stagger_s=5.0,
            seed=sizes.seed,
        ),
        prompts=tuple(prompts),
        tags={"kind": "traffic", "round": str(number)},
    )
