"""Wheels of a service are changed: real environments, each with the simulator in a process of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
from service_kit import canary, vllm_wheel

from sparkwright.base.errors import IncompatibleOptionsError, ServerEndedError, ServerError, UnknownNameError
from sparkwright.base.events import Event, subscribe
from sparkwright.base.machine import free_port
from sparkwright.engine.environment import Sources, prepare
from sparkwright.recipes.recipe import load_recipe
from sparkwright.serve.service.change import Slots, roll_back, upgrade
from sparkwright.serve.service.model import ServiceOptions, ServiceRecord
from sparkwright.store.paths import open_store

PATIENCE_S = 60.0
KEY = "sk-of-the-test"


@dataclass
class Processes:
    """Starts the environment that the link names, as a unit of systemd would."""

    slots: Slots
    port: int = field(default_factory=lambda: free_port("127.0.0.1"))
    child: subprocess.Popen[bytes] | None = None
    starts: list[str] = field(default_factory=list)
    patience_s: float = PATIENCE_S

    def start(self) -> None:
        self.starts.append(self.slots.current)
        argv = [str(self.slots.link / "bin" / "python"), "-m", "vllm.server", "--port", str(self.port)]
        self.child = subprocess.Popen(
            [*argv, "--api-key", KEY],
            env={**os.environ, "SIMULATOR": sys.executable},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + self.patience_s
        while time.monotonic() < end:
            if self.child.poll() is not None:
                raise ServerEndedError("it ended while it started", because=f"status {self.child.returncode}")
            if self.state()[0]:
                return
            time.sleep(0.05)
        raise ServerEndedError("it did not become ready")

    def stop(self) -> None:
        if self.child is not None:
            self.child.send_signal(signal.SIGTERM)
            self.child.wait(PATIENCE_S)

    def state(self) -> tuple[bool, str]:
        failure = canary(f"http://127.0.0.1:{self.port}", KEY, seconds=1.0)
        return not failure, failure


@dataclass
class Service:
    """One service with its environments."""

    folder: Path
    slots: Slots
    manager: Processes
    record: ServiceRecord = field(
        default_factory=lambda: ServiceRecord(ServiceOptions(name="chat", scope="user", recipe="smoke"))
    )
    events: list[Event] = field(default_factory=list)

    def install(self, wheel: Path) -> str:
        """Make the environment of a wheel and return its name."""
        sources = Sources(open_store(self.folder / "store"), folder=self.slots.place(""))
        return prepare(wheel, load_recipe("smoke"), sources, locked=False).python.parents[1].name

    def upgrade(self, version: str, *faults: str, preflight: Any = lambda _: None) -> None:
        built = vllm_wheel(self.folder / "wheels", version, *faults)
        with subscribe(self.events.append):
            name = self.install(built)
            self.record = upgrade(
                self.slots, self.record, name, self.manager, wheel=built.name, preflight=preflight
            )

    def roll_back(self) -> None:
        self.record = roll_back(self.slots, self.record, self.manager)

    @property
    def serves(self) -> str:
        """The version that answers now, by the name of its model; empty if nothing does."""
        url = f"http://127.0.0.1:{self.manager.port}/v1/models"
        with contextlib.suppress(requests.RequestException):
            found = requests.get(url, headers={"Authorization": f"Bearer {KEY}"}, timeout=10)
            return str(found.json()["data"][0]["id"]).removeprefix("vllm-")
        return ""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    slots = Slots(tmp_path / "state")
    made = Service(tmp_path, slots, Processes(slots))
    yield made
    with contextlib.suppress(OSError):
        made.manager.stop()


def test_a_wheel_is_upgraded_and_rolled_back(service: Service) -> None:
    service.upgrade("1.0")
    assert (service.serves, service.record.previous) == ("1.0", "")
    service.upgrade("2.0")
    assert service.serves == "2.0"
    assert service.record.wheels[service.record.previous].startswith("vllm-1.0-")
    service.roll_back()
    assert service.serves == "1.0"
    assert service.slots.current == service.record.current
    service.roll_back()
    assert service.serves == "2.0"


@pytest.mark.parametrize(
    "fault",  # one that does not start is in test_cli_service.py too
    [
        *(pytest.param(fault, marks=pytest.mark.walk) for fault in ("boot-engine", "boot-killed")),
        "dead-engine=0",
    ],
)
def test_the_old_wheel_serves_again_where_the_new_one_does_not_answer(service: Service, fault: str) -> None:
    service.upgrade("1.0")
    before = service.record
    if fault.startswith("dead"):  # it starts and never brings a token
        service.manager.patience_s = 8.0
    with pytest.raises(ServerEndedError, match="the environment before it serves again") as caught:
        service.upgrade("2.0", fault)
    assert "vllm-2.0" in caught.value.what
    assert caught.value.because
    assert service.serves == "1.0"
    assert service.record == before
    assert service.slots.current == before.current
    assert len(service.manager.starts) == 3
    assert [event.kind for event in service.events].count("warning") == 1


def test_a_first_wheel_that_does_not_answer_leaves_nothing_running(service: Service) -> None:
    with pytest.raises(ServerEndedError, match="did not answer") as caught:
        service.upgrade("1.0", "boot-engine")
    assert "no wheel served before" in caught.value.next_step
    assert service.serves == ""


def test_where_both_fail_it_is_said(service: Service) -> None:
    service.upgrade("1.0")
    script = next(
        service.slots.place(service.record.current).glob("lib/python*/site-packages/vllm/server.py")
    )
    script.write_text("raise SystemExit(3)")
    with pytest.raises(ServerEndedError, match="did not answer either") as caught:
        service.upgrade("2.0", "boot-engine")
    assert "then:" in caught.value.because


def test_a_refused_wheel_and_one_that_cannot_be_installed_change_nothing(service: Service) -> None:
    service.upgrade("1.0")

    def refuse(python: Path) -> None:
        assert python.exists()
        raise IncompatibleOptionsError("the recipe does not fit")

    with pytest.raises(IncompatibleOptionsError):
        service.upgrade("2.0", preflight=refuse)
    broken = service.folder / "vllm-3.0-py3-none-any.whl"
    broken.write_bytes(b"no wheel")
    with pytest.raises(ServerError, match="no environment could be made"):
        service.install(broken)
    assert len(service.manager.starts) == 1  # it served all the time
    assert service.serves == "1.0"


def test_the_same_wheel_again_interrupts_nothing(service: Service) -> None:
    service.upgrade("1.0")
    service.upgrade("1.0")
    assert len(service.manager.starts) == 1


def test_there_is_nothing_before_the_first(service: Service) -> None:
    service.upgrade("1.0")
    with pytest.raises(UnknownNameError, match="nothing to go back to"):
        service.roll_back()
