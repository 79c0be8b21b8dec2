"""A real vLLM on the CPU whose worker is stopped: its /health stays green, and the watch replaces it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import psutil
import pytest

from sparkwright.base.errors import ServerError
from sparkwright.base.events import Event, subscribe
from sparkwright.merge import merge_patchset
from sparkwright.pipeline import BuildOptions, open_job
from sparkwright.recipes import load_recipe
from sparkwright.rehearsal.run import serve_exact
from sparkwright.serve.engine import served_engine
from sparkwright.serve.supervise import WatchOptions, supervise
from sparkwright.serve.watchdog import RestartPolicy, WatchLimits
from sparkwright.verify.server import ServerProcess, start_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from sparkwright.serve.engine import ServedEngine

ROOT = Path(__file__).parents[2]
PATIENCE_S = 400.0

pytestmark = [pytest.mark.slow, pytest.mark.upstream]


def engine_core(server: ServerProcess) -> psutil.Process:
    """Return the process that computes, by the title that vLLM gives it."""
    below = psutil.Process(server.pid).children(recursive=True)
    (found,) = [process for process in below if "EngineCore" in " ".join(process.cmdline())]
    return found


async def health(server: ServerProcess) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/health") as response:
        return response.status


def test_a_stopped_worker_is_found_and_replaced(tmp_path: Path) -> None:
    servers: list[ServerProcess] = []
    events: list[Event] = []
    with open_job(ROOT, BuildOptions(series="0.24", platform="x86_64")) as job:
        version = job.spec.lock.release.version
        tree = serve_exact(job, merge_patchset(job.repository, job.merge_request(job.pristine, version)))
        assert tree is not None
        recipe = load_recipe(tree.recipe)

    def start() -> AbstractAsyncContextManager[ServedEngine]:
        folder = tmp_path / str(len(servers))
        servers.append(start_server(recipe, folder=folder, python=tree.python, boot_s=600.0, end_s=5.0))
        return served_engine(servers[-1])

    def verdicts() -> list[Any]:
        return [event.data["verdict"] for event in events if event.kind == "serve.watch"]

    async def until(condition: Callable[[], object], task: asyncio.Task[None]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                if task.done():
                    await task
                await asyncio.sleep(0.2)

    async def run() -> int:
        limits = WatchLimits(stall_s=30.0, young_s=0.0)
        options = WatchOptions(limits, RestartPolicy(first_s=1.0), interval_s=2.0, canary_s=5.0)
        with subscribe(events.append):
            task = asyncio.create_task(supervise(start, options))
        try:
            await until(verdicts, task)
            os.kill(engine_core(servers[0]).pid, signal.SIGSTOP)
            await asyncio.sleep(5)
            green = await health(servers[0])
            await until(lambda: len(servers) == 2 and verdicts()[-1] == "healthy", task)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ServerError):
                await task
        return green

    assert asyncio.run(run()) == 200  # /health is green while nothing comes
    (incident,) = [event.data for event in events if event.kind == "serve.incident"]
    assert incident["verdict"] == "wedged"
    states = json.loads((tmp_path / "0" / "incident-1" / "processes.json").read_text())
    assert "stopped" in {one["state"] for one in states}
    for server in servers:
        assert server.pid is None or not psutil.pid_exists(server.pid)
