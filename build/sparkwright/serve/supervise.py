"""Watch a served engine, and keep evidence where it wedges or dies.

Whoever started this process starts it again: systemd by its unit, Docker by its restart policy. systemd also
ends it where it hangs: starts and samples are reported to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

from sparkwright.base.errors import ServerEndedError
from sparkwright.base.events import emit, warn
from sparkwright.serve.engine import ServedEngine, keep_incident, rotate
from sparkwright.serve.watchdog import EngineSample, Judgement, Watchdog, WatchLimits

_KEPT_SAMPLES = 240
_PULSE_S, _EXTENDED_S = 5.0, 180  # of a start in systemd's eyes, from each pulse on


@dataclass(frozen=True)
class WatchOptions:
    """The settings of a watch.

    Attributes:
        speed: seconds of the engine's clock in a real one; above 1 only for a simulator.
    """

    limits: WatchLimits = field(default_factory=WatchLimits)
    interval_s: float = 5.0
    canary_s: float = 60.0
    speed: float = 1.0


async def watch(engine: ServedEngine, options: WatchOptions) -> None:
    """Watch *engine*, which has started, until this task is cancelled.

    Raises:
        ServerEndedError: it is wedged or dead; evidence is kept.
    """
    notify("READY=1\nSTATUS=serving")
    watchdog, shown = Watchdog(options.limits), None
    samples: deque[EngineSample] = deque(maxlen=_KEPT_SAMPLES)
    canaries = _Canaries(engine, options)
    try:
        while True:
            sample = canaries.fill(await engine.sample())
            samples.append(sample)
            watchdog, judgement = watchdog.observe(sample)
            if judgement.verdict is not shown:
                emit("serve.watch", verdict=judgement.verdict, because=judgement.because)
                shown = judgement.verdict
            _tell(judgement.verdict, judgement.because)
            if judgement.verdict.ends:
                break
            notify("WATCHDOG=1")
            await asyncio.to_thread(rotate, engine.server.log)
            await asyncio.sleep(options.interval_s / options.speed)
    finally:
        await canaries.stop()
    raise await _ended(engine, judgement, tuple(samples))


async def _ended(
    engine: ServedEngine, judgement: Judgement, samples: tuple[EngineSample, ...]
) -> ServerEndedError:
    """Return the error of an engine that has to be started again, with evidence kept."""
    warn(f"the engine is {judgement.verdict}: {judgement.because}")
    # Stacks of many processes may take minutes.
    async with pulsing(judgement.verdict, judgement.because):
        place = await engine.server.keep_evidence(f"{judgement.verdict}: {judgement.because}")
        names = await asyncio.to_thread(keep_incident, place, engine.server.pid or 0, samples)
    emit("serve.incident", folder=str(place), files=names, verdict=judgement.verdict)
    return ServerEndedError(
        f"the engine is {judgement.verdict}",
        because=judgement.because,
        next_step=f"see the evidence in {place}",
    )


class _Canaries:
    """Canaries sent to an engine, one at a time."""

    def __init__(self, engine: ServedEngine, options: WatchOptions) -> None:
        self._engine, self._options = engine, options
        self._pending: asyncio.Task[str] | None = None
        self._due = time.monotonic()
        self._good = self._failures = 0

    def fill(self, sample: EngineSample) -> EngineSample:
        """Return *sample* with what canaries found; start the next one if it is due."""
        if self._pending is not None and self._pending.done():
            failure = self._pending.result()
            self._pending = None
            self._good += not failure
            self._failures = self._failures + 1 if failure else 0
            pause = 0.0 if failure else self._options.canary_s
            self._due = time.monotonic() + pause / self._options.speed
        if self._pending is None and time.monotonic() >= self._due:
            # Two of them fit into the limit of an engine that does nothing.
            self._pending = asyncio.create_task(self._engine.canary(self._options.limits.stall_s / 2))
        return replace(
            sample,
            canary_pending=self._pending is not None,
            canaries_good=self._good,
            canary_failures=self._failures,
        )

    async def stop(self) -> None:
        """Cancel the canary that is on its way."""
        if self._pending is not None:
            await _stop(self._pending)


@contextlib.asynccontextmanager
async def pulsing(status: str, because: str = "") -> AsyncIterator[None]:
    """Keep systemd waiting inside the block: it has limits of its own."""

    async def pulse() -> None:
        while True:
            _tell(status, because)
            notify(f"WATCHDOG=1\nEXTEND_TIMEOUT_USEC={_EXTENDED_S * 1_000_000}")
            await asyncio.sleep(_PULSE_S)

    task = asyncio.create_task(pulse())
    try:
        yield
    finally:
        await _stop(task)


async def _stop(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait({task})


def _tell(status: str, because: str) -> None:
    notify(f"STATUS={status}{f': {because}' if because else ''}")


def notify(message: str) -> bool:
    """Send *message*, such as ``READY=1``, to systemd; return false where it does not listen."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(f"\0{address[1:]}" if address.startswith("@") else address)  # an abstract socket
        sender.sendall(message.encode())
        return True
    return False
