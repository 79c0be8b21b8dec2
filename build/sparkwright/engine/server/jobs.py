"""The number of compilers that FlashInfer may run at once, by the memory that a server leaves free.

FlashInfer gives ninja a number only by MAX_JOBS. Without it ninja starts two more than there are cores: 22
on a GB10, whose memory holds the model too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparkwright.base.machine import look
from sparkwright.recipes.recipe import Recipe

JOBS = "MAX_JOBS"
COMPILER_GIB = 7.0
"""The most that one of FlashInfer's compilers was seen to take, rounded up; see docs/companion.md."""
_RESERVE_GIB = 4.0  # of the host
_USUAL_SHARE = 0.92  # vLLM 0.33's default; 0.24's is 0.9
_GIB = 1 << 30


@dataclass(frozen=True)
class Room:
    """The cores and the memory of a machine.

    Attributes:
        cores: that this process may use.
        available_gib: memory that this process can be given now, by its control groups too.
        total_gib: memory of the whole machine, which a server takes its share of.
        shared: the card has no memory of its own.
    """

    cores: int
    available_gib: float
    total_gib: float
    shared: bool


def compilers_at_once(recipe: Recipe, room: Room) -> int:
    """Return how many compilers fit beside the server of *recipe*; at least one."""
    share = recipe.flags.get("gpu-memory-utilization", _USUAL_SHARE)
    taken = float(share) * room.total_gib if room.shared else 0.0
    free = room.available_gib - taken - _RESERVE_GIB
    return max(1, min(room.cores, int(free // COMPILER_GIB)))


def jobs_variable(recipe: Recipe, environment: Mapping[str, str]) -> dict[str, str]:
    """Return MAX_JOBS for the server of *recipe*; nothing without a card, or where *environment* has it."""
    import psutil

    from sparkwright.base.card import card_capability, card_fields

    if JOBS in environment or not card_capability():
        return {}
    machine = look()
    (own,) = card_fields("memory.total") or ("",)
    room = Room(
        cores=machine.cores,
        available_gib=machine.available_mib / 1024,
        total_gib=psutil.virtual_memory().total / _GIB,
        shared=not own[:1].isdecimal(),
    )
    return {JOBS: str(compilers_at_once(recipe, room))}
