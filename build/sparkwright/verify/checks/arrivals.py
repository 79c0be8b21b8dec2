"""Requests that arrive at random at given rates and wait for no other, as those of many users do.

The sweep's closed loops send a request when another has ended, so that a slow server gets fewer of them. Here
it gets as many, and they pile up where it is too slow; `sparkwright verify --slo` searches for that rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import Observation
from sparkwright.verify.check import Context
from sparkwright.verify.checks.capacity import grows, lateness_s
from sparkwright.verify.checks.common import Check, Values, conclude
from sparkwright.verify.checks.triage import CheckedCells, describe
from sparkwright.verify.datasets import CHATS
from sparkwright.verify.rate_search import times_of
from sparkwright.verify.statistics import percentile

SECONDS = 60.0
"""Length of a cell at the least, in seconds of the server's clock."""
WARM_UP = 0.25
"""Share of the requests that are sent before those that count."""
LATE = 0.25
"""Share of the median time to the first token by which the client may be late."""


def cells(context: Context, _: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield an open loop over the sweep's prompts for each category and rate."""
    for category in context.sweep_categories:
        for rate in context.dataset.rates:
            requests = max(context.profile.least_requests, math.ceil(SECONDS * rate))
            warm_up = math.ceil(WARM_UP * requests)
            name = f"{category} {rate:g}/s"
            prompts = context.prompts_of(category, requests + warm_up, f"arrivals {name}")
            yield context.cell(
                "arrivals",
                name,
                prompts,
                shape="open",
                concurrency=0,
                rate=rate,
                requests=requests,
                warm_up=warm_up,
                max_tokens=context.profile.max_tokens,
                chat=any(prompt.category == CHATS for prompt in prompts),
                tags={"category": category, "rate": f"{rate:g}"},
            )


def judge(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return a finding on each rate."""
    return [_rate(context, seen.tagged(rate=f"{rate:g}"), rate) for rate in context.dataset.rates]


CHECK = Check("arrivals", cells, judge)


def _rate(context: Context, seen: CheckedCells, rate: float) -> Finding:
    speed = context.profile.speed
    measured: Values = {}
    warnings = list(seen.notes)
    against = []
    for observation in seen.sound:
        found = _figures(observation, speed)
        measured |= {f"{observation.cell.tags['category']} {name}": value for name, value in found.items()}
        if grows(observation.samples):
            warnings.append(f"{describe(observation.cell)}: requests pile up, it serves fewer a second")
        late, first = 1000 * lateness_s(observation.samples, speed), found["TTFT p50 ms"]
        if speed == 1 and late > LATE * first:
            shown = f"{describe(observation.cell)}: the client sent {late:.0f} ms late"
            against.append((Verdict.INVALID, f"{shown}, where a first token takes {first:.0f}"))
    return conclude(
        seen,
        "arrivals.served",
        told={"rate": rate},
        against=against,
        passed=f"{sum(len(o.counted) for o in seen.sound)} requests were answered in full",
        measured=measured,
        warnings=warnings,
    )


def _figures(observation: Observation, speed: float) -> dict[str, float]:
    """Return times in ms of the server's clock, and tokens a second."""
    samples = observation.counted
    times = [times_of(sample, speed) for sample in samples]
    shown: dict[str, float] = {}
    for name, label in (("ttft", "TTFT"), ("tpot", "TPOT")):
        values = [1000 * one[name] for one in times if math.isfinite(one[name])]
        for level in (50, 95):
            shown[f"{label} p{level} ms"] = round(percentile(values, level), 3) if values else 0.0
    seconds = (max(s.ended for s in samples) - min(s.due for s in samples)) / 1e9 * speed
    shown["tok/s"] = round(sum(s.output_tokens for s in samples) / seconds, 3) if seconds > 0 else 0.0
    return shown
