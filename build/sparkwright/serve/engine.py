"""A started server as an engine that can be watched."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sparkwright.base.errors import SparkwrightError
from sparkwright.engine.client.request import canary
from sparkwright.engine.metrics import fetch_snapshot
from sparkwright.engine.observations import MetricsSnapshot
from sparkwright.engine.server import ServerProcess, sample_host
from sparkwright.serve.incident import compilers
from sparkwright.serve.watchdog import EngineSample

if TYPE_CHECKING:
    import aiohttp


_ANSWER_S = 10.0
_ERROR = 500
_PRESSURE = Path("/proc/pressure/memory")
_FULL = re.compile(r"^full avg10=([\d.]+)", re.MULTILINE)


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

    async def keep_evidence(self, reason: str) -> Path:
        """Keep evidence of its failure and return the folder."""
        return await self.server.keep_evidence(reason)

    async def canary(self, seconds: float) -> str:
        """Request a few tokens; return empty once they came, else the failure after *seconds* at most.

        Args:
            seconds: limit, of the server's clock.
        """
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
            pressure=memory_pressure_full(),
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


def memory_pressure_full() -> float:
    """Return the share of the last ten seconds, in percent, in which everything waited for memory (PSI)."""
    try:
        found = _FULL.search(_PRESSURE.read_text(encoding="ascii"))
    except OSError:
        return -1
    return float(found.group(1)) if found else -1


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
