"""Requests that arrive at random at given rates and wait for no other, as those of many users do.

The sweep's closed loops send a request when another has ended, so that a slow server gets fewer of them. Here
it gets as many, and they pile up where it is too slow; `sparkwright verify capacity` searches for that rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.engine.cell import Cell, Load
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.capacity.slo import times_of
from sparkwright.verify.check import Context, RegisteredCheck
from sparkwright.verify.checks.common import CheckedCells, conclude, describe, triage
from sparkwright.verify.datasets import CHATS
from sparkwright.verify.statistics import percentile

SECONDS = 60.0
"""Length of a cell at the least, in seconds of the server's clock."""
WARM_UP = 0.25
"""Share of the requests that are sent before those that count."""
LATE = 0.25
"""Share of the median time to the first token by which the client may be late."""


@dataclass(frozen=True)
class Arrivals:
    """Open loops over the sweep's prompts, at each rate that the user gave."""

    name: str = "arrivals"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return one cell for each category and rate."""
        return tuple(
            _cell(context, category, rate)
            for category in context.sweep_categories
            for rate in context.dataset.rates
        )

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return a finding on each rate."""
        seen = triage(self, context, observations)
        return [_rate(context, seen, rate) for rate in context.dataset.rates]


CHECK = RegisteredCheck(Arrivals())


def _cell(context: Context, category: str, rate: float) -> Cell:
    sizes = context.profile
    requests = max(sizes.least_requests, math.ceil(SECONDS * rate))
    warm_up = math.ceil(WARM_UP * requests)
    name = f"{category} {rate:g}/s"
    prompts = context.prompts_of(category, requests + warm_up, f"arrivals {name}")
    load = Load(
        shape="open",
        concurrency=0,
        rate=rate,
        requests=requests,
        warm_up=warm_up,
        max_tokens=sizes.max_tokens,
        chat=any(prompt.category == CHATS for prompt in prompts),
        seed=sizes.seed,
    )
    return Cell(
        check="arrivals",
        name=name,
        load=load,
        prompts=prompts,
        tags={"category": category, "rate": f"{rate:g}"},
    )


def _rate(context: Context, seen: CheckedCells, rate: float) -> Finding:
    from sparkwright.verify.capacity.check import grows, lateness_s  # which imports checks itself

    own = seen.tagged(rate=f"{rate:g}")
    speed = context.profile.speed
    measured: dict[str, float | str] = {}
    warnings = list(seen.notes)
    against = []
    for observation in own.sound:
        category = observation.cell.tags["category"]
        found = _figures(observation, speed)
        measured |= {f"{category} {name}": value for name, value in found.items()}
        if grows(observation.samples):
            warnings.append(f"{describe(observation.cell)}: requests pile up, it serves fewer a second")
        late, first = 1000 * lateness_s(observation.samples, speed), found["TTFT p50 ms"]
        if speed == 1 and late > LATE * first:
            shown = f"{describe(observation.cell)}: the client sent {late:.0f} ms late"
            against.append((Verdict.INVALID, f"{shown}, where a first token takes {first:.0f}"))
    return conclude(
        own,
        f"served at {rate:g} requests a second",
        "Every request of an open loop (a Poisson process) is answered in full. Times count from when it was"
        " due.",
        against=against,
        passed=f"{sum(len(o.counted) for o in own.sound)} requests were answered in full",
        threshold="no failed request; requests that pile up are a warning",
        measured=measured,
        warnings=warnings,
    )


def _figures(observation: Observation, speed: float) -> dict[str, float]:
    """Return times in ms of the server's clock, and tokens a second."""
    times = [times_of(sample, speed) for sample in observation.counted]
    shown: dict[str, float] = {}
    for name, label in (("ttft", "TTFT"), ("tpot", "TPOT")):
        values = [1000 * one[name] for one in times if math.isfinite(one[name])]
        for level in (50, 95):
            shown[f"{label} p{level} ms"] = round(percentile(values, level), 3) if values else 0.0
    samples = observation.counted
    seconds = (max(s.ended for s in samples) - min(s.due for s in samples)) / 1e9 * speed
    shown["tok/s"] = round(sum(s.output_tokens for s in samples) / seconds, 3) if seconds > 0 else 0.0
    return shown
