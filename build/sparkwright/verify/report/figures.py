"""Figures that a report shows: those that checks judge by, and their surroundings."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from sparkwright.engine.metrics.counters import Speculation, hit_rate, speculation
from sparkwright.engine.observations import MetricsSnapshot, Observation
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
    spec = _speculation(observation.before, observation.after)
    # counters that restarted are of no use; the client's times still are
    judged = observation
    if not (spec and observation.counted):
        judged = msgspec.structs.replace(observation, before=None, after=None)
    return CellFigures(
        **vars(figures(judged, speed)),
        observation=observation,
        key=observation.cell.key,
        hit_rate=_hits(observation.before, observation.after),
        trouble=tuple(trouble.cause for trouble in troubles(observation)),
    )


def _speculation(before: MetricsSnapshot | None, after: MetricsSnapshot | None) -> Speculation | None:
    """Return the result of drafting, if there are counters and they did not restart."""
    if before is None or after is None:
        return None
    try:
        return speculation(before, after)
    except ValueError:
        return None


def _hits(before: MetricsSnapshot | None, after: MetricsSnapshot | None) -> float:
    if before is None or after is None:
        return math.nan
    try:
        return hit_rate(before, after)
    except ValueError:
        return math.nan
