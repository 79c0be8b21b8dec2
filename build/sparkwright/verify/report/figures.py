"""Figures that a report shows, drawn from observations by the definitions of `metrics` and `statistics`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.verify.metrics import Speculation, hit_rate, speculation, step_time_ms
from sparkwright.verify.statistics import steady_window, summary, whole_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sparkwright.verify.model import Observation, Snapshot
    from sparkwright.verify.run import Run
    from sparkwright.verify.statistics import Summary

__all__ = ["CellFigures", "Moment", "cells", "moments", "pooled"]

WINDOW_S = 30.0  # of a timeline, in the server's clock


@dataclass(frozen=True)
class CellFigures:
    """What one cell came to. Times and rates are in the server's clock; what cannot be said is NaN or `None`.

    Attributes:
        observation: where it comes from.
        key: the cell's.
        category: of its prompts, or empty if they are mixed.
        tokens_per_s: while at least 95 % of the cell's concurrency ran; all requests together.
        whole_tokens_per_s: from the first request to the end of the last.
        ttft_ms: time to the first token.
        tpot_ms: time per token after it.
        speculation: what drafting brought, or `None` where counters do not say.
        hit_rate: share of prompt tokens that came from the prefix cache.
        step_ms: time of one verify step.
        trouble: why its figures are not to be trusted, in a few words; empty if they are.
    """

    observation: Observation
    key: str
    category: str
    tokens_per_s: float
    whole_tokens_per_s: float
    ttft_ms: Summary | None
    tpot_ms: Summary | None
    speculation: Speculation | None
    hit_rate: float
    step_ms: float
    trouble: tuple[str, ...]

    @property
    def concurrency(self) -> int:
        """Requests at a time."""
        return self.observation.cell.load.concurrency

    @property
    def decode_rate(self) -> float:
        """Tokens a second of one request, at the median of TPOT."""
        return 1000 / self.tpot_ms.p50 if self.tpot_ms and self.tpot_ms.p50 > 0 else math.nan

    @property
    def mal(self) -> float:
        """Mean acceptance length, in tokens a step."""
        return self.speculation.mean_acceptance_length if self.speculation else math.nan


def cells(run: Run) -> tuple[CellFigures, ...]:
    """Figures of every cell, in order."""
    return tuple(_cell(observation, run.speed) for observation in run.observations)


def _cell(observation: Observation, speed: float) -> CellFigures:
    counted = observation.counted
    categories = {sample.category for sample in counted}
    spec = _speculation(observation.before, observation.after)
    ttft = _summary(sample.ttft_ms * speed for sample in counted)
    tpot = _summary(sample.tpot_ms * speed for sample in counted)
    step = math.nan
    if spec and tpot and tpot.p50 > 0:
        step = step_time_ms(spec.mean_acceptance_length, 1000 / tpot.p50)
    steady, whole = _throughputs(observation, speed)
    return CellFigures(
        observation=observation,
        key=observation.cell.key,
        category=observation.cell.tags.get("category") or (categories.pop() if len(categories) == 1 else ""),
        tokens_per_s=steady,
        whole_tokens_per_s=whole,
        ttft_ms=ttft,
        tpot_ms=tpot,
        speculation=spec,
        hit_rate=_hits(observation.before, observation.after),
        step_ms=step,
        trouble=tuple(_trouble(observation)),
    )


def _summary(values: Iterable[float]) -> Summary | None:
    finite = [value for value in values if math.isfinite(value)]
    return summary(finite) if finite else None


def _throughputs(observation: Observation, speed: float) -> tuple[float, float]:
    """Tokens a second in the steady window and over the whole run; NaN where there is none."""
    if not observation.counted:
        return math.nan, math.nan
    steady = steady_window(observation.samples, observation.cell.load.concurrency)
    whole = whole_run(observation.samples)
    return steady.tokens_per_s / speed, whole.tokens_per_s / speed


def _speculation(before: Snapshot | None, after: Snapshot | None) -> Speculation | None:
    """What drafting brought, if the counters are there and went on without a restart."""
    if before is None or after is None:
        return None
    try:
        return speculation(before, after)
    except ValueError:
        return None


def _hits(before: Snapshot | None, after: Snapshot | None) -> float:
    if before is None or after is None:
        return math.nan
    try:
        return hit_rate(before, after)
    except ValueError:
        return math.nan


def _trouble(observation: Observation) -> Iterable[str]:
    if observation.failed:
        yield f"{len(observation.failed)} of {len(observation.samples)} requests failed"
    if observation.died is not None:
        yield f"the server ended with status {observation.died}"
    if observation.canary:
        yield f"no answer afterwards: {observation.canary}"
    if observation.log:
        yield "the server's log tells of an error"
    if not observation.samples:
        yield "nothing was sent"


def pooled(found: Sequence[Speculation]) -> Speculation | None:
    """Several spans of drafting as one; `None` if there are none, or their drafts differ in length."""
    if not found or len({len(one.per_position) for one in found}) > 1:
        return None
    return Speculation(
        drafts=sum(one.drafts for one in found),
        draft_tokens=sum(one.draft_tokens for one in found),
        accepted=sum(one.accepted for one in found),
        per_position=tuple(map(sum, zip(*(one.per_position for one in found), strict=True))),
        generation_tokens=sum(one.generation_tokens for one in found),
        requests=sum(one.requests for one in found),
    )


# Over time ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """One window of a long cell, in the server's seconds since the first cell of its kind began.

    Attributes:
        begin_s: when it begins.
        end_s: when it ends.
        acceptance: share of drafted tokens that were accepted; NaN where nothing was drafted.
        hit_rate: share of prompt tokens from the prefix cache; NaN where none was looked up.
        tokens_per_s: generated, all requests together.
        kv_usage: share of the KV cache in use at its end.
        preemptions: in it.
        reset: whether the counters began anew in it.
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
    observations: Sequence[Observation], speed: float, window_s: float = WINDOW_S
) -> tuple[Moment, ...]:
    """Windows of about *window_s* over the counters of *observations*, one after another in time.

    Cells whose clock begins anew (the machine was restarted in between) follow the ones before at once.
    """
    found: list[Moment] = []
    begin, origin = 0.0, None
    for observation in observations:
        snapshots = _snapshots(observation)
        if len(snapshots) < 2:  # noqa: PLR2004 - a window has two ends
            continue
        if origin is None or (snapshots[0].at - origin) * speed / 1e9 < begin:
            origin = snapshots[0].at - round(begin * 1e9 / speed)
        found.extend(_windows(snapshots, origin, speed, window_s))
        begin = (snapshots[-1].at - origin) * speed / 1e9
    return tuple(found)


def _snapshots(observation: Observation) -> list[Snapshot]:
    ends = (observation.before, *observation.series, observation.after)
    return [snapshot for snapshot in ends if snapshot is not None]


def _windows(snapshots: Sequence[Snapshot], origin: int, speed: float, window_s: float) -> Iterable[Moment]:
    first = snapshots[0]
    for later in snapshots[1:]:
        if (later.at - first.at) * speed / 1e9 < window_s * 0.99 and later is not snapshots[-1]:
            continue
        yield _moment(first, later, origin, speed)
        first = later


def _moment(first: Snapshot, later: Snapshot, origin: int, speed: float) -> Moment:
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
