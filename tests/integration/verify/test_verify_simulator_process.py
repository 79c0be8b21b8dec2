"""The simulator as a process of its own: how it starts, how it ends, and what becomes of its engine."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparkwright.verify.simulator.main import main

PATIENCE_S = 60.0


@dataclass
class Server:
    """A simulator that was started."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    @property
    def ready(self) -> dict[str, Any]:
        """Its report that it listens."""
        path, until = self.folder / "ready.json", time.monotonic() + PATIENCE_S
        while not path.exists():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < until, self.log
            time.sleep(0.05)
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    @property
    def engine(self) -> psutil.Process:
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def ends(self) -> int:
        return self.process.wait(PATIENCE_S)

    def ask(self, max_tokens: int = 20) -> str:
        """Events of a whole stream."""
        data = json.dumps({"prompt": "Hello", "max_tokens": max_tokens, "stream": True, "ignore_eos": True})
        url = f"{self.ready['url']}/v1/completions"
        with urllib.request.urlopen(url, data.encode(), timeout=PATIENCE_S) as response:  # noqa: S310
            return response.read().decode()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[subprocess.Popen[bytes]] = []

    def run(*arguments: str) -> Server:
        files = [
            f"--{name}={tmp_path / file}" for name, file in (("ready-file", "ready.json"), ("log", "log"))
        ]
        command = [
            sys.executable,
            "-m",
            "sparkwright.verify.simulator.main",
            *files,
            "--speed=20",
            *arguments,
        ]
        process = subprocess.Popen(command, start_new_session=True)
        started.append(process)
        return Server(process, tmp_path)

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)


def gone(process: psutil.Process) -> bool:
    """Whether *process* ends, in time."""
    return not psutil.wait_procs([process], timeout=PATIENCE_S)[1]


def test_it_says_where_it_listens_and_ends_when_told(start: Any) -> None:
    server = start("--model=some/model")
    assert server.ready["pid"] == server.process.pid
    assert server.ready["model"] == "some/model"
    assert server.ask().rstrip().endswith("data: [DONE]")
    engine = server.engine
    assert os.getpgid(engine.pid) == server.process.pid
    server.process.terminate()
    assert server.ends() == 0
    assert gone(engine)
    assert "Shutting down" in server.log
    assert "ERROR" not in server.log


def test_an_engine_that_is_killed_takes_the_server_with_it(start: Any) -> None:
    server = start()
    assert server.ready
    server.engine.kill()
    assert server.ends() == 1
    assert "EngineCore died unexpectedly (status -9)" in server.log
    assert "EngineDeadError" in server.log


def test_an_engine_ends_with_its_server(start: Any) -> None:
    server = start()
    assert server.ready
    engine = server.engine
    server.process.kill()
    assert server.ends() == -signal.SIGKILL
    assert gone(engine)


def test_an_orphan_stays(start: Any) -> None:
    server = start("--fault=orphan")
    assert server.ready
    engine = server.engine
    os.killpg(server.process.pid, signal.SIGTERM)
    assert server.ends() == 0
    time.sleep(0.5)
    assert engine.is_running()
    assert engine.status() != psutil.STATUS_ZOMBIE
    engine.kill()


@pytest.mark.parametrize("argument", ["--fault=inrt", "--fault=inert=1", "--step-ms=fast", "--kv-dtype=fp9"])
def test_the_command_refuses_what_it_does_not_know(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([argument]) > 0
    assert capsys.readouterr().err
