"""Engines in processes of their own are watched: wedged and dead ones are replaced, healthy ones are not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparkwright.base.errors import FetchError, ServerEndedError, ServerError
from sparkwright.base.events import Event, subscribe
from sparkwright.engine.client import open_session
from sparkwright.engine.server import ServerProcess, start_server
from sparkwright.serve.engine import ServedEngine
from sparkwright.serve.health import read_state
from sparkwright.serve.supervise import WatchOptions, supervise
from sparkwright.serve.watchdog import WatchLimits

SPEED = 20.0
PATIENCE_S = 240.0
NO_HUB = ("no-hub",)  # in place of faults: the model cannot be fetched
LIMITS = WatchLimits(stall_s=60.0, warm_s=60.0, young_s=0.0)


@dataclass
class Watched:
    """Simulated servers, one after the other, and what the watch says of them.

    Attributes:
        folder: for their logs.
        faults: the faults of each; those after the last have none.
        restarts: in an hour.
    """

    folder: Path
    faults: tuple[tuple[str, ...], ...] = ()
    restarts: int = 6
    servers: list[ServerProcess] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def options(self) -> WatchOptions:
        return WatchOptions(
            LIMITS, self.restarts, interval_s=5.0, canary_s=10.0, state=self.state, speed=SPEED
        )

    @property
    def state(self) -> Path:
        return self.folder / "state.json"

    @contextlib.asynccontextmanager
    async def start(self) -> AsyncIterator[ServedEngine]:
        number = len(self.servers)
        names = self.faults[number] if number < len(self.faults) else ()
        argv = [sys.executable, "-m", "sparkwright.verify.simulator.main", "--port", "{port}"]
        argv += ["--speed", str(SPEED), "--boot-seconds", "1"]
        argv += [part for name in names for part in ("--fault", name)]
        server = start_server(argv, folder=self.folder / str(number), speed=SPEED, end_s=3.0, boot_s=3600.0)
        self.servers.append(server)
        if names == NO_HUB:
            raise FetchError("the hub is down")
        async with server, open_session(server.endpoint) as session:
            yield ServedEngine(server, session)

    def heard(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.kind == kind]

    def verdicts(self) -> list[str]:
        return [str(data["verdict"]) for data in self.heard("serve.watch")]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        """Supervise in the background; afterwards none of the processes runs."""
        with subscribe(self.events.append):
            task = asyncio.create_task(supervise(self.start, self.options))
        try:
            yield task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ServerError, ServerEndedError):
                await task
            assert [server.pid for server in self.servers if server.pid and _runs(server.pid)] == []


def _runs(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def until(condition: Callable[[], object], task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            if task.done():
                await task
            await asyncio.sleep(0.02)


def test_a_wedged_engine_is_recorded_and_replaced(tmp_path: Path) -> None:
    watched = Watched(tmp_path, faults=(("dead-engine=3",),))

    async def run() -> None:
        async with watched.running() as task:
            await until(lambda: watched.heard("serve.restarting"), task)
            good, line = read_state(watched.state)
            assert not good, line
            await until(lambda: watched.verdicts()[-1:] == ["healthy"] and len(watched.servers) == 2, task)
            assert read_state(watched.state) == (True, "healthy")

    asyncio.run(run())
    assert watched.verdicts()[0] == "healthy"
    (incident,) = watched.heard("serve.incident")
    assert incident["verdict"] == "wedged"
    place = tmp_path / "0" / "incident-1"
    assert "canaries got no token" in json.loads((place / "incident.json").read_text())["reason"]
    samples = [json.loads(line) for line in (place / "samples.jsonl").read_text().splitlines()]
    assert samples[0]["canaries_good"] == 0
    assert samples[-1]["canaries_good"] == 2  # its boot took the first
    assert len(json.loads((place / "processes.json").read_text())) >= 2
    assert "Application startup complete" in (place / "log-tail.txt").read_text()
    assert "vllm:generation_tokens" in (place / "metrics.txt").read_text()


def test_a_healthy_engine_under_load_is_left_alone(tmp_path: Path) -> None:
    import aiohttp

    watched = Watched(tmp_path)
    body = {"prompt": "sort " * 20_000, "max_tokens": 200, "ignore_eos": True}

    async def run() -> None:
        async with watched.running() as task, aiohttp.ClientSession() as session:
            await until(watched.verdicts, task)
            server = watched.servers[0]
            url = f"{server.url}/v1/completions"
            posts = [
                asyncio.create_task(session.post(url, json={**body, "model": server.model, "seed": number}))
                for number in range(6)
            ]
            responses = await asyncio.gather(*posts)
            assert [response.status for response in responses] == [200] * 6

    asyncio.run(run())
    assert not watched.heard("serve.incident")
    assert "busy" in watched.verdicts()
    assert len(watched.servers) == 1


@pytest.mark.slow
def test_a_stopped_server_is_replaced(tmp_path: Path) -> None:
    watched = Watched(tmp_path)

    async def run() -> None:
        async with watched.running() as task:
            await until(watched.verdicts, task)
            guard = psutil.Process(watched.servers[0].pid)
            for process in guard.children(recursive=True):
                os.kill(process.pid, signal.SIGSTOP)
            await until(lambda: len(watched.servers) == 2, task)

    asyncio.run(run())
    (incident,) = watched.heard("serve.incident")
    assert incident["verdict"] == "wedged"
    states = {one["state"] for one in json.loads((tmp_path / "0/incident-1/processes.json").read_text())}
    assert "stopped" in states


def test_an_engine_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    watched = Watched(tmp_path, (("no-hits",), NO_HUB, ("crash-at=1",)), restarts=2)

    async def run() -> None:
        async with watched.running() as task:
            await until(watched.verdicts, task)
            for process in psutil.Process(watched.servers[0].pid).children():
                process.kill()
            with pytest.raises(ServerEndedError, match="2 times again") as caught:
                await until(lambda: False, task)
            assert caught.value.exit_code == 77
            assert caught.value.because

    asyncio.run(run())
    assert len(watched.servers) == 3
    delays = [data["delay_s"] for data in watched.heard("serve.restarting")]
    assert delays == [5.0, 10.0]


def test_a_wedged_engine_under_systemd_ends_with_its_evidence_kept(tmp_path: Path) -> None:
    watched = Watched(tmp_path, (("dead-engine=3",),), restarts=0)

    async def run() -> None:
        async with watched.running() as task:
            with pytest.raises(ServerEndedError, match="the engine is wedged") as caught:
                await until(lambda: False, task)
            assert caught.value.exit_code == 77, "the unit starts it again after that"

    asyncio.run(run())
    assert len(watched.servers) == 1
    assert (tmp_path / "0" / "incident-1" / "samples.jsonl").exists()


def test_a_first_start_that_fails_is_not_repeated(tmp_path: Path) -> None:
    watched = Watched(tmp_path, (("boot-engine",),))

    async def run() -> None:
        async with watched.running() as task:
            with pytest.raises(ServerError, match="ended while it started"):
                await until(lambda: False, task)

    asyncio.run(run())
    assert len(watched.servers) == 1


def test_systemd_hears_when_tokens_come_and_goes_on_hearing(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.setblocking(False)  # noqa: FBT003
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        watched = Watched(tmp_path)
        heard: list[str] = []

        def hear() -> list[str]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    heard.append(listener.recv(4096).decode())
            return heard

        async def run() -> None:
            async with watched.running() as task:
                await until(lambda: "WATCHDOG=1" in hear() and "STATUS=healthy" in heard, task)

        asyncio.run(run())
    ready = next(number for number, text in enumerate(heard) if text.startswith("READY=1"))
    assert "STATUS=starting" in heard[:ready]
    assert any("EXTEND_TIMEOUT_USEC=180000000" in text for text in heard[:ready]), (
        "a model may be fetched first"
    )
    assert "STATUS=healthy" in heard[ready:]
    assert not any("KEY" in text for text in heard)
