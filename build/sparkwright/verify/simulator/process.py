"""The simulator in a process of its own, and its record of the true times of requests.

It records the arrival of a request's last byte at its socket and the writing of the first and the last token,
on the monotonic clock that the client reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from sparkwright.base.config import json_decoder
from sparkwright.base.errors import ServerError
from sparkwright.base.process import Running, start
from sparkwright.engine.client.endpoint import Endpoint

_BOOT_S = 60.0
_EXCERPT = 1000


class RequestTruth(msgspec.Struct, frozen=True):
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


def read_truth(path: Path) -> dict[str, RequestTruth]:
    """Return the simulator's lines by request; a line that is still being written is left out."""
    decoder = json_decoder(RequestTruth)
    truths = [decoder.decode(line) for line in _read(path).split(b"\n")[:-1]]
    return {truth.id: truth for truth in truths}
