"""The server's own counters: parsed exactly, compared, and checked against the clients' counts.

Read `counters` first: it computes the speculation between two `MetricsSnapshot`s. `exposition` parses
Prometheus text, `snapshot` selects vLLM's series, `scrape` fetches them, and `identities` finds where
counters contradict each other or the clients.
"""

from sparkwright.engine.metrics.counters import (
    CountersResetError,
    SeriesAbsentError,
    Speculation,
    SpeculationAbsentError,
    counter_delta,
    hit_rate,
    speculation,
    step_time_ms,
)
from sparkwright.engine.metrics.exposition import MetricSample, parse_exposition
from sparkwright.engine.metrics.identities import Identity, identities
from sparkwright.engine.metrics.scrape import NotQuietError, fetch_snapshot, quiesce
from sparkwright.engine.metrics.snapshot import parse_snapshot

__all__ = [
    "CountersResetError",
    "Identity",
    "MetricSample",
    "NotQuietError",
    "SeriesAbsentError",
    "Speculation",
    "SpeculationAbsentError",
    "counter_delta",
    "fetch_snapshot",
    "hit_rate",
    "identities",
    "parse_exposition",
    "parse_snapshot",
    "quiesce",
    "speculation",
    "step_time_ms",
]
