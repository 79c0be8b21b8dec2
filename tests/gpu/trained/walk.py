"""Compute what a drafter would have drafted for known answers, and count the steps of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trained.cells import DRAFTS
from trained.training import features

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trained.model import Drafter
    from trained.training import Target

__all__ = ["drafts_of", "predicted", "walk"]


def walk(tokens: Sequence[int], prompt: int, drafts: Sequence[Sequence[int]]) -> list[int]:
    """Return how many tokens each step of an answer confirms: the right drafts, and one of the target's own.

    The last step, which the answer's end may cut, is left out.

    Args:
        tokens: prompt and answer.
        prompt: tokens of the prompt; the answer's first token comes from the prefill.
        drafts: from each place of the answer on.
    """
    steps, at = [], prompt
    while at < len(tokens) - 1:
        right = 0
        for place, draft in enumerate(drafts[at - prompt]):
            if at + 1 + place >= len(tokens) or draft != tokens[at + 1 + place]:
                break
            right += 1
        steps.append(right + 1)
        at += right + 1
    return steps[:-1]


@torch.inference_mode()
def drafts_of(target: Target, drafter: Drafter, tokens: Sequence[int], prompt: int) -> list[list[int]]:
    """Return the drafts from each place of an answer on."""
    ids = torch.tensor(list(tokens), device=target.device)[None]
    context = drafter.store(features(target, ids, drafter.shape.features))
    anchors = torch.arange(prompt, len(tokens) - 1, device=target.device)[None]
    found = drafter.draft(ids[0, anchors[0]][None], anchors, context, target.embedding, target.head)
    return [[int(token) for token in row] for row in found[0].tolist()]


def predicted(
    target: Target, drafter: Drafter, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return the steps of each answer, as `walk` counts them; prompts without an answer are left out."""
    found = []
    for prompt, answer in zip(prompts, answers, strict=False):
        tokens = [*prompt, *answer]
        drafts = drafts_of(target, drafter, tokens, len(prompt)) if len(answer) > 1 else []
        found.append(walk(tokens, len(prompt), drafts))
    return found


def by_place(steps: Sequence[Sequence[int]]) -> list[float]:
    """Return the share of all steps in which each drafted place was accepted."""
    every = [one for row in steps for one in row]
    return [sum(one > place + 1 for one in every) / max(1, len(every)) for place in range(DRAFTS)]


def tokens_a_step(steps: Sequence[Sequence[int]]) -> float:
    """Return the mean of the tokens that a step confirms."""
    every: list[Any] = [one for row in steps for one in row]
    return sum(every) / max(1, len(every))
