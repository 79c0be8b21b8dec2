"""Is what the prefix cache holds for a drafter what a clean computation gives? Tensors only, on any device.

A position is compared over all layers, keys and values: the error is the norm of the difference over the norm
of the clean vector, the largest one counts. Rounding differs between a prefill and a decode step; a vector of
another token, of a drafter's query, or of nothing at all differs by about its own length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

WITH_SIDES, IN_ROWS = 5, 4  # dimensions of a cache
ALLOWED = 0.25
"""Error beyond which a position holds something else."""
POISON = 3.0
"""Values that the drafter's cache is filled with beforehand."""


@dataclass(frozen=True)
class Verdict:
    """Positions that were compared."""

    positions: int = 0
    never_written: int = 0
    wrong: int = 0  # with an error beyond `ALLOWED`
    worst: float = 0.0  # error of the others

    def __add__(self, other: Verdict) -> Verdict:
        """Both together."""
        return Verdict(
            self.positions + other.positions,
            self.never_written + other.never_written,
            self.wrong + other.wrong,
            max(self.worst, other.worst),
        )


def compare(seen: list[torch.Tensor], clean: list[torch.Tensor]) -> Verdict:
    """Compare blocks, position by position."""
    import torch

    errors, unwritten = [], []
    for one, other in zip(seen, clean, strict=True):
        found, wanted = one.float().flatten(3), other.float().flatten(3)  # (blocks, 2, block size, width)
        length = wanted.norm(dim=-1).clamp_min(1e-12)
        errors.append(((found - wanted).norm(dim=-1) / length).amax(dim=1))
        unwritten.append((found == POISON).all(dim=-1).any(dim=1))
    error = torch.stack(errors).amax(dim=0).nan_to_num(nan=torch.inf)  # (blocks, block size)
    untouched = torch.stack(unwritten).any(dim=0)
    wrong = (error > ALLOWED) & ~untouched
    right = error[~wrong & ~untouched]
    return Verdict(
        error.numel(),
        int(untouched.sum()),
        int(wrong.sum()),
        float(right.max()) if right.numel() else 0.0,
    )


def sides(cache: Any, blocks: int, slots: int) -> Any:
    """Return *cache* as a view (blocks, 2, slots, heads, values)."""
    shape = tuple(cache.shape)
    if len(shape) == WITH_SIDES and shape[:3] == (blocks, 2, slots):
        return cache
    if len(shape) == IN_ROWS and (shape[0], shape[2]) == (blocks, slots) and shape[3] % 2 == 0:
        return cache.unflatten(3, (2, shape[3] // 2)).permute(0, 3, 2, 1, 4)
    raise ValueError(f"a cache of shape {shape} cannot be read here")


def some_skipped(mapping: Any, every: int) -> Any:
    """Return a copy of a slot mapping in which one row in *every* has no slot.

    *mapping* is a tensor, or since 0.33 a list with one for each layer; None stays None.
    """
    if mapping is None:
        return None
    if isinstance(mapping, list | tuple):
        return [some_skipped(one, every) for one in mapping]
    copy = mapping.clone()
    copy[::every] = -1
    return copy
