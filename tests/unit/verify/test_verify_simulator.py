"""The simulated engine counts, caches and queues as vLLM does; a fault changes what it says and no more."""

from pathlib import Path

import pytest
from simulator_kit import Bench, prompt, settings

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.lock.model import read_lock, series_of
from sparkwright.verify.checks import ALL
from sparkwright.verify.simulator.engine import PrefixCache, block_hash
from sparkwright.verify.simulator.faults import FAULTS, Faults, parse_faults
from sparkwright.verify.simulator.machine import boot_lines, capture_sizes, captured_sizes, failing_lines
from sparkwright.verify.simulator.model import acceptance_table, text_of
from sparkwright.verify.simulator.settings import BLOCK, VERSION, plan_memory


@pytest.mark.parametrize("k", [1, 3, 7, 12])
@pytest.mark.parametrize("many", [1, 5, 40])
def test_generated_tokens_are_accepted_plus_drafts_plus_requests(k: int, many: int) -> None:
    bench = Bench.of(k=k)
    requests = bench.serve(many, max_tokens=300)
    counters = bench.engine.counters
    cut = counters.accepted + counters.drafts + many - counters.generated
    assert 0 <= cut <= k * many  # what is accepted in a request's last step may be more than it wanted
    assert counters.generated == sum(request.output_tokens for request in requests) == 300 * many
    assert counters.draft_tokens == k * counters.drafts
    assert sum(counters.per_position) == counters.accepted
    assert counters.per_position == sorted(counters.per_position, reverse=True)
    assert counters.drafts == sum(len(request.steps) for request in requests)
    assert counters.success == {"stop": 0, "length": many, "abort": 0, "error": 0}
    assert counters.prompt == sum(request.prompt_tokens for request in requests)


def test_acceptance_follows_the_table_at_each_position() -> None:
    bench = Bench.of(k=7)
    bench.serve(32, max_tokens=400)
    counters, chance = bench.engine.counters, 1.0
    for position, conditional in enumerate(acceptance_table(7)):
        chance *= conditional
        assert counters.per_position[position] / counters.drafts == pytest.approx(chance, abs=0.02)


def test_no_more_run_than_may() -> None:
    bench = Bench.of(max_num_seqs=4)
    for number in range(10):
        bench.add(prompt(number), 40)
    running = set()
    while bench.engine.busy:
        bench.step()
        running.add(len(bench.engine.running))
    assert max(running) == 4


def test_a_request_waits_for_place_for_all_of_its_tokens() -> None:
    bench = Bench.of(kv_tokens=1024, max_model_len=900)
    first, last = bench.add(prompt(1), 600), bench.add(prompt(2), 600)
    while not first.finish:
        assert len(bench.engine.running) <= 1
        bench.step()
    bench.drain()
    assert first.output_tokens == last.output_tokens == 600


def test_an_abort_gives_everything_back() -> None:
    bench = Bench.of(max_num_seqs=1)
    running, waiting = bench.add(prompt(1), 500), bench.add(prompt(2), 500)
    bench.step()
    assert bench.engine.usage > 0
    for request in (running, waiting, running):
        bench.engine.abort(request)
    assert not bench.engine.busy
    assert bench.engine.usage == 0


def test_a_repeated_prompt_is_found_but_for_its_end() -> None:
    bench = Bench.of(k=7)
    first, again = bench.serve(1)[0], bench.add(prompt(1))
    bench.drain()
    assert first.cached == 0
    blocks = (first.prompt_tokens - 1) // BLOCK
    assert again.cached == (blocks - 1) * BLOCK  # a drafter needs the hidden states of one block more
    counters = bench.engine.counters
    assert counters.prefix_queries == first.prompt_tokens + again.prompt_tokens
    assert counters.prefix_hits == again.cached > 0


def test_answers_of_one_turn_are_found_in_the_next() -> None:
    bench = Bench.of(k=0)
    first = bench.serve(1, max_tokens=100)[0]
    follow = bench.add(prompt(1) + text_of(first.tokens[first.prompt_tokens :]) + " And then?", 4)
    bench.drain()
    assert follow.cached > first.prompt_tokens


def test_blocks_that_are_needed_are_taken_from_those_used_longest_ago() -> None:
    cache = PrefixCache(3)
    names = [block_hash(b"", [index]) for index in range(4)]
    cache.add(names[:3])
    assert cache.match(names[:1]) == 1
    cache.add(names[3:])
    assert [cache.match([name]) for name in names] == [1, 0, 1, 1]


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


def test_a_request_that_cannot_fit_fails_the_start() -> None:
    assert any("max seq len" in line.text for line in failing_lines(settings(kv_tokens=4096)))


def test_the_release_is_of_the_default_series() -> None:
    lock = read_lock(Path(__file__).resolve().parents[3] / "upstream.lock")
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
