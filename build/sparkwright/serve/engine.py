"""A started server as an engine that can be watched, and its state between two looks."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from sparkwright.base.config import Model
from sparkwright.base.errors import SparkwrightError
from sparkwright.engine.client.request import canary
from sparkwright.engine.metrics import SpeculationAbsentError, fetch_snapshot, speculation
from sparkwright.engine.metrics.counters import CountersResetError, SeriesAbsentError, counter_delta
from sparkwright.engine.observations import HostSample, MetricsSnapshot
from sparkwright.engine.server import ServerProcess, sample_host
from sparkwright.serve.incident import compilers
from sparkwright.serve.watchdog import EngineSample

if TYPE_CHECKING:
    import aiohttp


_ANSWER_S = 10.0
_ERROR = 500
_PRESSURE = Path("/proc/pressure/memory")


class ServedEngine:
    """A server of this machine, with a session to it."""

    def __init__(self, server: ServerProcess, session: aiohttp.ClientSession) -> None:
        self.server = server
        self._session = session

    @property
    def log(self) -> Path:
        """Return its log file."""
        return self.server.log

    def pids(self) -> tuple[int, ...]:
        """Return its first process."""
        return () if self.server.pid is None else (self.server.pid,)

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
            compilers=compilers(self.pids()),
            available_mib=host.memory_available_mib,
            pressure=memory_pressure("full"),
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


class Status(Model, frozen=True):
    """The state of a server. Numbers that cannot be read are -1.

    Attributes:
        acceptance_length: tokens of a step and request since then, 1 where no draft was accepted; -1 without
            drafts.
        kv_usage: share of the KV cache in use, 0 to 1.
        available_gib: memory of the machine that can still be taken (MemAvailable).
        pressure: share of the last ten seconds, in percent, in which something waited for memory (PSI).
    """

    running: float = -1
    waiting: float = -1
    tokens_per_s: float = -1
    prompt_tokens_per_s: float = -1
    acceptance_length: float = -1
    kv_usage: float = -1
    available_gib: float = -1
    pressure: float = -1


def status_between(
    before: MetricsSnapshot, after: MetricsSnapshot, host: HostSample, pressure: float
) -> Status:
    """Return the state at *after*, with rates since *before*."""
    mib = host.memory_available_mib
    return Status(
        running=after.running,
        waiting=after.waiting,
        tokens_per_s=_rate(before, after, "generation_tokens"),
        prompt_tokens_per_s=_rate(before, after, "prompt_tokens"),
        acceptance_length=_acceptance_length(before, after),
        kv_usage=after.kv_usage,
        available_gib=mib / 1024 if mib >= 0 else -1,
        pressure=pressure,
    )


def memory_pressure(kind: Literal["some", "full"] = "some", path: Path = _PRESSURE) -> float:
    """Return the percentage of the last ten seconds in which memory was waited for (PSI); -1 if unread."""
    with contextlib.suppress(OSError, ValueError):
        if found := re.search(rf"^{kind} avg10=([\d.]+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            return float(found.group(1))
    return -1


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
