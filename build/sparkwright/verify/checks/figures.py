"""The figures of one cell: throughput, latency, acceptance and the time of a verify step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sparkwright.engine.metrics.counters import step_time_ms
from sparkwright.engine.observations import Observation, Sample
from sparkwright.verify.checks.acceptance import Acceptance, acceptance
from sparkwright.verify.statistics import Summary, steady_window, summary, whole_run


@dataclass(frozen=True)
class Figures:
    """Figures of one cell, NaN where unknown. Times are in the server's ms, rates in its tokens per second.

    Attributes:
        concurrency: requests at a time.
        steady_tok_s: output while at least 95 % of `concurrency` ran.
        whole_tok_s: output from the first request's start to the last one's end.
        decode_tok_s: of one request after its first token, over all requests' tokens.
        ttft_ms: time to first token.
        tpot_ms: time per output token after the first, by request.
        gap_ms: time between chunks with output, pooled.
        tokens_per_chunk: of chunks after a request's first.
        acceptance: by the server's counters; `None` without.
        step_ms: time of one verify step, ``MAL / decode rate``.
    """

    concurrency: int
    requests: int
    steady_tok_s: float
    whole_tok_s: float
    decode_tok_s: float
    ttft_ms: Summary
    tpot_ms: Summary
    gap_ms: Summary
    tokens_per_chunk: float
    acceptance: Acceptance | None
    step_ms: float

    def measured(self) -> dict[str, float | str]:
        """Return all figures by name, for a finding."""
        shown: dict[str, float | str] = {
            "requests": self.requests,
            "steady tok/s": self.steady_tok_s,
            "whole tok/s": self.whole_tok_s,
            "decode tok/s": self.decode_tok_s,
            "tokens per chunk": self.tokens_per_chunk,
        }
        for name, found in (("TTFT", self.ttft_ms), ("TPOT", self.tpot_ms), ("chunk gap", self.gap_ms)):
            shown |= {f"{name} p50 ms": found.p50, f"{name} p95 ms": found.p95}
            shown |= {} if found.p99 is None else {f"{name} p99 ms": found.p99}
        if self.acceptance is not None:
            shown |= {
                "acceptance %": 100 * self.acceptance.rate,
                "MAL": self.acceptance.mal,
                "verify step ms": self.step_ms,
            }
        return {
            name: value if isinstance(value, str) else round(value, 3)
            for name, value in shown.items()
            if isinstance(value, str) or math.isfinite(value)
        }


def figures(observation: Observation, speed: float = 1.0) -> Figures:
    """Return the figures of *observation*, whose server runs *speed* times as fast as the client's clock.

    Raises:
        ValueError: no request was counted.
    """
    counted, load = observation.counted, observation.cell.load
    scale = speed / 1e6
    tpot = [sample.tpot_ms * speed for sample in counted if sample.output_tokens > 1]
    gaps = [(b.at - a.at) * scale for sample in counted for a, b in pairwise(sample.chunks)]
    found, rate = acceptance(observation), decode_rate(counted, speed)
    window = steady_window(observation.samples, load.concurrency)
    rated = bool(counted) and all(sample.counted_by for sample in counted)
    return Figures(
        concurrency=load.concurrency,
        requests=len(counted),
        steady_tok_s=window.tokens_per_s / speed if rated and window else math.nan,
        whole_tok_s=whole_run(observation.samples).tokens_per_s / speed if rated else math.nan,
        decode_tok_s=rate,
        ttft_ms=_summary([sample.ttft_ms * speed for sample in counted]),
        tpot_ms=_summary(tpot),
        gap_ms=_summary(gaps),
        tokens_per_chunk=_tokens_per_chunk(counted),
        acceptance=found,
        step_ms=step_time_ms(found.mal, rate) if found is not None and rate > 0 else math.nan,
    )


def _summary(values: Sequence[float]) -> Summary:
    return summary(values) if values else Summary(math.nan, math.nan, None)


def decode_rate(samples: Sequence[Sample], speed: float = 1.0) -> float:
    """Return tokens per second of one request after its first, in the server's time, over all *samples*.

    All requests' tokens over all requests' time, so that it goes with a mean acceptance length over all
    steps. NaN if no time passed.
    """
    several = [sample for sample in samples if sample.output_tokens > 1]
    seconds = sum(sample.last - sample.first for sample in several) * speed / 1e9
    tokens = sum(sample.output_tokens - 1 for sample in several)
    return tokens / seconds if seconds > 0 else math.nan


def event_gap_ms(samples: Sequence[Sample]) -> float:
    """Return the mean time between events with output, by the client's clock; NaN without any."""
    several = [sample for sample in samples if len(sample.chunks) > 1]
    gaps = sum(len(sample.chunks) - 1 for sample in several)
    return sum(sample.last - sample.first for sample in several) / 1e6 / gaps if gaps else math.nan


def _tokens_per_chunk(samples: Sequence[Sample]) -> float:
    """Return tokens per chunk after the first, which holds the prefill step's token; NaN without any."""
    chunks = sum(len(sample.chunks) - 1 for sample in samples if len(sample.chunks) > 1)
    tokens = sum(sample.output_tokens - 1 for sample in samples if len(sample.chunks) > 1)
    return tokens / chunks if chunks else math.nan
