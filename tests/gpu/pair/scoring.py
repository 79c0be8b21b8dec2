"""The cases of `lossless_pair.py`, and what must come of them: no import of vLLM here."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from pair.models import words

# The output head has rows for these alone, a row and its negative each, so that drafters of made-up weights
# guess right often enough for both outcomes of a draft to be met.
TOKENS = (100, 2000, 4000, 8000)
MAX_MODEL_LEN = 1024  # a multiple of 128: the block table ends with the longest request
ALLOWED = {"auto": 0.25, "fp8": 0.5, "nvfp4": 1.0}
"""Nats that a token's log probability may be below the best one's, by KV cache dtype.

Logits have a standard deviation of about 1, and prefill and decode round differently.
"""
RARE = {"auto": 0.05, "fp8": 0.1, "nvfp4": 0.1}
"""Largest share of tokens that may be below the best one at all: near ties."""


@dataclass(frozen=True)
class LosslessCase:
    """One engine: runner ``v1`` or ``v2``, KV cache dtype of the target, and kind of drafter.

    ``drafter`` is ``none`` (no speculation), ``plain``, ``window`` or ``planted``, where drafts are accepted
    without looking at them.
    """

    runner: str
    eager: bool
    kv: str
    drafter: str

    @property
    def name(self) -> str:
        return f"{self.runner}-{'eager' if self.eager else 'graphs'}-{self.kv}-{self.drafter}"

    @property
    def judge(self) -> LosslessCase:
        """The case without speculation that scores this one's tokens."""
        return LosslessCase(self.runner, self.eager, self.kv, "none")


CASES = [
    LosslessCase(runner, eager, kv, drafter)
    for runner in ("v1", "v2")
    for eager in (True, False)
    for kv in ("auto", "fp8", "nvfp4")
    for drafter in ("none", "plain", "window", "planted")
]


@dataclass(frozen=True)
class Score:
    """Tokens of one case under the model without speculation."""

    tokens: int
    below: int  # tokens that are not the most probable one
    worst: float  # nats below it
    same: int  # requests answered as without speculation
    requests: int


def prompts(level: int) -> list[tuple[list[int], int]]:
    """Return *level* requests, token ids and output length; every fourth one reaches the longest sequence."""
    asked = []
    for client in range(level):
        source = random.Random(f"{level}-{client}")
        reaches = client % 4 == 0
        length = (
            MAX_MODEL_LEN - 120 - source.randrange(16) if reaches else 3 + (37 * client + 13 * level) % 251
        )
        output = MAX_MODEL_LEN - length if reaches else 40 + client % 23
        asked.append((words(source, length), output))
    return asked


def scored(gaps: list[list[float]], same: list[bool]) -> Score:
    """Sum up *gaps*, nats below the best token for each token of each request, and which are the *same*."""
    flat = [gap for request in gaps for gap in request]
    worst = math.nan if any(math.isnan(gap) for gap in flat) else max(flat, default=math.nan)
    return Score(len(flat), sum(gap > 0 for gap in flat), worst, sum(same), len(same))


def shortfalls(case: LosslessCase, score: Score, accepted: float | None) -> list[str]:
    """Return what is wrong with a case, in words; an empty list is a pass."""
    found = []
    allowed = ALLOWED[case.kv]
    if not score.worst <= allowed:  # not a number is no less than anything
        found.append(f"a token is {score.worst:.3f} nats below the best one, {allowed} allowed")
    if not score.tokens or score.below > RARE[case.kv] * score.tokens:
        found.append(f"{score.below} of {score.tokens} tokens are not the most probable ones")
    if case.drafter not in ("none", "planted") and not (accepted is not None and 0.02 < accepted < 0.98):
        found.append(f"accepted share of drafts {accepted}: not both outcomes were met")
    return found
