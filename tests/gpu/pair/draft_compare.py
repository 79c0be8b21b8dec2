"""Is what the prefix cache holds for a drafter what a clean computation gives? Tensors only, on any device.

A position is compared over all layers, keys and values: the error is the norm of the difference over the norm
of the clean vector, the largest one counts. Rounding differs between a prefill and a decode step; a vector of
another token, of a drafter's query, or of nothing at all differs by about its own length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

ALLOWED = 0.25
"""Error beyond which a position holds something else."""
POISON = 3.0
"""What the drafter's cache is filled with beforehand."""


@dataclass(frozen=True)
class Verdict:
    """Positions that were compared."""

    positions: int = 0
    never_written: int = 0
    wrong: int = 0  # with an error beyond `ALLOWED`
    worst: float = 0.0  # error of the others
    first: tuple[int, ...] = ()

    @property
    def bad(self) -> int:
        """Positions that do not hold what a clean computation gives."""
        return self.never_written + self.wrong

    def __add__(self, other: Verdict) -> Verdict:
        """Both together."""
        return Verdict(
            self.positions + other.positions,
            self.never_written + other.never_written,
            self.wrong + other.wrong,
            max(self.worst, other.worst),
            (self.first + other.first)[:8],
        )


def compare(seen: list[torch.Tensor], clean: list[torch.Tensor]) -> Verdict:
    """Compare blocks, position by position."""
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
    places = (wrong | untouched).any(dim=1).nonzero().flatten().tolist()
    return Verdict(
        error.numel(),
        int(untouched.sum()),
        int(wrong.sum()),
        float(right.max()) if right.numel() else 0.0,
        tuple(places[:8]),
    )
