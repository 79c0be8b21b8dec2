"""The search as a check of the suite: each step is a cell, and the answer a finding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.engine.cell import Cell, Load, Prompt
from sparkwright.engine.findings import Finding
from sparkwright.engine.observations import Observation
from sparkwright.verify.capacity.options import CHECK, CapacityOptions
from sparkwright.verify.capacity.report import conclude_search
from sparkwright.verify.capacity.search import NextStep, decide
from sparkwright.verify.capacity.step import FACTOR, step_of
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import main_facts, unanswered
from sparkwright.verify.corpus import WORDS_PER_TOKEN
from sparkwright.verify.datasets import CHATS

OBJECTIVE = "objective"
"""Tag of a cell: the objective, as the user gave it."""
_POOL, _DOCUMENTS = 48, 16
_SEEDS = 1000  # a search has fewer steps


@dataclass(frozen=True)
class CapacityCheck:
    """Open loops at rates that follow from the steps before.

    Attributes:
        options: objective and limits.
        prompts: of the user's; if none, documents or the corpus's.
    """

    options: CapacityOptions
    prompts: tuple[Prompt, ...] = ()
    name: str = CHECK

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return the first step."""
        return self.extend(context, ())

    def extend(self, context: Context, observations: Sequence[Observation]) -> tuple[Cell, ...]:
        """Return the step that follows from *observations*; none if the server is gone or it is decided."""
        if any(seen.died is not None or unanswered(seen.canary) for seen in observations):
            return ()
        slo, speed = self.options.objective, context.profile.speed
        step = decide([step_of(seen, slo, speed) for seen in observations], self.options.plan)
        return (self._cell(context, len(observations), step),) if isinstance(step, NextStep) else ()

    def judge(self, context: Context, observations: Sequence[Observation]) -> Sequence[Finding]:
        """Return the capacity, the knee, and if the server survived."""
        return conclude_search(self.options, context, observations)

    def _cell(self, context: Context, number: int, step: NextStep) -> Cell:
        prompts = self.prompts or self._generated(context)
        return Cell(
            check=self.name,
            name=f"step {number + 1}: {step.rate:.4g} requests/s",
            load=Load(
                shape="open",
                concurrency=0,
                rate=step.rate,
                requests=step.requests,
                warm_up=step.warm_up,
                max_tokens=self.options.max_tokens,
                chat=any(prompt.category == CHATS for prompt in prompts),
                thinking=context.profile.thinking,
                seed=context.profile.seed * _SEEDS + number,
            ),
            prompts=prompts,
            tags={OBJECTIVE: self.options.slo, FACTOR: str(step.factor)},
        )

    def _generated(self, context: Context) -> tuple[Prompt, ...]:
        """Return documents of the length that was asked for, or the corpus's prompts in turn."""
        if not self.options.input_tokens:
            return context.prompts_in_turn(_POOL, self.name)
        words = main_facts(context).words_per_token
        return tuple(
            context.corpus.document(
                self.options.input_tokens,
                context.profile.seed + number,
                salt=self.name,
                words_per_token=words if words > 0 and math.isfinite(words) else WORDS_PER_TOKEN,
            )
            for number in range(_DOCUMENTS)
        )
