"""The client's own error, measured against a simulator that records the true times.

The simulator records the arrival of a request's last byte at its socket and the writing of the first and the
last token, on the monotonic clock that the client reads. The time for which it lets a request wait is part of
the truth, as with any server; the difference is the client's error, together with the transfer between both
sockets: an upper limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sparkwright.base.config import Model, json_decoder
from sparkwright.base.errors import ServerError
from sparkwright.base.events import emit
from sparkwright.base.process import start
from sparkwright.engine.cell import Cell, Load, Prompt
from sparkwright.engine.client.endpoint import Endpoint, open_session
from sparkwright.engine.client.lag import LagProbe
from sparkwright.engine.client.load import run_load
from sparkwright.engine.deadlines import Deadlines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sparkwright.base.process import Running
    from sparkwright.engine.observations import Sample

EVENTS_PER_S = 400.0
"""Chunks that this machine's fastest published server sends in a second, at any concurrency."""

_LEAST_REQUESTS = 100  # fewer have no 99th percentile
_BOOT_S = 60.0
_LAST_LINES_S = 10.0
_EXCERPT = 1000
_STAGGER_S = 0.25  # sent at once, requests would wait for the simulator itself to take them


class Floor(Model, frozen=True):
    """The least error of the client at one concurrency.

    Attributes:
        concurrency: requests at a time.
        requests: number of requests measured.
        events_per_s: chunks received in a second.
        ttft_p50_ms: median error of the times to the first token.
        ttft_p99_ms: their 99th percentile.
        tpot_p50_percent: median error of the times per output token.
        tpot_p99_percent: their 99th percentile.
        lag_p99_ms: lateness of the client's event loop meanwhile.
        read_p99_ms: the part of the error at the first token between the simulator's write and the client's
            time of arrival. The rest is on the request's way to the simulator.
    """

    concurrency: int
    requests: int
    events_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_percent: float
    tpot_p99_percent: float
    lag_p99_ms: float
    read_p99_ms: float = 0.0


class CalibrationTruth(msgspec.Struct, frozen=True):
    """The simulator's line about one request; times as of `time.perf_counter_ns`."""

    id: str
    received_ns: int
    first_token_written_ns: int
    last_token_written_ns: int
    tokens: int

    @property
    def ttft_ms(self) -> float:
        """Return the true time to the first token."""
        return (self.first_token_written_ns - self.received_ns) / 1e6

    @property
    def tpot_ms(self) -> float:
        """Return the true time per output token after the first."""
        return (self.last_token_written_ns - self.first_token_written_ns) / 1e6 / (self.tokens - 1)


async def calibrate(
    levels: Sequence[int], *, seed: int = 0, tokens: int = 128, events_per_s: float = EVENTS_PER_S
) -> tuple[Floor, ...]:
    """Measure the client against a simulator in a process of its own, at each of *levels*.

    Args:
        levels: concurrencies.
        seed: seed of the simulator.
        tokens: output tokens of one request.
        events_per_s: chunks that the simulator sends in a second, whatever the concurrency.

    Raises:
        ServerError: the simulator did not start, or a request to it failed.
    """
    with tempfile.TemporaryDirectory(prefix="sparkwright-floor-") as name:
        folder = Path(name)
        # A step that costs so much for each request gives the same rate of chunks at every concurrency.
        options = ("--step-ms", f"0,{1000 / events_per_s:g},0,0.01", "--seed", str(seed))
        async with simulator(folder, *options, seqs=max(levels)) as endpoint:
            return tuple([await _floor_at(level, endpoint, folder, tokens) for level in levels])


async def _floor_at(level: int, endpoint: Endpoint, folder: Path, tokens: int) -> Floor:
    requests = max(_LEAST_REQUESTS, 3 * level)
    load = Load(concurrency=level, requests=requests, warm_up=level, max_tokens=tokens, stagger_s=_STAGGER_S)
    prompts = tuple(
        Prompt(name=f"{level}-{i}", category="code", text=f"[{level} {i}] Write a function in Python.")
        for i in range(requests)
    )
    cell = Cell(check="client", name=f"floor c={level}", load=load, prompts=prompts)
    async with open_session(endpoint) as session, LagProbe() as probe:
        samples = await run_load(session, endpoint, cell, Deadlines(), speed=1.0)
    counted = [sample for sample in samples if sample.counted]
    truths = await _truths(folder / "truth.jsonl", [sample.request for sample in counted])
    result = floor(level, counted, truths, lag_p99_ms=probe.p99_ms)
    emit("verify.floor", **msgspec.to_builtins(result))
    return result


