"""Send an engine requests at each concurrency, and one prefix twice."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pair.load import ACCEPTED, DRAFTED, Request
from pair.models import MAX_MODEL_LEN, words

LEVELS = (1, 8, 64)
PREFIX_OUTPUT = 24


@dataclass(frozen=True)
class Asked:
    """A request: token ids of its prompt, and tokens to generate."""

    prompt: list[int]
    output: int


def requests(level: int) -> list[Asked]:
    """Return *level* requests; every fourth prompt is longer than any window."""
    found = []
    for client in range(level):
        source = random.Random(f"fleet-{level}-{client}")
        length = 300 + 17 * (client % 7) if client % 4 == 0 else 3 + (37 * client + 13 * level) % 120
        found.append(Asked(words(source, length), 40 - client % 17))
    return found


def prefix() -> Asked:
    """Return a request up to the longest sequence, to be asked for twice: then from the prefix cache."""
    length = MAX_MODEL_LEN - PREFIX_OUTPUT
    return Asked(words(random.Random("fleet-prefix"), length), PREFIX_OUTPUT)


def expected(level: int) -> dict[str, int]:
    """Return what the counters of drafts rise by at a level, under synthetic acceptance."""
    steps = sum(Request("", len(one.prompt), one.output, 0.0).drafts for one in requests(level))
    return {"drafts": steps, "drafted": DRAFTED * steps, "accepted": ACCEPTED * steps}
