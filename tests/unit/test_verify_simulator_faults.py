"""What faults do to the engine, the model and the start: each changes what it says, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulator_kit import Bench, prompt, settings

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.lock import read_lock
from sparkwright.verify.checks import ALL
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.simulator.engine import EngineDeadError
from sparkwright.verify.simulator.faults import FAULTS, Faults, parse_faults
from sparkwright.verify.simulator.log import (
    boot_lines,
    capture_sizes,
    captured_sizes,
    failing_lines,
)
from sparkwright.verify.simulator.settings import plan_memory

HEALTHY = 0.41  # acceptance rate of code with seven drafted tokens

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


# Acceptance ----------------------------------------------------------------------------------------------


def rate(*faults: str, many: int = 24, now: float = 0.0, **changes: object) -> float:
    bench = Bench.of(*faults, **changes)
    bench.now = now
    bench.serve(many, max_tokens=200)
    return bench.rate


def test_a_healthy_engine_accepts_what_it_should_at_any_time_and_load() -> None:
    assert rate() == pytest.approx(HEALTHY, abs=0.03)
    assert rate(now=1e6) == rate()
    assert rate(many=1) > 0.2


# Death and time ------------------------------------------------------------------------------------------


def largest(bench: Bench, many: int, *, drain: bool = False) -> int:
    """Decode batches up to *many* until the engine dies, or to the end; returns the last batch size."""
    for number in range(many):
        bench.add(prompt(number), 100 - 2 * number if drain else 60)
    size = 0
    while bench.engine.busy:
        size = len(bench.engine.running)
        bench.step()
    return size


@pytest.mark.parametrize(
    ("fault", "many", "dies"),
    [
        ("crash-at=32", 32, True),
        ("crash-at=32", 48, True),
        ("crash-at=32", 31, False),
        ("crash-off-grid=17", 17, True),
        ("crash-off-grid=17", 16, False),
    ],
)
def test_the_engine_dies_at_a_batch_size(fault: str, many: int, *, dies: bool) -> None:
    if dies:
        with pytest.raises(EngineDeadError, match="block_table must have shape"):
            largest(Bench.of(fault), many)
    else:
        assert largest(Bench.of(fault), many)
    assert largest(Bench.of(), many)


def test_the_engine_dies_as_the_batch_shrinks_and_not_as_it_grows() -> None:
    with pytest.raises(EngineDeadError):
        largest(Bench.of("crash-on-drain=5"), 12, drain=True)
    growing = Bench.of("crash-on-drain=5", max_num_seqs=5)
    assert largest(growing, 5)
    assert largest(Bench.of(), 12, drain=True)


def test_steps_take_longer_or_no_time() -> None:
    healthy, slow, flood = Bench.of(), Bench.of("slow"), Bench.of("flood")
    for bench in (healthy, slow, flood):
        bench.serve(4)
    assert slow.now == pytest.approx(10 * healthy.now)
    assert flood.now == pytest.approx(healthy.now / 1000)
    assert slow.engine.counters.accepted == healthy.engine.counters.accepted


# What is generated ---------------------------------------------------------------------------------------


def said(*faults: str, many: int = 60, seed: int = 0, **changes: int) -> list[list[int]]:
    bench = Bench.of(*faults, seed=seed, **changes)
    outputs = []
    for number in range(many):
        request = bench.add(prompt(number), 128)
        bench.drain()
        outputs.append(request.tokens[request.prompt_tokens :])
    return outputs


def differing(one: list[list[int]], other: list[list[int]]) -> list[int]:
    """Where answers that differ begin to."""
    pairs = [zip(a, b, strict=True) for a, b in zip(one, other, strict=True)]
    found = (next((at for at, (a, b) in enumerate(pair) if a != b), -1) for pair in pairs)
    return [at for at in found if at >= 0]


def test_greedy_answers_repeat_and_near_ties_alone_divide_servers() -> None:
    assert said(many=20) == said(many=20)
    divided = differing(said(), said(k=0))
    assert 5 < len(divided) < 55
    assert len(set(divided)) > len(divided) // 2  # anywhere
    assert 5 < len(differing(said(k=0), said(k=0, seed=1))) < 55


def gaps(*faults: str) -> list[float]:
    """By how much what was said was less likely than the likeliest token."""
    bench, found = Bench.of(*faults), list[float]()
    for number in range(30):
        bench.add(prompt(number), 128, logprobs=5)
    while bench.engine.busy:
        for _, delta in bench.engine.step(0.0).deltas:
            found += [choice.top[0][1] - choice.logprob for choice in delta.choices]
    return found


def test_wrong_tokens_are_far_from_likely_and_near_ties_are_not() -> None:
    healthy, lossy, ties = gaps(), gaps("lossy"), gaps("near-ties=0.5")
    assert 0 < sum(gap > 0 for gap in healthy) < 0.02 * len(healthy)
    assert max(healthy) < 0.05
    assert sum(gap > 0 for gap in ties) > 1.3 * sum(gap > 0 for gap in healthy)
    assert max(ties) < 0.05
    assert 0.003 < sum(gap > 1 for gap in lossy) / len(lossy) < 0.02


# The start -----------------------------------------------------------------------------------------------


def test_a_request_that_cannot_fit_fails_the_start() -> None:
    assert any("max seq len" in line.text for line in failing_lines(settings(kv_tokens=4096)))


def test_the_default_dialect_is_that_of_the_default_series() -> None:
    lock = read_lock(Path(__file__).resolve().parents[2] / "upstream.lock")
    assert (settings().dialect, VerifyOptions().dialect) == (lock.series,) * 2


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("dialect", ["0.24", "0.33"])
def test_a_good_start_speaks_the_dialect(dialect: str, runner: str) -> None:
    told = settings(dialect=dialect, runner=runner)
    lines = [line.text for line in boot_lines(told)]
    memory = plan_memory(told)
    size = f"GPU KV cache size: {memory.kv_tokens:,} tokens"
    assert f"Available KV cache memory: {memory.kv_gib} GiB" in lines
    assert (size in lines) == (dialect == "0.24")
    assert any(line.startswith(f"{size}, Maximum concurrency for") for line in lines) == (dialect == "0.33")
    assert ("Using V2 Model Runner" in lines) == (runner == "v2")
    assert any(line.startswith("Estimated CUDA graph memory") for line in lines) == (runner == "v1")
    assert sum("attention backend out of potential backends" in line for line in lines) == 2
    assert any(f"/{told.total_gib} GiB) on startup" in line for line in lines)
    assert sum(not line.where for line in boot_lines(told)) == 2  # bars of progress


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
