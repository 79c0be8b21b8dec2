"""Keep a served engine alive: watch it, keep evidence where it wedges, and start it again with back-off.

systemd starts this process again, once it has ended over an engine, and ends it where it hangs: starts and
samples are reported to it. In an image and in the foreground it starts the engine again itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkwright.base.errors import ClusterError, FetchError, ServerEndedError, ServerError
from sparkwright.base.events import emit, warn
from sparkwright.serve.engine import ServedEngine, keep_incident, rotate
from sparkwright.serve.health import notify, write_state
from sparkwright.serve.watchdog import EngineSample, Judgement, Watchdog, WatchLimits, WatchVerdict

_KEPT_SAMPLES = 240
_EXTENDED_S = 180  # of a start in systemd's eyes, from each pulse on
_HOUR_S = 3600.0
# Before another start; within an hour each waits twice as long as the one before.
_FIRST_S, _MOST_S = 5.0, 600.0
RESTARTS = 6
"""Restarts in an hour after which an engine is given up."""


@dataclass(frozen=True)
class WatchOptions:
    """The settings of a watch.

    Attributes:
        restarts: restarts in an hour, after which the engine is given up; 0 where systemd does them.
        state: file for the state; see `read_state`.
        speed: seconds of the engine's clock in a real one; above 1 only for a simulator.
    """

    limits: WatchLimits = field(default_factory=WatchLimits)
    restarts: int = RESTARTS
    interval_s: float = 5.0
    canary_s: float = 60.0
    state: Path | None = None
    speed: float = 1.0


async def supervise(
    start: Callable[[], AbstractAsyncContextManager[ServedEngine]], options: WatchOptions
) -> None:
    """Run engines from *start*, each for its block of ``async with``, until this task is cancelled.

    An engine that is wedged, dead or does not start is ended, and another one is started after a delay that
    grows. Ends only by an error; the caller cancels it for an ordinary stop.

    Raises:
        ServerEndedError: it had to be started again too often, or ended in its first warm-up.
        ServerError: the first start failed, which another start would not cure.
        FetchError: a model could not be fetched for the first start.
        ClusterError: the second of two machines could not be used for it.
    """
    restarts: list[float] = []
    announced = False
    while True:
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with _pulsing(options, "restarting" if announced else "starting"):
                    engine = await stack.enter_async_context(start())
                if not announced:
                    notify("READY=1\nSTATUS=serving")
                announced = True
                judgement = await watch(engine, options)
        except (ServerError, ServerEndedError, FetchError, ClusterError) as error:
            if not announced:
                raise
            judgement = Judgement(WatchVerdict.DEAD, f"it could not be started: {error.what}")
            warn(judgement.because)
        now = time.monotonic()
        recent = sum(now - at < _HOUR_S for at in restarts)
        if recent >= options.restarts:
            again = f", was started {recent} times again and is given up" if recent else ""
            raise ServerEndedError(
                f"the engine is {judgement.verdict}{again}",
                because=judgement.because,
                next_step="see the evidence beside its log",
            )
        delay = min(_MOST_S, _FIRST_S * 2.0**recent)
        emit("serve.restarting", verdict=judgement.verdict, because=judgement.because, delay_s=delay)
        async with _pulsing(options, "restarting", judgement.because):
            await asyncio.sleep(delay / options.speed)
        restarts.append(now)


async def watch(engine: ServedEngine, options: WatchOptions) -> Judgement:
    """Watch *engine* until it has to be started again; return that judgement, with evidence kept."""
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
            _tell(options, judgement.verdict, judgement.because, still_s=round(judgement.still_s, 1))
            if judgement.verdict.ends:
                break
            notify("WATCHDOG=1")
            await asyncio.to_thread(rotate, engine.log)
            await asyncio.sleep(options.interval_s / options.speed)
    finally:
        await canaries.stop()
    warn(f"the engine is {judgement.verdict}: {judgement.because}")
    # Stacks of many processes may take minutes.
    async with _pulsing(options, judgement.verdict, judgement.because):
        place = await engine.server.keep_evidence(f"{judgement.verdict}: {judgement.because}")
        names = await asyncio.to_thread(keep_incident, place, engine.pids(), tuple(samples))
    emit("serve.incident", folder=str(place), files=names, verdict=judgement.verdict)
    return judgement


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
async def _pulsing(options: WatchOptions, verdict: str, because: str = "") -> AsyncIterator[None]:
    """Keep systemd and the state's readers waiting inside the block; both have limits of their own."""

    async def pulse() -> None:
        while True:
            _tell(options, verdict, because)
            notify(f"WATCHDOG=1\nEXTEND_TIMEOUT_USEC={_EXTENDED_S * 1_000_000}")
            await asyncio.sleep(options.interval_s / options.speed)

    pulsing = asyncio.create_task(pulse())
    try:
        yield
    finally:
        await _stop(pulsing)


async def _stop(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait({task})


def _tell(options: WatchOptions, verdict: str, because: str, **more: object) -> None:
    if options.state is not None:
        write_state(options.state, verdict, because, **more)
    notify(f"STATUS={verdict}{f': {because}' if because else ''}")
