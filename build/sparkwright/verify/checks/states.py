"""Findings on states of the machine and the engine that look like slowness: the slow state, and the wedge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import msgspec

from sparkwright.engine.capabilities import METRICS
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import HostSample, MetricsSnapshot, Observation
from sparkwright.verify.checks.common import conclude
from sparkwright.verify.checks.machine import describe_card, is_low, slow_state, under_load
from sparkwright.verify.checks.triage import CheckedCells, describe, unanswered

FROZEN_S = 15.0
"""Seconds of the server's clock without a token, at the end of a cell, from which an engine that holds
requests and answers no further one is wedged. A prefill of 33,000 tokens takes a GB10 some 30 s, but the
plain request after the cell gets its answer then."""
LITTLE = 0.6
"""Share of the power under load below which a card computes nothing useful."""
LOW_W = 30.0
"""Power in W below which a GB10 computes nothing, where none was read while tokens came."""
BUSY_WAIT = 50.0
"""Percent of utilization of a card on which a kernel runs."""


def state_findings(seen: CheckedCells, speed: float) -> list[Finding]:
    """Return the findings on the slow state of the card, and on an engine that is wedged.

    *speed* is the server's seconds in one of the client's.
    """
    return [*clocks_findings(seen, speed), progress_finding(seen, speed)]


# The slow state ------------------------------------------------------------------------------------------


def clocks_findings(seen: CheckedCells, speed: float) -> list[Finding]:
    """Return the finding on clocks of the card under load; none where they are not known."""
    made = seen.made
    samples = [(one, sample) for one in made for sample in under_load(one.host)]
    if not samples:
        return []
    stuck = [one for one in made if slow_state(one.host)]
    shown = describe_card([sample for _, sample in samples])
    found = conclude(
        seen.on_facts(),
        "states.clocks",
        against=[(Verdict.INVALID, _slow_cause(made, stuck, speed))] if stuck else [],
        passed=f"{shown} under load (medians)",
        measured={
            "samples under load": len(samples),
            "in the slow state": sum(is_low(sample) for _, sample in samples),
        },
    )
    return [msgspec.structs.replace(found, evidence=tuple(one.cell.key for one in stuck or made))]


def _slow_cause(made: Sequence[Observation], stuck: Sequence[Observation], speed: float) -> str:
    """Return clocks, power and throughput in the slow state, and of cells of the same kind without it."""
    low = [sample for one in stuck for sample in under_load(one.host) if is_low(sample)]
    well = [one for one in made if under_load(one.host) and one not in stuck]
    usual = [sample for one in well for sample in under_load(one.host)]
    cause = f"slow state of the machine in {_cells(stuck)}: {describe_card(low)} under load, without heat"
    if usual:
        cause += f"; {describe_card(usual)} in {_cells(well)}"
    if (fraction := _fraction(stuck, well, speed)) is not None:
        cause += f"; tokens/s are {fraction:.2f} of those there"
    return f"{cause}. On a DGX Spark, unplug its power supply for a minute, then verify again"


def _cells(made: Sequence[Observation]) -> str:
    more = f" and {len(made) - 1} more" if len(made) > 1 else ""
    return f"{describe(made[0].cell)}{more}"


def _fraction(stuck: Sequence[Observation], well: Sequence[Observation], speed: float) -> float | None:
    """Return throughput of *stuck* over that of *well* under the same load (medians); `None` without both."""
    pairs = [
        (_tokens_per_s(one, speed), median(usual))
        for one in stuck
        if (usual := [_tokens_per_s(other, speed) for other in well if _load_of(other) == _load_of(one)])
    ]
    return (
        median(slow / usual for slow, usual in pairs if usual) if any(usual for _, usual in pairs) else None
    )


def _load_of(observation: Observation) -> tuple[object, ...]:
    """Return what two cells must share for their throughput to be compared."""
    load, tags = observation.cell.load, observation.cell.tags
    return load.shape, load.concurrency, load.max_tokens, tags.get("kind"), tags.get("cache")


def _tokens_per_s(observation: Observation, speed: float) -> float:
    tokens = sum(sample.output_tokens for sample in observation.counted)
    return tokens / (observation.seconds * speed) if observation.seconds else 0.0


# The wedge -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wedge:
    """An engine that holds requests and generates nothing.

    Attributes:
        frozen_s: since the last token, in the server's seconds, at the least.
        running: requests that it holds.
        card: samples of the card in that time.
    """

    observation: Observation
    frozen_s: float
    running: int
    card: tuple[HostSample, ...]

    def __str__(self) -> str:
        health = self.observation.health
        green = f", and /health says {health}" if health == 200 else ""  # noqa: PLR2004 - HTTP
        return (
            f"wedged in {describe(self.observation.cell)}: no token for {self.frozen_s:.0f} s while"
            f" {self.running} request{'s' * (self.running != 1)} are held{green}{self._power()}"
        )

    def _power(self) -> str:
        """Return what the card did meanwhile, which tells an engine that waits from one that computes."""
        powers = [sample.gpu_power_w for sample in self.card if sample.gpu_power_w >= 0]
        if not powers:
            return ""
        drawn = median(powers)
        busy = [sample.gpu_utilization for sample in self.card if sample.gpu_utilization >= 0]
        used = median(busy) if busy else -1.0
        shown = f"; the card draws {drawn:.0f} W" + (f" at {used:.0f} % utilization" if busy else "")
        before = [one.gpu_power_w for one in under_load(self.observation.host) if one not in self.card]
        if drawn >= max(LOW_W, LITTLE * median(before) if before else 0.0):
            return f"{shown}: a kernel computes without end"
        if used >= BUSY_WAIT:
            return f"{shown}: a kernel waits for something that never comes, such as another rank"
        return f"{shown}: nothing is computed, the engine's process waits"


def find_wedge(observation: Observation, speed: float) -> Wedge | None:
    """Return the wedge at the end of *observation*; `None` if requests moved on or the server ended."""
    if observation.died is not None or not unanswered(observation.canary):
        return None
    held = [one for one in observation.series if one.running >= 0]
    begin = _frozen_since(held)
    if begin is None:
        return None
    frozen_s = (held[-1].at - begin.at) * speed / 1e9
    if frozen_s < FROZEN_S:
        return None
    card = tuple(sample for sample in observation.host if sample.at >= begin.at)
    return Wedge(observation, frozen_s, round(held[-1].running + max(0.0, held[-1].waiting)), card)


def _frozen_since(series: Sequence[MetricsSnapshot]) -> MetricsSnapshot | None:
    """Return the first snapshot of the stretch at the end in which requests were held and got no token."""
    begin = None
    for earlier, later in reversed(list(pairwise(series))):
        if later.generation_tokens != earlier.generation_tokens or later.running + later.waiting <= 0:
            break
        begin = earlier
    return begin


def progress_finding(seen: CheckedCells, speed: float) -> Finding:
    """Return the finding on engines that hold requests and bring no token, whatever their health says."""
    found = [wedge for one in seen.made if (wedge := find_wedge(one, speed)) is not None]
    more = f"; and in {', '.join(describe(one.observation.cell) for one in found[1:])}" if found[1:] else ""
    return conclude(
        seen,
        "states.progress",
        against=[(Verdict.FAIL, str(found[0]) + more)] if found else [],
        passed="tokens came for as long as requests ran",
        lenient=True,
        needs=(METRICS,),
    )
