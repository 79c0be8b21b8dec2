"""Measure acceptance of drafts by look-up and by the trained block drafter, over caches of each format.

Decoding is greedy, so drafts do not change the answer: the target's answer over a format is known from
`measures`, and each step's drafts are compared with it. A step begins at the last confirmed token, drafts,
and confirms the drafts up to the first wrong one and the token after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kv_quality.drafter import BLOCK, Drafter, context_mask, greatest
from kv_quality.formats import FORMATS
from kv_quality.training import WINDOW, features

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kv_quality.subject import Subject

__all__ = ["CASES", "block_drafts", "by_block", "by_look_up", "look_up", "walk"]

DRAFTS = BLOCK - 1
LONGEST, SHORTEST = 4, 2
"""Tokens of a match that drafts by look-up are taken from behind."""

CASES: tuple[tuple[str, str, str], ...] = (
    *((name, "16 bits", "all") for name in ("16 bits", "FP8", "NVFP4", "NVFP4, 4 over 6")),
    *((name, name, "all") for name in ("FP8", "NVFP4", "NVFP4, 4 over 6")),
    *((name, name, "window") for name in ("16 bits", "FP8", "NVFP4")),
    *((name, name, "answer alone") for name in ("16 bits", "NVFP4")),
    *((name, name, "nothing") for name in ("16 bits",)),
)
"""The target's format, the drafter's, and what of the context the drafter has.

All of it; a window's last positions; the answer alone, as where a prefix came from a cache and its context
was not stored; nothing.
"""


def look_up(tokens: Sequence[int], drafts: int = DRAFTS) -> list[int]:
    """Return the tokens behind the latest earlier occurrence of the end of *tokens*, or none.

    Longer ends are looked up first.

    Args:
        tokens: prompt and answer so far.
        drafts: tokens to return at most.
    """
    for length in range(min(LONGEST, len(tokens) - 1), SHORTEST - 1, -1):
        end = list(tokens[-length:])
        for begin in range(len(tokens) - length - 1, -1, -1):
            if list(tokens[begin : begin + length]) == end:
                return list(tokens[begin + length : begin + length + drafts])
    return []


def walk(tokens: Sequence[int], prompt: int, draft: Callable[[int], Sequence[int]]) -> dict[str, Any]:
    """Return the steps of an answer, and how often each drafted place was tried and accepted.

    Args:
        tokens: prompt and answer.
        prompt: tokens of the prompt; the answer's first token comes from the prefill.
        draft: takes the position of the last confirmed token, returns drafts.
    """
    tried, accepted = [0] * DRAFTS, [0] * DRAFTS
    steps, at = 0, prompt
    while at < len(tokens) - 1:
        drafts = list(draft(at))[: len(tokens) - 1 - at]
        right = 0
        while right < len(drafts) and drafts[right] == tokens[at + 1 + right]:
            right += 1
        for place in range(len(drafts)):
            tried[place] += 1
            accepted[place] += place < right
        steps += 1
        # After the accepted drafts the target adds a token of its own, unless the answer ends before.
        at = min(at + right + 1, len(tokens) - 1)
    return {"steps": steps, "tokens": len(tokens) - 1 - prompt, "tried": tried, "accepted": accepted}


def block_drafts(
    subject: Subject, drafter: Drafter, tokens: Sequence[int], prompt: int, name: str
) -> Iterator[tuple[str, str, list[list[int]]]]:
    """Yield the drafter's format, what context it has, and its drafts from each position of an answer.

    Args:
        subject: the target.
        drafter: trained over it.
        tokens: prompt and answer.
        prompt: tokens of the prompt.
        name: the format of the target's cache.
    """
    ids = torch.tensor(list(tokens))
    states = features(subject, ids[None], name)
    anchors = torch.arange(prompt, len(tokens) - 1)
    exact = drafter.store(states)
    largest = greatest(exact)
    for target, own, context in CASES:
        if target != name:
            continue
        format_ = FORMATS[own]

        def rounded(x: torch.Tensor, layer: int, side: int, format_: Any = format_) -> torch.Tensor:
            scale = largest[layer, side] / format_.top if format_.top else 1.0
            return (format_.values if side else format_.keys)(x, scale)

        begin = {"answer alone": prompt, "nothing": len(tokens)}.get(context, 0)
        window = WINDOW if context == "window" else None
        mask = context_mask(anchors, len(tokens), window, BLOCK, begin)
        drafts = drafter.draft(ids[anchors][None], anchors[None], drafter.store(states, rounded), mask[None])[
            0
        ]
        yield own, context, drafts.tolist()


def by_look_up(asked: dict[str, list[int]], answers: dict[str, list[int]]) -> list[dict[str, Any]]:
    """Return the acceptance of drafts by look-up, a row for each prompt.

    Args:
        asked: prompts by name.
        answers: the target's greedy answers by the prompts' names; those of one token have no drafts.
    """
    rows = []
    for key, answer in answers.items():
        if len(answer) > 1:
            tokens = [*asked[key], *answer]
            found = walk(tokens, len(asked[key]), lambda at, known=tokens: look_up(known[: at + 1]))
            rows.append({"prompt": key, "drafter": "look-up", "own": "", "context": "", **found})
    return rows


def by_block(
    subject: Subject, drafter: Drafter, asked: dict[str, list[int]], name: str, answers: dict[str, list[int]]
) -> list[dict[str, Any]]:
    """Return the acceptance of the block drafter over a target's cache, a row for each case and prompt.

    Args:
        subject: the target.
        drafter: the block drafter.
        asked: prompts by name.
        name: the format of the target's cache.
        answers: the target's greedy answers over it, by the prompts' names.
    """
    rows = []
    for key, answer in answers.items():
        begin, tokens = len(asked[key]), [*asked[key], *answer]
        if len(answer) > 1:
            for own, context, drafts in block_drafts(subject, drafter, tokens, begin, name):
                found = walk(tokens, begin, lambda at, drafts=drafts, begin=begin: drafts[at - begin])
                rows.append({"prompt": key, "drafter": "block", "own": own, "context": context, **found})
    return rows
