"""A server's life: it starts, listens, and ends by a signal or by its engine's death."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sparkwright.base.process import start_unguarded
from sparkwright.verify.arrival import listen
from sparkwright.verify.simulator.bootlog import boot_lines, failing_lines
from sparkwright.verify.simulator.clock import Clock
from sparkwright.verify.simulator.driver import Driver
from sparkwright.verify.simulator.log import Log
from sparkwright.verify.simulator.server import SimulatedServer
from sparkwright.verify.simulator.truth import RequestTruth

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sparkwright.base.process import UnguardedProcess
    from sparkwright.verify.simulator.settings import Settings

_BACKLOG = 1024


async def serve(settings: Settings) -> int:
    """Boot, listen, and stay until a signal or the engine's death; returns the exit status."""
    clock = Clock(settings.speed)
    child = _start_engine(settings)
    log = Log(settings.log, clock, settings.dialect, (os.getpid(), child.pid if child else os.getpid()))
    truth = RequestTruth(settings.truth)
    try:
        if not await _boot(settings, clock, log):
            return 1
        return await _listen(settings, clock, log, truth, child)
    finally:
        truth.close()
        log.close()
        if child and "orphan" not in settings.faults:
            child.kill()
            child.wait()


def _start_engine(settings: Settings) -> UnguardedProcess | None:
    if not settings.engine:
        return None
    orphan = "1" if "orphan" in settings.faults else "0"
    return start_unguarded([sys.executable, "-I", "-S", Path(__file__).with_name("child.py"), orphan])


async def _boot(settings: Settings, clock: Clock, log: Log) -> bool:
    """Say what a starting server says, in its time; False when the start fails."""
    failing = failing_lines(settings)
    lines = list(boot_lines(settings))
    lines = lines[: len(lines) // 2] if failing else lines
    seconds = settings.faults.value("boot-slow", "seconds") or settings.boot_s
    for index, line in enumerate(lines):
        if index == len(lines) // 2 and "boot-killed" in settings.faults:
            os.kill(os.getpid(), signal.SIGKILL)
        log.line(line)
        await clock.sleep(seconds / len(lines))
    for line in failing:
        log.line(line)
    return not failing


async def _listen(
    settings: Settings, clock: Clock, log: Log, truth: RequestTruth, child: UnguardedProcess | None
) -> int:
    """Serve until it is over; returns the exit status."""
    async with listening(settings, clock, log, truth) as (driver, url):
        log.write(f"Starting vLLM server on {url}", where="api_server.py:581")
        log.write("Application startup complete.", where="on.py:62")
        _write_ready(settings, url)
        ignore = _watch(driver, child)
        try:
            return await driver.over
        finally:
            ignore()
            log.write("Shutting down", where="launcher.py:99")


@asynccontextmanager
async def listening(
    settings: Settings, clock: Clock, log: Log, truth: RequestTruth
) -> AsyncIterator[tuple[Driver, str]]:
    """A server that listens, in this process: its driver and its URL."""
    from aiohttp import web

    driver = Driver(settings, clock, log)
    runner = web.AppRunner(
        SimulatedServer(driver, truth).application(),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=0.2,
    )
    await runner.setup()
    tasks: list[asyncio.Task[None]] = []
    try:
        site = web.SockSite(runner, listen(settings.host, settings.port, _BACKLOG), backlog=_BACKLOG)
        await site.start()
        tasks += [asyncio.create_task(driver.run()), asyncio.create_task(driver.report())]
        yield driver, f"http://{settings.host}:{runner.addresses[0][1]}"
    finally:
        for task in tasks:
            task.cancel()
        await runner.cleanup()


def _write_ready(settings: Settings, url: str) -> None:
    """Tell whoever waits for it where it listens, all of it at once."""
    if settings.ready is None:
        return
    ready = {"url": url, "pid": os.getpid(), "model": settings.model}
    part = settings.ready.with_name(settings.ready.name + ".part")
    part.write_text(json.dumps(ready), encoding="utf-8")
    part.replace(settings.ready)


def _watch(driver: Driver, child: UnguardedProcess | None) -> Callable[[], None]:
    """End on signals, and notice the death of the engine's process until what is returned is called."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, driver.end, 0)
    if child is None:
        return lambda: None
    descriptor = os.pidfd_open(child.pid)

    def ignore() -> None:
        if loop.remove_reader(descriptor):
            os.close(descriptor)

    def died() -> None:
        ignore()
        driver.die(f"Engine core proc EngineCore died unexpectedly (status {child.wait()}).")

    loop.add_reader(descriptor, died)
    return ignore
