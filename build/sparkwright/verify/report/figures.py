"""Figures that a report shows: those that checks judge by, and their surroundings."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import msgspec

from sparkwright.engine.metrics.counters import hit_rate
from sparkwright.engine.observations import Observation
from sparkwright.verify.checks.figures import Figures, figures
from sparkwright.verify.checks.triage import troubles
from sparkwright.verify.run import Run


@dataclass(frozen=True, kw_only=True)
class CellFigures(Figures):
    """The figures of one cell as checks see them, all NaN if no request counted, and their surroundings.

    Attributes:
        hit_rate: share of prompt tokens that came from the prefix cache.
        trouble: the reasons not to trust its figures; empty if there are none.
    """

    observation: Observation
    key: str
    hit_rate: float
    trouble: tuple[str, ...]

    @property
    def mal(self) -> float:
        """Mean acceptance length, in tokens a step."""
        return self.acceptance.mal if self.acceptance else math.nan


def cells(run: Run) -> tuple[CellFigures, ...]:
    """Return the figures of every cell, in order."""
    return tuple(_cell(observation, run.speed) for observation in run.observations)


def _cell(observation: Observation, speed: float) -> CellFigures:
    bare, hits = msgspec.structs.replace(observation, before=None, after=None), math.nan
    try:
        found = figures(observation if observation.counted else bare, speed)
    except ValueError:  # counters that restarted are of no use; the client's times still are
        found = figures(bare, speed)
    if observation.before is not None and observation.after is not None:
        with contextlib.suppress(ValueError):
            hits = hit_rate(observation.before, observation.after)
    return CellFigures(
        **vars(found),
        observation=observation,
        key=observation.cell.key,
        hit_rate=hits,
        trouble=tuple(trouble.cause for trouble in troubles(observation)),
    )
