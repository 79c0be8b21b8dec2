"""The comparison of load generators: requests are paired with their records, and errors are those planted."""

import pytest
from peers import PeerErrors, errors_of, pair
from peers_clients import PeerTime

from sparkwright.verify.simulator.stream import RequestTrace

MS = 1_000_000
OTHERS = {"cpu_s": 1.0, "wall_s": 2.0, "load_before": 0.1, "niced": False}


def truth(
    name: str, ttft_ms: float, tpot_ms: float, received_ms: float = 0, tokens: int = 11
) -> RequestTrace:
    first = received_ms + ttft_ms
    last = first + tpot_ms * (tokens - 1)
    return RequestTrace(name, round(received_ms * MS), round(first * MS), round(last * MS), tokens)


TRUTHS = [truth(f"chatcmpl-r{n}", 100 + n, 10, received_ms=1000 * n) for n in range(8)]


def measured(shift_ms: float = 0.0, stretch: float = 1.0) -> list[PeerTime]:
    return [PeerTime(request=f"r{n}", ttft_ms=100 + n + shift_ms, tpot_ms=10 * stretch) for n in range(2, 8)]


def found(times: list[PeerTime], level: int = 2) -> PeerErrors:
    pairs, paired = pair(times, TRUTHS, level)
    return errors_of(pairs, peer="aiperf", version="1", concurrency=level, paired=paired, **OTHERS)


def test_right_times_have_no_error() -> None:
    errors = found(measured())
    assert (errors.ttft_p99_ms, errors.tpot_p99_percent, errors.paired) == (0, 0, "id")
    assert errors.requests == 6


def test_planted_errors_are_found() -> None:
    errors = found(measured(shift_ms=7, stretch=1.03))
    assert errors.ttft_p50_ms == pytest.approx(7)
    assert errors.ttft_p99_ms == pytest.approx(7)
    assert errors.tpot_p50_percent == pytest.approx(3)


def test_a_request_without_a_record_is_an_error() -> None:
    with pytest.raises(LookupError, match="r99"):
        pair([PeerTime(request="r99", ttft_ms=1, tpot_ms=1)], TRUTHS, 1)


def test_without_ids_requests_of_a_batch_are_paired_by_rank() -> None:
    mixed = [PeerTime(ttft_ms=100 + n, tpot_ms=10) for n in (3, 2, 5, 4, 7, 6)]
    errors = found(mixed)
    assert (errors.paired, errors.ttft_p99_ms) == ("rank", 0)
    late = [PeerTime(ttft_ms=one.ttft_ms + 5, tpot_ms=10) for one in mixed]
    assert found(late).ttft_p50_ms == pytest.approx(5)


def test_warm_ups_are_no_part_of_a_batch() -> None:
    probes = [truth("chatcmpl-p", 1, 0, tokens=1, received_ms=9000)]
    pairs, _ = pair([PeerTime(ttft_ms=107, tpot_ms=10)], [*TRUTHS, *probes], 1)
    assert pairs[0][1].ttft_ms == pytest.approx(107)
