"""The client against the simulated server: what is odd but right counts, what is wrong never does."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.base.errors import ServerError
from sparkwright.engine.cell import Cell, Deadlines, Load, Prompt
from sparkwright.engine.client.endpoint import Endpoint, open_session
from sparkwright.engine.client.load import run_load
from sparkwright.engine.client.request import count_tokens
from sparkwright.engine.observations import FailureKind, Sample
from sparkwright.verify.corpus import load_corpus
from sparkwright.verify.simulator.faults import FAULTS, parse_faults
from sparkwright.verify.simulator.machine import Clock, Log
from sparkwright.verify.simulator.main import read_truth, simulator
from sparkwright.verify.simulator.server import listening
from sparkwright.verify.simulator.settings import Settings
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
