"""The client against the simulated server: what is odd but right counts, what is wrong never does."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.base.errors import EndpointError, ServerError
from sparkwright.engine.cell import Cell, Deadlines, Load, Prompt
from sparkwright.engine.client.endpoint import Endpoint, check_endpoint, open_session
from sparkwright.engine.client.load import run_load
from sparkwright.engine.client.request import canary, count_tokens
from sparkwright.engine.observations import FailureKind, Sample
from sparkwright.verify.corpus import load_corpus
from sparkwright.verify.simulator.faults import FAULTS, parse_faults
from sparkwright.verify.simulator.machine import Clock, Log
from sparkwright.verify.simulator.main import read_truth, simulator
from sparkwright.verify.simulator.server import listening
from sparkwright.verify.simulator.settings import VERSION, Settings
from sparkwright.verify.simulator.stream import TraceFile

SPEED = 60.0
PROMPTS = tuple(
    Prompt(name=f"p{i}", category="code", text=f"{i}: Write a function in Python.") for i in range(10)
)
HASTY = Deadlines(first_token_s=60.0, stall_s=60.0)


@contextlib.asynccontextmanager
async def simulated(folder: Path, *faults: str, **options: Any) -> AsyncIterator[Endpoint]:
    """A simulated server in this process, at sixty times its speed."""
    settings = Settings(
        speed=SPEED, engine=False, faults=parse_faults(faults), truth=folder / "truth.jsonl", **options
    )
    clock, truth = Clock(SPEED), TraceFile(settings.truth)
    log = Log(folder / "log", clock, (os.getpid(), os.getpid()))
    try:
        async with listening(settings, clock, log, truth) as (_, url):
            yield Endpoint(url, settings.model, settings.api_key)
    finally:
        truth.close()
        log.close()


def measure(
    folder: Path, *faults: str, load: Load | None = None, chat: bool = False, **options: Any
) -> list[Sample]:
    load = load or Load(concurrency=4, requests=10, max_tokens=40, chat=chat)
    cell = Cell(check="test", name="simulated", load=load, prompts=PROMPTS)

    async def run() -> list[Sample]:
        async with simulated(folder, *faults, **options) as endpoint, open_session(endpoint) as session:
            return await run_load(session, endpoint, cell, HASTY, speed=SPEED)

    return asyncio.run(run())


def spoken(samples: list[Sample]) -> dict[str, str]:
    return {sample.prompt: sample.text for sample in samples}


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_a_healthy_server_counts(tmp_path: Path, *, chat: bool) -> None:
    load = Load(concurrency=4, requests=10, max_tokens=40, chat=chat, logprobs=3)
    samples = measure(tmp_path, load=load)
    truths = read_truth(tmp_path / "truth.jsonl")
    assert len(samples) == 10
    for sample in samples:
        truth = truths[sample.request]
        assert sample.failure is None
        assert sample.output_tokens == truth.tokens == len(sample.token_ids) == len(sample.logprobs) == 40
        assert sum(chunk.tokens for chunk in sample.chunks) == 40
        assert all(found.token in found.top for found in sample.logprobs)
        assert sample.started < truth.received_ns < truth.first_token_written_ns < sample.first
        assert truth.last_token_written_ns < sample.last


ODD = ["usage-at-end", "role-chunks", "empty-content", "reasoning-only", "reasoning-content", "tool-calls"]
ODD += ["sse-comments", "crlf", "split-reads", "joined-events"]


def test_all_odd_streams_are_here() -> None:
    others = {"near-ties", "flood"}  # of the engine
    streams = [name for name, fault in FAULTS.items() if not fault.noticed_by and name not in others]
    assert sorted(ODD) == sorted(streams)


@pytest.mark.parametrize("fault", ODD)
def test_what_is_odd_but_right_counts(tmp_path: Path, fault: str) -> None:
    alone = Load(requests=10, max_tokens=40, chat=True)  # beside others a request may be answered otherwise
    samples = measure(tmp_path, fault, load=alone)
    assert [sample.failure for sample in samples] == [None] * 10
    assert {sample.output_tokens for sample in samples} == {40}
    truths = read_truth(tmp_path / "truth.jsonl")
    assert all(truths[sample.request].first_token_written_ns < sample.first for sample in samples)
    kinds = {chunk.kind for sample in samples for chunk in sample.chunks}
    if fault.startswith("reasoning"):
        assert kinds == {"reasoning"}
    if fault == "tool-calls":
        assert kinds == {"tool"}
    if kinds == {"content"}:
        assert spoken(samples) == spoken(measure(tmp_path, load=alone))


@pytest.mark.parametrize("thinking", [False, True])
def test_a_model_thinks_only_where_the_load_lets_it(tmp_path: Path, *, thinking: bool) -> None:
    load = Load(requests=2, max_tokens=160, chat=True, thinking=thinking)
    samples = measure(tmp_path, load=load, reasoning=True)
    kinds = [chunk.kind for chunk in samples[0].chunks]
    assert ("reasoning" in kinds) is thinking
    assert "content" in kinds


WRONG = {
    "hang": {FailureKind.FIRST_TOKEN},
    "stall": {FailureKind.STALL},
    "cut-fin": {FailureKind.TRUNCATED},
    "cut-close": {FailureKind.TRUNCATED, FailureKind.RESET},
    "cut-reset": {FailureKind.RESET},
    "cut-json": {FailureKind.NOT_JSON},
    "error-in-band": {FailureKind.IN_BAND},
    "status": {FailureKind.STATUS},
    "html": {FailureKind.NOT_JSON},
    "no-usage": {FailureKind.NO_COUNT},
    "wrong-usage": {FailureKind.COUNT},
    "early-stop": {FailureKind.LENGTH},
    "abort": {FailureKind.LENGTH},
    "runaway": {FailureKind.RUNAWAY},
}


def test_all_wrong_streams_are_here() -> None:
    others = {"flaky-tokenize"}  # which affects no stream
    assert set(WRONG) | others == {name for name, fault in FAULTS.items() if "every" in fault.parameters}


@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_what_is_wrong_fails_for_what_it_is(tmp_path: Path, fault: str, *, chat: bool) -> None:
    samples = measure(tmp_path, fault, chat=chat)
    failures = [sample.failure for sample in samples if sample.failure is not None]
    assert len(samples) == 10
    assert len(failures) == 2  # every fifth one
    assert {failure.kind for failure in failures} <= WRONG[fault]


@pytest.mark.parametrize(
    ("fault", "message"), [("old-version", "nothing before 0.20"), ("not-json", "web page")]
)
def test_servers_that_are_refused(tmp_path: Path, fault: str, message: str) -> None:
    async def run(*faults: str) -> str:
        async with simulated(tmp_path, *faults) as endpoint, open_session(endpoint) as session:
            return (await check_endpoint(session, endpoint, Deadlines())).version

    assert asyncio.run(run()) == VERSION
    with pytest.raises(EndpointError, match=message):
        asyncio.run(run(fault))


def test_a_dead_engine_behind_a_healthy_face(tmp_path: Path) -> None:
    async def run() -> tuple[str, int, str]:
        deadlines = Deadlines(canary_s=60.0)
        async with simulated(tmp_path, "dead-engine=1") as endpoint, open_session(endpoint) as session:
            before = await canary(session, endpoint, deadlines, SPEED)
            async with session.get(endpoint.url + "/health") as response:
                health = response.status
            return before, health, await canary(session, endpoint, deadlines, SPEED)

    before, health, after = asyncio.run(run())
    assert (before, health) == ("", 200)
    assert after.startswith("first-token: ")


def test_documents_have_the_length_that_was_asked_for(tmp_path: Path) -> None:
    """Counted once, the words of others are known: within 2 % by the server's own tokenizer."""
    write = load_corpus().document

    async def run() -> list[tuple[int, int]]:
        async with simulated(tmp_path) as endpoint, open_session(endpoint) as session:

            async def count(text: str) -> int:
                return await count_tokens(session, endpoint, text, HASTY, SPEED)

            text = write(16_000, 0, salt="size").text
            ratio = len(text.split()) / await count(text)
            sizes = [(tokens, seed) for tokens in (8_000, 16_000, 33_000) for seed in (1, 2)]
            return [
                (tokens, await count(write(tokens, seed, words_per_token=ratio).text))
                for tokens, seed in sizes
            ]

    for meant, came in asyncio.run(run()):
        assert came == pytest.approx(meant, rel=0.02)


