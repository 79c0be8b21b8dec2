"""The server's own counters: read exactly, compared, and held against what clients saw.

`counters` is the file to open first: it turns two `Snapshot`s into what drafting brought. `exposition` reads
Prometheus text, `snapshot` picks vLLM's series out of it, `scrape` fetches it, and `identities` says where
counters contradict each other or the clients.
"""

from sparkwright.verify.metrics.counters import (
    CountersResetError,
    SeriesAbsentError,
    Speculation,
    SpeculationAbsentError,
    counter_delta,
    hit_rate,
    speculation,
    step_time_ms,
)
from sparkwright.verify.metrics.exposition import MetricSample, parse_exposition
from sparkwright.verify.metrics.identities import Identity, identities
from sparkwright.verify.metrics.scrape import NotQuietError, fetch_snapshot, quiesce
from sparkwright.verify.metrics.snapshot import parse_snapshot

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
