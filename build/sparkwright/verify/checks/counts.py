"""Findings of the sweep on counters: acceptance by position, and tokens as the clients count them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sparkwright.engine.capabilities import METRICS, SPECULATION
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.metrics import identities
from sparkwright.engine.observations import MetricsSnapshot, Observation
from sparkwright.verify.checks.acceptance import AT_TIMES
from sparkwright.verify.checks.common import CheckedCells, conclude, describe, text_of

POSITIONS = "counts.positions"


def _metered(seen: CheckedCells) -> Iterator[tuple[MetricsSnapshot, MetricsSnapshot, Observation]]:
    """Yield the counters before and after each sound observation; none of a server without counters."""
    for observation in seen.sound:
        if observation.before is not None and observation.after is not None:
            yield observation.before, observation.after, observation


def positions_finding(seen: CheckedCells) -> Finding:
    """Return a finding on acceptance by position: a token is accepted only after the one before it."""
    against = []
    for before, after, observation in _metered(seen):
        start = before.accepted_per_position or (0.0,) * len(after.accepted_per_position)
        grown = [b - a for a, b in zip(start, after.accepted_per_position, strict=False)]
        rises = [i for i in range(1, len(grown)) if grown[i] > grown[i - 1]]
        for i in rises[:1]:
            shown = f"position {i + 1} of the draft was accepted more often than position {i}"
            against.append(
                (Verdict.FAIL, f"{describe(observation.cell)}: {shown} ({grown[i]:.0f} > {grown[i - 1]:.0f})")
            )
    return conclude(
        seen,
        POSITIONS,
        against=against,
        passed="counts by position never rise",
        lenient=True,
        needs=(SPECULATION,),
    )


def tokens_finding(seen: CheckedCells, method: str) -> Finding:
    """Return a finding on the agreement of counters and clients, with speculation by *method*."""
    against, largest = [], 0.0
    positions = text_of(POSITIONS, "name", {})
    for before, after, observation in _metered(seen):
        steps = math.inf if method in AT_TIMES else 0
        if not method:  # nor does the log say so: each chunk is a step, with or without a draft
            steps = sum(len(sample.chunks) for sample in observation.samples)
        for identity in identities(before, after, observation.samples, steps=steps):
            if identity.name == positions:
                continue
            largest = max(largest, identity.deviation)
            if identity.broken:
                shown = f"{describe(observation.cell)}: “{identity.name}” is off by {identity.deviation:.1%}"
                against.append((Verdict.INVALID, f"{shown}, and {identity.limit:.1%} is allowed"))
    return conclude(
        seen,
        "counts.tokens",
        against=against,
        passed=f"all identities hold within {largest:.2%}",
        measured={"largest deviation": round(largest, 5)},
        lenient=True,
        needs=(METRICS,),
    )