def floor(
    level: int, samples: Sequence[Sample], truths: dict[str, CalibrationTruth], *, lag_p99_ms: float
) -> Floor:
    """Compare *samples* with the true times.

    Args:
        level: number of requests at a time.
        samples: the client's samples, all of them without failure.
        truths: true times by `Sample.request`.
        lag_p99_ms: lateness of the client's event loop.

    Raises:
        ServerError: a sample failed, or its true times are missing.
    """
    import numpy as np

    for sample in samples:
        if sample.failure is not None or sample.request not in truths:
            raise ServerError(
                "the client could not be calibrated",
                because=sample.failure.detail if sample.failure else f"request {sample.request!r} is unknown",
            )
    pairs = [(sample, truths[sample.request]) for sample in samples]
    ttft = [abs(sample.ttft_ms - truth.ttft_ms) for sample, truth in pairs]
    read = [(sample.first - truth.first_token_written_ns) / 1e6 for sample, truth in pairs]
    tpot = [100 * abs(sample.tpot_ms / truth.tpot_ms - 1) for sample, truth in pairs]
    seconds = (max(sample.last for sample in samples) - min(sample.first for sample in samples)) / 1e9
    return Floor(
        concurrency=level,
        requests=len(samples),
        events_per_s=sum(len(sample.chunks) for sample in samples) / seconds,
        ttft_p50_ms=float(np.percentile(ttft, 50)),
        ttft_p99_ms=float(np.percentile(ttft, 99)),
        read_p99_ms=float(np.percentile(read, 99)),
        tpot_p50_percent=float(np.percentile(tpot, 50)),
        tpot_p99_percent=float(np.percentile(tpot, 99)),
        lag_p99_ms=lag_p99_ms,
    )


# The simulator ------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def simulator(folder: Path, *options: str, seqs: int = 64) -> AsyncIterator[Endpoint]:
    """Run a simulated server in a process of its own that writes ``truth.jsonl`` into *folder*.

    Args:
        folder: folder for its files.
        options: further command-line options.
        seqs: requests that it runs at a time.

    Raises:
        ServerError: it did not start.
    """
    ready = folder / "ready.json"
    files = ("--ready-file", ready, "--log", folder / "log", "--truth", folder / "truth.jsonl")
    command = [sys.executable, "-m", "sparkwright.verify.simulator.main", "--boot-seconds", "0"]
    argv = [*command, "--max-num-seqs", str(seqs), *map(str, files), *options]
    running = start(argv, cwd=Path.cwd(), env=os.environ, log=folder / "output")
    try:
        server = await _ready(ready, running, folder / "output")
        yield Endpoint(server["url"], server["model"])
    finally:
        running.kill()


async def _ready(ready: Path, running: Running, output: Path) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    end = loop.time() + _BOOT_S
    while loop.time() < end and running.poll() is None:
        if content := _read(ready):
            server: dict[str, Any] = msgspec.json.decode(content)
            return server
        await asyncio.sleep(0.05)
    raise ServerError(
        "the simulator did not start",
        because=_read(output)[-_EXCERPT:].decode(errors="replace") or "it wrote nothing",
        next_step="run sparkwright-simulator by hand and read its output",
    )


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


async def _truths(path: Path, requests: Sequence[str]) -> dict[str, CalibrationTruth]:
    """Return the true times of each request in *requests*; its line may come after the response."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _LAST_LINES_S
    while True:
        truths = read_truth(path)
        if set(requests) <= truths.keys() or loop.time() >= end:
            return truths
        await asyncio.sleep(0.1)


def read_truth(path: Path) -> dict[str, CalibrationTruth]:
    """Return the simulator's lines by request; a line that is still being written is left out."""
    decoder = json_decoder(CalibrationTruth)
    truths = [decoder.decode(line) for line in _read(path).split(b"\n")[:-1]]
    return {truth.id: truth for truth in truths}
