"""Keep a served engine alive: watch it, keep evidence where it wedges, and start it again with back-off."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from sparkwright.base.errors import ServerEndedError, ServerError
from sparkwright.base.events import emit, warn
from sparkwright.serve.incident import keep_incident
from sparkwright.serve.rotate import rotate
from sparkwright.serve.sd_notify import notify, write_state
from sparkwright.serve.watchdog import (
    EngineSample,
    Judgement,
    RestartPolicy,
    Watchdog,
    WatchLimits,
    WatchVerdict,
)

_KEPT_SAMPLES = 240
_EXTENDED_S = 180  # of a start in systemd's eyes, from each pulse on


class WatchedEngine(Protocol):
    """An engine that runs and can be watched."""

    @property
    def log(self) -> Path:
        """Return its log file."""

    async def sample(self) -> EngineSample:
        """Return its state now; the fields about canaries are filled in by the watch."""

    async def canary(self, seconds: float) -> str:
        """Request a few tokens; return empty once they came, else the failure after *seconds* at most."""

    async def keep_evidence(self, reason: str) -> Path:
        """Keep evidence of its failure and return the folder."""

    def pids(self) -> tuple[int, ...]:
        """Return its first processes."""


@dataclass(frozen=True)
class WatchOptions:
    """The settings of a watch.

    Attributes:
        limits: limits of an engine that does nothing.
        policy: delays and number of restarts.
        interval_s: seconds between two samples.
        canary_s: seconds between two canaries.
        state: file for the state; see `read_state`.
        speed: seconds of the engine's clock in a real one; above 1 only for a simulator.
    """

    limits: WatchLimits = field(default_factory=WatchLimits)
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    interval_s: float = 5.0
    canary_s: float = 60.0
    state: Path | None = None
    speed: float = 1.0


async def supervise(
    start: Callable[[], AbstractAsyncContextManager[WatchedEngine]], options: WatchOptions
) -> None:
    """Run engines from *start*, one after the other, until this task is cancelled.

    An engine that is wedged, dead or does not start is ended, and another one is started after a delay that
    grows. Ends only by an error; the caller cancels it for an ordinary stop.

    Args:
        start: returns the next engine, which runs while its block of ``async with`` does.
        options: the settings.

    Raises:
        ServerEndedError: it had to be started again too often, or ended in its first warm-up.
        ServerError: the first start failed, which another start would not cure.
    """
    restarts: tuple[float, ...] = ()
    announced = False
    while True:
        state = "restarting" if announced else "starting"
        _tell(options, state, "")
        pulse = asyncio.create_task(_pulse(options, state, ""))
        try:
            async with start() as engine:
                await _stop(pulse)
                if not announced:
                    notify("READY=1\nSTATUS=serving")
                announced = True
                judgement = await watch(engine, options)
        except (ServerError, ServerEndedError) as error:
            if not announced:
                raise
            judgement = Judgement(WatchVerdict.DEAD, f"it could not be started: {error.what}")
            warn(judgement.because)
        finally:
            await _stop(pulse)
        restarts = await _delay(restarts, judgement, options)


async def _delay(
    restarts: tuple[float, ...], judgement: Judgement, options: WatchOptions
) -> tuple[float, ...]:
    """Wait until the next start is due, and return the times of all restarts, this one included.

    Raises:
        ServerEndedError: there were too many.
    """
    now = time.monotonic()
    delay = options.policy.delay(restarts, now)
    if delay is None:
        raise ServerEndedError(
            f"the engine was started {len(restarts)} times again and is given up",
            because=judgement.because,
            next_step="see the evidence beside its log",
        )
    emit("serve.restarting", verdict=judgement.verdict, because=judgement.because, delay_s=delay)
    _tell(options, "restarting", judgement.because)
    pulse = asyncio.create_task(_pulse(options, "restarting", judgement.because))
    try:
        await asyncio.sleep(delay / options.speed)
    finally:
        await _stop(pulse)
    return (*restarts, now)


async def watch(engine: WatchedEngine, options: WatchOptions) -> Judgement:
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
    pulse = asyncio.create_task(_pulse(options, judgement.verdict, judgement.because))
    try:
        place = await engine.keep_evidence(f"{judgement.verdict}: {judgement.because}")
        names = await asyncio.to_thread(keep_incident, place, engine.pids(), tuple(samples))
    finally:
        await _stop(pulse)
    emit("serve.incident", folder=str(place), files=names, verdict=judgement.verdict)
    return judgement


class _Canaries:
    """Canaries sent to an engine, one at a time."""

    def __init__(self, engine: WatchedEngine, options: WatchOptions) -> None:
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


async def _pulse(options: WatchOptions, verdict: str, because: str) -> None:
    """Keep systemd and the state's readers waiting while an engine starts or evidence is kept.

    Both have limits of their own.
    """
    while True:
        _tell(options, verdict, because)
        notify(f"WATCHDOG=1\nEXTEND_TIMEOUT_USEC={_EXTENDED_S * 1_000_000}")
        await asyncio.sleep(options.interval_s / options.speed)


async def _stop(task: asyncio.Task[object] | asyncio.Task[str] | asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait({task})


def _tell(options: WatchOptions, verdict: str, because: str, **more: object) -> None:
    if options.state is not None:
        write_state(options.state, verdict, because, **more)
    notify(f"STATUS={verdict}{f': {because}' if because else ''}")
