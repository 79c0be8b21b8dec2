"""What faults do to the engine, the model and the start: each changes what it says, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulator_kit import settings

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.lock.model import read_lock, series_of
from sparkwright.verify.checks import ALL
from sparkwright.verify.simulator.faults import FAULTS, Faults, parse_faults
from sparkwright.verify.simulator.machine import (
    boot_lines,
    capture_sizes,
    captured_sizes,
    failing_lines,
)
from sparkwright.verify.simulator.settings import VERSION, plan_memory

# The table -----------------------------------------------------------------------------------------------


def test_the_table_says_what_each_fault_does_and_who_notices() -> None:
    checks = {*ALL, "reference"}
    assert len(FAULTS) > 45
    for name, fault in FAULTS.items():
        assert name == fault.name
        assert fault.does
        assert set(fault.noticed_by) <= checks | {"endpoint", "server"}
    assert checks == checks & {name for fault in FAULTS.values() for name in fault.noticed_by}


def test_faults_are_read_with_their_parameters() -> None:
    faults = parse_faults(["inert", "crash-at=8", "decay-linear=onset_s:5,floor:0.5", "stall=chunks:9"])
    assert "inert" in faults
    assert "slow" not in faults
    assert faults.value("crash-at", "batch") == 8
    assert faults.value("slow", "factor") is None
    assert dict(faults.active["decay-linear"]) == {"onset_s": 5, "over_s": 600, "floor": 0.5}
    assert dict(faults.active["stall"]) == {"every": 5, "chunks": 9}
    assert [number for number in range(1, 11) if faults.hits("stall", number)] == [5, 10]
    assert not any(Faults().hits("stall", number) for number in range(1, 20))


@pytest.mark.parametrize("text", ["inert=1", "crash-at=many", "crash-at=size:3", "stall=every:x"])
def test_bad_parameters_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_faults([text])


def test_unknown_names_are_refused_wherever_they_are_asked_for() -> None:
    with pytest.raises(UnknownNameError):
        parse_faults(["inrt"])
    with pytest.raises(KeyError):
        _ = "inrt" in Faults()
    with pytest.raises(KeyError):
        Faults().value("slow", "speed")


# The start -----------------------------------------------------------------------------------------------


def test_a_request_that_cannot_fit_fails_the_start() -> None:
    assert any("max seq len" in line.text for line in failing_lines(settings(kv_tokens=4096)))


def test_the_release_is_of_the_default_series() -> None:
    lock = read_lock(Path(__file__).resolve().parents[2] / "upstream.lock")
    assert series_of(VERSION) == lock.series


def test_a_good_start_has_the_lines_that_are_read() -> None:
    lines = [line.text for line in boot_lines(settings())]
    memory = plan_memory(settings())
    assert f"Available KV cache memory: {memory.kv_gib} GiB" in lines
    assert any(
        line.startswith(f"GPU KV cache size: {memory.kv_tokens:,} tokens, Maximum concurrency for")
        for line in lines
    )
    assert any(line.startswith("Estimated CUDA graph memory") for line in lines)
    assert sum("attention backend out of potential backends" in line for line in lines) == 2
    assert any(f"/{settings().total_gib} GiB) on startup" in line for line in lines)
    assert sum(not line.where for line in boot_lines(settings())) == 2  # bars of progress


@pytest.mark.parametrize("k", [0, 5, 3, 7, 12])
def test_graphs_are_captured_for_whole_drafts(k: int) -> None:
    """vLLM 0.24.0 lists 51 sizes for k = 3, and captures 49 piecewise and 33 full graphs (seen on a card)."""
    pieces, whole = captured_sizes(settings(k=k))
    assert all(size % (1 + k) == 0 for size in (*pieces, *whole))
    assert whole[-1] <= 64 * (1 + k)
    if k == 3:
        assert (len(capture_sizes(settings(k=k))), len(pieces), len(whole)) == (51, 49, 33)
    _, wrong = captured_sizes(settings("unrounded-graphs", k=k))
    assert any(size % (1 + k) for size in wrong) == (k > 0)
