"""Intervals of what was measured on several texts, by drawing texts again."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["bootstrap", "quantile"]

DRAWS = 1000

T = TypeVar("T")


def bootstrap(texts: Sequence[T], figure: Callable[[Sequence[T]], float]) -> tuple[float, float]:
    """Return the 95 % interval of *figure* over *texts*, which are drawn again as wholes.

    Args:
        texts: what was measured on each text; places of one text are not independent of each other.
        figure: of all texts.
    """
    draw = random.Random(0)  # noqa: S311 - not a secret
    found = sorted(figure(draw.choices(texts, k=len(texts))) for _ in range(DRAWS))
    return quantile(found, 0.025), quantile(found, 0.975)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which *share* of ascending *values* lie, linear between two."""
    place = share * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])
