"""Send an engine requests at each concurrency, and one prefix twice."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pair.load import ACCEPTED, DRAFTED
from pair.models import VOCABULARY

LEVELS = (1, 8, 64)
PREFIX, PREFIX_OUTPUT = 1500, 24


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
        prompt = [source.randrange(3, VOCABULARY - 1) for _ in range(length)]
        found.append(Asked(prompt, 40 - client % 17))
    return found


def prefix() -> Asked:
    """Return a long request, to be asked for twice: the second time from the prefix cache."""
    source = random.Random("fleet-prefix")
    return Asked([source.randrange(3, VOCABULARY - 1) for _ in range(PREFIX)], PREFIX_OUTPUT)


def drafts_of(asked: Asked) -> int:
    """Return the decode steps of a request, each of which verifies a draft, under synthetic acceptance."""
    return -(-(asked.output - 1) // (ACCEPTED + 1))


def expected(level: int) -> dict[str, int]:
    """Return what the counters of drafts rise by at a level, under synthetic acceptance."""
    steps = sum(map(drafts_of, requests(level)))
    return {"drafts": steps, "drafted": DRAFTED * steps, "accepted": ACCEPTED * steps}
