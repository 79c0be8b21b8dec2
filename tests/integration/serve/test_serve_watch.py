"""Engines in processes of their own are watched: wedged ones are named, healthy ones are left alone."""

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

from sparkwright.base.errors import ServerEndedError
from sparkwright.base.events import Event, subscribe
from sparkwright.engine.client.endpoint import open_session
from sparkwright.engine.metrics import scrape
from sparkwright.engine.server.launch import start_server
from sparkwright.engine.server.lifecycle import ServerProcess
from sparkwright.serve import engine
from sparkwright.serve.engine import ServedEngine
from sparkwright.serve.supervise import WatchOptions, pulsing, watch
from sparkwright.serve.watchdog import WatchLimits

SPEED = 20.0
PATIENCE_S = 240.0
OPTIONS = WatchOptions(
    WatchLimits(stall_s=60.0, warm_s=60.0, young_s=0.0), interval_s=5.0, canary_s=10.0, speed=SPEED
)


@dataclass
class Watched:
    """A simulated server, and what the watch says of it."""

    server: ServerProcess
    task: asyncio.Task[None]
    events: list[Event] = field(default_factory=list)

    def heard(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.kind == kind]

    def verdicts(self) -> list[str]:
        return [str(data["verdict"]) for data in self.heard("serve.watch")]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                if self.task.done():
                    await self.task
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def watched(folder: Path, *faults: str) -> AsyncIterator[Watched]:
    """Watch a server with *faults* in the background; afterwards none of its processes runs."""
    argv = [sys.executable, "-m", "sparkwright.verify.simulator.main", "--port", "{port}"]
    argv += ["--speed", str(SPEED), "--boot-seconds", "1"]
    argv += [part for name in faults for part in ("--fault", name)]
    server = start_server(argv, folder=folder, speed=SPEED, end_s=3.0, boot_s=3600.0)
    events: list[Event] = []
    with subscribe(events.append):
        async with server, open_session(server.endpoint) as session:
            pid = server.pid
            task = asyncio.create_task(watch(ServedEngine(server, session), OPTIONS))
            try:
                yield Watched(server, task, events)
            finally:
                task.cancel()
                await asyncio.wait({task})
    with contextlib.suppress(psutil.Error):
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_wedged_engine_is_named_with_its_evidence_kept(tmp_path: Path) -> None:
    async def run() -> Watched:
        async with watched(tmp_path, "dead-engine=3") as this:
            with pytest.raises(ServerEndedError, match="the engine is wedged") as caught:
                await this.until(lambda: False)
            assert caught.value.exit_code == 77, "by which the unit starts it again"
            assert "incident-1" in caught.value.next_step
            return this

    this = asyncio.run(run())
    assert this.verdicts()[0] == "healthy"
    (incident,) = this.heard("serve.incident")
    assert incident["verdict"] == "wedged"
    place = tmp_path / "incident-1"
    assert "canaries got no token" in json.loads((place / "incident.json").read_text())["reason"]
    samples = [json.loads(line) for line in (place / "samples.jsonl").read_text().splitlines()]
    assert samples[0]["canaries_good"] == 0
    assert samples[-1]["canaries_good"] == 2  # its boot took the first
    assert len(json.loads((place / "processes.json").read_text())) >= 2
    assert "Application startup complete" in (place / "log-tail.txt").read_text()
    assert "vllm:generation_tokens" in (place / "metrics.txt").read_text()


def test_a_healthy_engine_under_load_is_left_alone(tmp_path: Path) -> None:
    import aiohttp

    body = {"prompt": "sort " * 20_000, "max_tokens": 200, "ignore_eos": True}

    async def run() -> Watched:
        async with watched(tmp_path) as this, aiohttp.ClientSession() as session:
            await this.until(this.verdicts)
            url = f"{this.server.url}/v1/completions"
            posts = [
                asyncio.create_task(
                    session.post(url, json={**body, "model": this.server.model, "seed": number})
                )
                for number in range(6)
            ]
            responses = await asyncio.gather(*posts)
            assert [response.status for response in responses] == [200] * 6
            assert not this.task.done()
            return this

    this = asyncio.run(run())
    assert not this.heard("serve.incident")
    assert this.verdicts() == ["healthy"]


def test_a_stopped_server_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((engine, "_ANSWER_S"), (scrape, "_DEADLINE_S")):
        monkeypatch.setattr(module, name, 1.0)

    async def run() -> None:
        async with watched(tmp_path) as this:
            await this.until(this.verdicts)
            for process in psutil.Process(this.server.pid).children(recursive=True):
                os.kill(process.pid, signal.SIGSTOP)
            with pytest.raises(ServerEndedError, match="the engine is wedged"):
                await this.until(lambda: False)

    asyncio.run(run())
    states = {one["state"] for one in json.loads((tmp_path / "incident-1/processes.json").read_text())}
    assert "stopped" in states


def test_systemd_hears_when_tokens_come_and_goes_on_hearing(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "notify"
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.setblocking(False)  # noqa: FBT003
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))

        def hear() -> list[str]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    heard.append(listener.recv(4096).decode())
            return heard

        async def run() -> None:
            async with pulsing("starting"):
                await asyncio.sleep(0.1)
            assert "STATUS=starting" in hear()
            assert any("EXTEND_TIMEOUT_USEC=180000000" in text for text in heard), "a model may be fetched"
            assert not any(text.startswith("READY=1") for text in heard)
            async with watched(tmp_path / "server") as this:
                await this.until(lambda: "WATCHDOG=1" in hear() and "STATUS=healthy" in heard)

        asyncio.run(run())
    ready = next(number for number, text in enumerate(heard) if text.startswith("READY=1"))
    assert "STATUS=healthy" in heard[ready:]
    assert not any("KEY" in text for text in heard)
