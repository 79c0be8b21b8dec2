"""A started server as an engine that can be watched: its samples, its log, and evidence of its failures.

The evidence is beyond that of `engine.server.failures`: stacks, processes, samples.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from sparkwright.base.errors import SparkwrightError
from sparkwright.base.events import emit
from sparkwright.base.machine import look
from sparkwright.base.process.run import run
from sparkwright.engine.client.request import canary
from sparkwright.engine.metrics.counters import (
    CountersResetError,
    SeriesAbsentError,
    SpeculationAbsentError,
    counter_delta,
    speculation,
)
from sparkwright.engine.metrics.scrape import fetch_snapshot
from sparkwright.engine.observations import HostSample, MetricsSnapshot
from sparkwright.engine.server.compiling import running_compilers
from sparkwright.engine.server.host import sample_host
from sparkwright.engine.server.lifecycle import ServerProcess
from sparkwright.serve.watchdog import EngineSample

if TYPE_CHECKING:
    import aiohttp

MOST_BYTES = 64 << 20
KEPT = 4
_DUMP_S = 15.0
_MOST_DUMPED = 16
_ANSWER_S = 10.0
_ERROR = 500


class ServedEngine:
    """A server of this machine, with a session to it."""

    def __init__(self, server: ServerProcess, session: aiohttp.ClientSession) -> None:
        self.server = server
        self._session = session

    async def canary(self, seconds: float) -> str:
        """Request a few tokens; return empty once they came, else the failure after *seconds* at most."""
        deadlines = msgspec.structs.replace(self.server.launch.deadlines, canary_s=seconds)
        try:
            return await canary(self._session, self.server.endpoint, deadlines, self.server.launch.speed)
        except SparkwrightError as error:
            return str(error)

    async def sample(self) -> EngineSample:
        """Return its state now."""
        health, counters = await asyncio.gather(self._health(), self._counters())
        host = await sample_host()
        facts = EngineSample(
            at=time.monotonic() * self.server.launch.speed,
            exited=self.server.died,
            responds=health is not None or counters is not None,
            failing=health is not None and health >= _ERROR,
            compilers=len(running_compilers(self.server.pid or 0)),
            available_mib=host.memory_available_mib,
            pressure=pressure.full if (pressure := look().pressure) else -1,
        )
        return facts if counters is None else _with_counters(facts, counters)

    async def _health(self) -> int | None:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with self._session.get(f"{self.server.url}/health", timeout=timeout) as response:
                return response.status
        return None

    async def _counters(self) -> MetricsSnapshot | None:
        with contextlib.suppress(SparkwrightError):
            return await fetch_snapshot(self._session, self.server.endpoint)
        return None


def _with_counters(sample: EngineSample, counters: MetricsSnapshot) -> EngineSample:
    return replace(
        sample,
        running=counters.running,
        waiting=counters.waiting,
        generated=counters.generation_tokens,
        prompt=counters.prompt_tokens,
        preemptions=counters.preemptions,
        kv_usage=counters.kv_usage,
    )


def state_between(before: MetricsSnapshot, after: MetricsSnapshot, host: HostSample) -> dict[str, float]:
    """Return the state of a server at *after*, with rates since *before*; -1 for what cannot be read.

    The acceptance length counts the tokens of a step and request, 1 where no draft was accepted. The pressure
    is the share of the last ten seconds, in percent, in which something waited for memory (PSI).
    """
    mib = host.memory_available_mib
    state = {
        "running": after.running,
        "waiting": after.waiting,
        "tokens_per_s": _rate(before, after, "generation_tokens"),
        "prompt_tokens_per_s": _rate(before, after, "prompt_tokens"),
        "acceptance_length": _acceptance_length(before, after),
        "kv_usage": after.kv_usage,
        "available_gib": mib / 1024 if mib >= 0 else -1,
        "pressure": host.memory_pressure,
    }
    return {name: round(value, 3) for name, value in state.items()}


def _rate(before: MetricsSnapshot, after: MetricsSnapshot, counter: str) -> float:
    seconds = (after.at - before.at) / 1e9
    with contextlib.suppress(SeriesAbsentError, CountersResetError):
        return counter_delta(before, after, counter) / seconds if seconds > 0 else -1
    return -1


def _acceptance_length(before: MetricsSnapshot, after: MetricsSnapshot) -> float:
    with contextlib.suppress(SpeculationAbsentError, CountersResetError):
        drafted = speculation(before, after)
        return drafted.mean_acceptance_length if drafted.drafts else -1
    return -1


# Evidence --------------------------------------------------------------------------------------------------


def family(pid: int) -> list[dict[str, object]]:
    """Return the process *pid* and its descendants: id, parent, name, state, CPU seconds and memory."""
    found: list[dict[str, object]] = []
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                found.append(
                    {
                        "pid": process.pid,
                        "parent": process.ppid(),
                        "name": process.name(),
                        "state": process.status(),
                        "threads": process.num_threads(),
                        "cpu_s": round(times.user + times.system, 2),
                        "rss_mib": process.memory_info().rss >> 20,
                    }
                )
    return found


def keep_incident(place: Path, pid: int, samples: Iterable[EngineSample]) -> tuple[str, ...]:
    """Write the processes, their Python stacks and the last samples of an engine into the folder *place*.

    Stacks are those of py-spy, where it is installed and may look at the processes.

    Returns:
        The names of the files that were written.
    """
    processes = family(pid)
    written = {
        "processes.json": json.dumps(processes, indent=1) + "\n",
        "samples.jsonl": "".join(json.dumps(asdict(sample)) + "\n" for sample in samples),
    }
    if stacks := _stacks([int(str(one["pid"])) for one in processes][:_MOST_DUMPED]):
        written["stacks.txt"] = stacks
    for name, text in written.items():
        (place / name).write_text(text, encoding="utf-8", errors="replace")
    return tuple(written)


def _stacks(pids: Sequence[int]) -> str:

    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return ""
    found = []
    for pid in pids:
        # A stopped process cannot be paused once more: its memory is read as it is.
        with contextlib.suppress(SparkwrightError):
            done = run([program, "dump", "--nonblocking", "--pid", str(pid)], timeout=_DUMP_S, accept=(0, 1))
            if done.status == 0:
                found.append(done.text)
    return "\n\n".join(found) + "\n" if found else ""


def rotate(log: Path, *, most: int = MOST_BYTES, kept: int = KEPT) -> bool:
    """Copy *log* to ``LOG.1`` and empty it if it has grown beyond *most* bytes; return true if it had.

    Its writer goes on: it appends. What it writes between the copy and the cut is lost, at most some lines.
    """
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return False
    if size <= most:
        return False
    for number in range(kept - 1, 0, -1):
        older = _piece(log, number)
        if older.exists():
            older.replace(_piece(log, number + 1))
    shutil.copyfile(log, _piece(log, 1))
    os.truncate(log, 0)
    emit("serve.log-rotated", log=str(log), bytes=size)
    return True


def _piece(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")
