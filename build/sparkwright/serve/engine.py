"""A started server as an engine that can be watched, and its state between two looks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sparkwright.base.errors import SparkwrightError
from sparkwright.base.machine import look
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
