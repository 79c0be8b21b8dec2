"""Figures that a report shows: those that checks judge by, and the course of counters over time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from sparkwright.engine.capabilities import METRICS
from sparkwright.engine.metrics import Speculation, hit_rate, speculation
from sparkwright.engine.observations import MetricsSnapshot, Observation
from sparkwright.verify.checks.figures import Figures, figures
from sparkwright.verify.checks.machine import energy_per_token_j
from sparkwright.verify.checks.triage import troubles
from sparkwright.verify.run import Run

WINDOW_S = 30.0  # of a timeline, in the server's clock
_NEARLY = 0.98  # of it: snapshots do not come on the second
_FULL = 0.5  # of it: less is the end of a cell, when little runs


@dataclass(frozen=True, kw_only=True)
class CellFigures(Figures):
    """The figures of one cell as checks see them, all NaN if no request counted, and their surroundings.

    Attributes:
        category: of its prompts, or empty if they are mixed.
        speculation: the result of drafting, or `None` where counters do not hold it.
        hit_rate: share of prompt tokens that came from the prefix cache.
        trouble: the reasons not to trust its figures; empty if there are none.
        energy_j: that the card drew for each generated token, in the server's time; NaN where not read.
    """

    observation: Observation
    key: str
    category: str
    speculation: Speculation | None
    hit_rate: float
    trouble: tuple[str, ...]
    energy_j: float = math.nan

    @property
    def mal(self) -> float:
        """Mean acceptance length, in tokens a step."""
        return self.acceptance.mal if self.acceptance else math.nan


def cells(run: Run, check: str = "") -> tuple[CellFigures, ...]:
    """Return the figures of every cell, or of every cell of one *check*, in order."""
    chosen = (seen for seen in run.observations if check in {"", seen.cell.check})
    return tuple(_cell(observation, run.speed, metered=METRICS not in run.lacks) for observation in chosen)


def _cell(observation: Observation, speed: float, *, metered: bool) -> CellFigures:
    categories = {sample.category for sample in observation.counted}
    spec = _speculation(observation.before, observation.after)
    # counters that restarted are of no use; the client's times still are
    judged = observation
    if not (spec and observation.counted):
        judged = msgspec.structs.replace(observation, before=None, after=None)
    return CellFigures(
        **vars(figures(judged, speed)),
        observation=observation,
        key=observation.cell.key,
        category=observation.cell.tags.get("category") or (categories.pop() if len(categories) == 1 else ""),
        speculation=spec,
        hit_rate=_hits(observation.before, observation.after),
        trouble=tuple(trouble.cause for trouble in troubles(observation, metered=metered)),
        energy_j=energy_per_token_j(observation, speed),
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


# Over time ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """One window of a long cell, in the server's seconds since the soak's first cell began.

    Attributes:
        acceptance: share of drafted tokens that were accepted; NaN where nothing was drafted.
        hit_rate: share of prompt tokens from the prefix cache; NaN where none was looked up.
        tokens_per_s: generated, all requests together.
        kv_usage: share of the KV cache in use at its end.
        reset: the counters restarted in it.
    """

    begin_s: float
    end_s: float
    acceptance: float
    hit_rate: float
    tokens_per_s: float
    kv_usage: float
    preemptions: float
    reset: bool = False

    @property
    def middle_s(self) -> float:
        """The moment that stands for it."""
        return (self.begin_s + self.end_s) / 2


def moments(
    observation: Observation, begin_s: float, speed: float, window_s: float = WINDOW_S
) -> tuple[Moment, ...]:
    """Return windows of about *window_s* over the counters of a cell that began at *begin_s*."""
    ends = (observation.before, *observation.series, observation.after)
    snapshots = [snapshot for snapshot in ends if snapshot is not None]
    if not snapshots:
        return ()
    origin = snapshots[0].at - round(begin_s * 1e9 / speed)
    return tuple(_windows(snapshots, origin, speed, window_s))


def _windows(
    snapshots: Sequence[MetricsSnapshot], origin: int, speed: float, window_s: float
) -> Iterable[Moment]:
    """Yield windows that end with the first snapshot that is late enough; a short rest is left out."""
    first = snapshots[0]
    for later in snapshots[1:]:
        seconds = (later.at - first.at) * speed / 1e9
        if seconds >= window_s * (_FULL if later is snapshots[-1] else _NEARLY):
            yield _moment(first, later, origin, speed)
            first = later


def _moment(first: MetricsSnapshot, later: MetricsSnapshot, origin: int, speed: float) -> Moment:
    begin, end = ((snapshot.at - origin) * speed / 1e9 for snapshot in (first, later))
    spec = _speculation(first, later)
    drafted = spec is not None and spec.draft_tokens > 0
    generated = later.generation_tokens - first.generation_tokens
    return Moment(
        begin_s=begin,
        end_s=end,
        acceptance=spec.acceptance_rate if spec and drafted else math.nan,
        hit_rate=_hits(first, later) if later.prefix_queries > first.prefix_queries else math.nan,
        tokens_per_s=generated / (end - begin) if end > begin and generated >= 0 else math.nan,
        kv_usage=later.kv_usage if later.kv_usage >= 0 else math.nan,
        preemptions=max(0.0, later.preemptions - first.preemptions),
        reset=later.start_s != first.start_s or generated < 0,
    )