# In a process of its own --------------------------------------------------------------------------------


def test_the_clients_times_are_those_of_the_servers_own_record(tmp_path: Path) -> None:
    """However late bytes are read: half of the times are wrong by less than one of the event loop's turns."""
    load = Load(concurrency=32, requests=96, max_tokens=8, chat=True)
    prompts = tuple(Prompt(name=f"p{i}", category="code", text=f"{i}: Write a function.") for i in range(96))

    async def run() -> list[Sample]:
        cell = Cell(check="test", name="simulated", load=load, prompts=prompts)
        server = simulator(tmp_path, "--step-ms", "0,1,0,0.01")
        async with server as endpoint, open_session(endpoint) as session:
            return await run_load(session, endpoint, cell, Deadlines(), speed=1.0)

    samples = asyncio.run(run())
    truths = read_truth(tmp_path / "truth.jsonl")
    wrong = sorted(abs(one.ttft_ms - truths[one.request].ttft_ms) for one in samples if one.request in truths)
    assert len(wrong) > 90
    assert wrong[len(wrong) // 2] < 0.5


def test_a_simulator_that_does_not_start(tmp_path: Path) -> None:
    async def run() -> None:
        async with simulator(tmp_path, "--fault", "no-such-fault"):
            raise AssertionError("it started")

    with pytest.raises(ServerError, match="there is no fault 'no-such-fault'"):
        asyncio.run(run())
