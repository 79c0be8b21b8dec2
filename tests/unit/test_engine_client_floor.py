"""The client's error is what its figures and the truth differ by, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkwright.base.errors import ServerError
from sparkwright.engine.client.calibrate import CalibrationTruth, floor, read_truth
from sparkwright.engine.observations import Chunk, FailureKind, RequestFailure, Sample

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000


def pair(number: int, *, late_ms: float = 0.0, stretched: float = 1.0) -> tuple[Sample, CalibrationTruth]:
    """A request of 11 tokens over 100 ms, first after 50 ms: *late_ms* late, its time *stretched* for us."""
    start = number * 1000 * MS
    first = start + 50 * MS
    truth = CalibrationTruth(f"r{number}", start, first, first + 100 * MS, 11)
    seen = first + int(late_ms * MS)
    sample = Sample(
        prompt="p",
        category="code",
        request=truth.id,
        started=start,
        ended=start + 900 * MS,
        chunks=(Chunk(at=seen, tokens=1), Chunk(at=seen + int(100 * stretched * MS), tokens=10)),
        output_tokens=11,
    )
    return sample, truth


def measure(pairs: list[tuple[Sample, CalibrationTruth]], level: int = 4) -> tuple[float, ...]:
    found = floor(
        level, [sample for sample, _ in pairs], {truth.id: truth for _, truth in pairs}, lag_p99_ms=0.5
    )
    assert (found.concurrency, found.requests, found.lag_p99_ms) == (level, len(pairs), 0.5)
    return (
        found.ttft_p50_ms,
        found.ttft_p99_ms,
        found.read_p99_ms,
        found.tpot_p50_percent,
        found.tpot_p99_percent,
    )


def test_a_client_that_is_right_has_no_error() -> None:
    assert measure([pair(i) for i in range(100)]) == (0, 0, 0, 0, 0)


def test_lateness_and_stretching_are_told_apart() -> None:
    assert measure([pair(i, late_ms=3) for i in range(100)]) == pytest.approx((3, 3, 3, 0, 0))
    assert measure([pair(i, stretched=1.02) for i in range(100)]) == pytest.approx((0, 0, 0, 2, 2))
    assert measure([pair(i, stretched=0.98) for i in range(100)]) == pytest.approx((0, 0, 0, 2, 2))


def test_the_worst_of_a_hundred_shows_at_the_end_alone() -> None:
    pairs = [pair(i, late_ms=i / 10) for i in range(101)]
    assert measure(pairs)[:3] == pytest.approx((5, 9.9, 9.9))


def test_events_are_counted_over_the_time_that_they_came_in() -> None:
    pairs = [pair(i) for i in range(10)]
    found = floor(1, [sample for sample, _ in pairs], {truth.id: truth for _, truth in pairs}, lag_p99_ms=0)
    assert found.events_per_s == pytest.approx(20 / 9.1)


def test_what_failed_or_is_unknown_is_no_floor() -> None:
    sample, truth = pair(1)
    with pytest.raises(ServerError, match="request 'r1' is unknown"):
        floor(1, [sample], {}, lag_p99_ms=0)
    broken = Sample(
        prompt="p",
        category="c",
        started=1,
        ended=2,
        failure=RequestFailure(kind=FailureKind.RESET, detail="it broke"),
    )
    with pytest.raises(ServerError, match="it broke"):
        floor(1, [broken], {truth.id: truth}, lag_p99_ms=0)


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "truth.jsonl"
    assert read_truth(path) == {}
    line = (
        '{"id": "a", "received_ns": 1, "first_token_written_ns": 2, "last_token_written_ns": 3, "tokens": 4}'
    )
    path.write_text(f"{line}\n{line[:40]}")
    assert read_truth(path) == {"a": CalibrationTruth("a", 1, 2, 3, 4)}
