"""The search as a check of the suite: each step is a cell, and the answer a finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from sparkwright.engine.cell import Cell, Prompt
from sparkwright.engine.findings import Finding
from sparkwright.engine.observations import Observation
from sparkwright.verify.capacity.options import CHECK, CapacityOptions
from sparkwright.verify.capacity.report import conclude_search
from sparkwright.verify.capacity.search import NextStep, decide
from sparkwright.verify.capacity.step import FACTOR, step_of
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import Check, CheckedCells, unanswered
from sparkwright.verify.datasets import CHATS

OBJECTIVE = "objective"
"""Tag of a cell: the objective, as the user gave it."""
_POOL, _DOCUMENTS = 48, 16
_SEEDS = 1000  # a search has fewer steps


def capacity_check(options: CapacityOptions, prompts: tuple[Prompt, ...] = ()) -> Check:
    """Return the check that sends open loops at rates that follow from the steps before.

    Args:
        options: objective and limits.
        prompts: of the user's; if none, documents or the corpus's.
    """

    def judge(context: Context, seen: CheckedCells) -> Sequence[Finding]:
        return conclude_search(options, context, seen.made)

    return Check(CHECK, partial(_cells, options, prompts), judge)


def _cells(
    options: CapacityOptions, prompts: tuple[Prompt, ...], context: Context, seen: Mapping[str, Observation]
) -> Iterator[Cell]:
    """Yield the steps that were made, and the next one; none if the server is gone or it is decided."""
    observations = list(seen.values())
    yield from (one.cell for one in observations)
    if any(one.died is not None or unanswered(one.canary) for one in observations):
        return
    slo, speed, number = options.objective, context.profile.speed, len(observations)
    step = decide([step_of(one, slo, speed) for one in observations], options.plan)
    if isinstance(step, NextStep):
        prompts = prompts or _generated(options, context)
        yield context.cell(
            CHECK,
            f"step {number + 1}: {step.rate:.4g} requests/s",
            prompts,
            tags={OBJECTIVE: options.slo, FACTOR: str(step.factor)},
            shape="open",
            concurrency=0,
            rate=step.rate,
            requests=step.requests,
            warm_up=step.warm_up,
            max_tokens=options.max_tokens,
            chat=any(prompt.category == CHATS for prompt in prompts),
            thinking=context.profile.thinking,
            seed=context.profile.seed * _SEEDS + number,
        )


def _generated(options: CapacityOptions, context: Context) -> tuple[Prompt, ...]:
    """Return documents of the length that was asked for, or the corpus's prompts in turn."""
    if not options.input_tokens:
        return context.prompts_in_turn(_POOL, CHECK)
    seed, tokens = context.profile.seed, options.input_tokens
    return tuple(context.document(tokens, seed + number, CHECK) for number in range(_DOCUMENTS))
