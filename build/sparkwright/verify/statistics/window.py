"""The part of a run with the full concurrency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.engine.observations import Sample

PLATEAU = 0.95


@dataclass(frozen=True)
class Window:
    """A stretch of time and the tokens generated in it.

    Attributes:
        begin: ns of the client's clock.
        end: likewise; equal to `begin` if there is no such stretch.
        tokens: generated after `begin` and up to `end`, by requests that did not fail.
    """

    begin: int
    end: int
    tokens: float

    @property
    def seconds(self) -> float:
        """Return its length on the client's clock."""
        return (self.end - self.begin) / 1e9

    @property
    def tokens_per_s(self) -> float:
        """Return the throughput on the client's clock; 0 if the window is empty."""
        return self.tokens / self.seconds if self.end > self.begin else 0.0

    def __bool__(self) -> bool:
        """Tell if the window is not empty."""
        return self.end > self.begin


def steady_window(samples: Sequence[Sample], concurrency: int) -> Window:
    """Return the time from the first moment at 95 % of *concurrency* until it falls below that for good.

    The rule is that of vLLM's Rust benchmark: it leaves out the rise at the beginning and the drain at the
    end, and keeps the moments between one request's end and the next one's start. Failed requests count as
    running, and their tokens do not count. The window is empty if the concurrency was never reached.

    Args:
        samples: of a closed loop; warm-ups are left out.
        concurrency: intended number of requests at a time.
    """
    counted = [sample for sample in samples if sample.counted]
    enough = max(1, math.ceil(PLATEAU * concurrency - 1e-9))  # 0.95 * 20 is 19, not a bit more
    running, begin, end = 0, None, None
    for at, step in _steps(counted):
        running += step
        if step > 0 and running >= enough and begin is None:
            begin = at
        if step < 0 and running == enough - 1 and begin is not None:
            end = at
    if begin is None or end is None:
        return Window(0, 0, 0.0)
    return Window(begin, end, _tokens(counted, begin, end))


def whole_run(samples: Sequence[Sample]) -> Window:
    """Return the window from the first start to the last end, without warm-ups; empty without samples."""
    counted = [sample for sample in samples if sample.counted]
    if not counted:
        return Window(0, 0, 0.0)
    begin, end = min(s.started for s in counted), max(s.ended for s in counted)
    return Window(begin, end, _tokens(counted, begin, end))


def _steps(samples: Sequence[Sample]) -> list[tuple[int, int]]:
    """Return starts (+1) and ends (-1) in order; at the same moment ends come first."""
    return sorted([*((s.started, 1) for s in samples), *((s.ended, -1) for s in samples)])


def _tokens(samples: Sequence[Sample], begin: int, end: int) -> float:
    arrived: list[float] = []
    for sample in samples:
        if sample.failure is None:
            arrived += _arrived(sample, begin, end)
    return math.fsum(arrived)


def _arrived(sample: Sample, begin: int, end: int) -> list[float]:
    """Return the counts of the tokens that arrive after *begin* and until *end*, one for each chunk.

    Where chunks have no count of their own, all are taken to have the same; those of all chunks add up
    to the server's count.
    """
    output = sample.output_tokens
    total = sum([chunk.tokens for chunk in sample.chunks])
    if total:
        return [chunk.tokens / total * output for chunk in sample.chunks if begin < chunk.at <= end]
    return [1 / len(sample.chunks) * output for chunk in sample.chunks if begin < chunk.at <= end]
