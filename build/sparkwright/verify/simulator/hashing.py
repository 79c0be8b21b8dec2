"""Numbers that look random and follow from what they are made of, the same in every process."""

from __future__ import annotations

import math
from hashlib import blake2b

_MASK = (1 << 64) - 1


def mix(state: int, value: int) -> int:
    """A 64-bit state moved on by *value*: the finalizer of SplitMix64 over both."""
    state = ((state ^ value) + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def digest(data: bytes) -> int:
    """64 bits of *data*."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def unit(state: int) -> float:
    """A state as a number in (0, 1)."""
    return ((state >> 11) + 0.5) / (1 << 53)


def bell(state: int) -> float:
    """A state as a draw from the standard normal distribution (Box and Muller)."""
    return math.sqrt(-2 * math.log(unit(mix(state, 1)))) * math.cos(2 * math.pi * unit(mix(state, 2)))


def gumbel(state: int) -> float:
    """A state as a draw from the Gumbel distribution; the largest of logit + draw samples a softmax."""
    return -math.log(-math.log(unit(state)))
