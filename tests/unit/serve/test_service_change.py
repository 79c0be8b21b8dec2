"""Wheels of a service are changed, by a unit of the test's own; test_cli_service.py has real environments."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kit import Recorder

from sparkwright.base.errors import IncompatibleOptionsError, ServerEndedError, UnknownNameError
from sparkwright.serve.service.change import Slots, roll_back, upgrade
from sparkwright.serve.service.model import ServiceOptions, ServiceRecord


@dataclass
class Unit:
    """Starts whatever the link names, but for *broken* environments."""

    slots: Slots
    broken: set[str] = field(default_factory=set)
    serves: str = ""
    starts: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.starts.append(self.slots.current)
        if self.slots.current in self.broken:
            raise ServerEndedError("it did not become ready", because=f"{self.slots.current} is broken")
        self.serves = self.slots.current

    def stop(self) -> None:
        self.serves = ""

    def state(self) -> tuple[bool, str]:
        return bool(self.serves), ""


@dataclass
class Service:
    """One service with environments that have an interpreter and nothing else."""

    slots: Slots
    unit: Unit
    record: ServiceRecord = field(
        default_factory=lambda: ServiceRecord(ServiceOptions(name="chat", scope="user", recipe="smoke"))
    )

    def upgrade(self, name: str, *, refuses: bool = False) -> None:
        self.slots.python(name).parent.mkdir(parents=True, exist_ok=True)
        self.slots.python(name).touch()

        def preflight(python: Path) -> None:
            assert python == self.slots.python(name)
            if refuses:
                raise IncompatibleOptionsError("the recipe does not fit")

        self.record = upgrade(
            self.slots, self.record, name, self.unit, wheel=f"vllm-{name}.whl", preflight=preflight
        )

    def roll_back(self) -> None:
        self.record = roll_back(self.slots, self.record, self.unit)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    slots = Slots(tmp_path)
    return Service(slots, Unit(slots))


def test_a_wheel_is_upgraded_and_rolled_back(service: Service) -> None:
    service.upgrade("one")
    assert (service.unit.serves, service.record.previous) == ("one", "")
    service.upgrade("two")
    assert (service.unit.serves, service.record.current, service.record.previous) == ("two", "two", "one")
    assert service.record.wheels == {"one": "vllm-one.whl", "two": "vllm-two.whl"}
    service.upgrade("three")
    assert set(service.record.wheels) == {"two", "three"}
    service.roll_back()
    assert service.unit.serves == service.slots.current == service.record.current == "two"
    service.roll_back()
    assert service.unit.serves == "three"


def test_the_old_wheel_serves_again_where_the_new_one_does_not_start(
    service: Service, heard: Recorder
) -> None:
    service.upgrade("one")
    before = service.record
    service.unit.broken = {"two"}
    with pytest.raises(ServerEndedError, match="the environment before it serves again") as caught:
        service.upgrade("two")
    assert ("vllm-two" in caught.value.what, "two is broken" in caught.value.because) == (True, True)
    assert (service.unit.serves, service.slots.current, service.record) == ("one", "one", before)
    assert service.unit.starts == ["one", "two", "one"]
    assert len(heard.warnings) == 1


def test_a_previous_wheel_that_does_not_start_leaves_the_present_one(service: Service) -> None:
    service.upgrade("one")
    service.upgrade("two")
    service.unit.broken = {"one"}
    with pytest.raises(ServerEndedError, match="the environment before it serves"):
        service.roll_back()
    assert service.unit.serves == service.record.current == "two"


def test_a_first_wheel_that_does_not_start_leaves_nothing_running(service: Service) -> None:
    service.unit.broken = {"one"}
    with pytest.raises(ServerEndedError, match="did not answer") as caught:
        service.upgrade("one")
    assert "no wheel served before" in caught.value.next_step
    assert service.unit.serves == ""


def test_where_both_fail_it_is_said(service: Service) -> None:
    service.upgrade("one")
    service.unit.broken = {"one", "two"}
    with pytest.raises(ServerEndedError, match="did not answer either") as caught:
        service.upgrade("two")
    assert "two is broken; then: " in caught.value.because


def test_a_refused_wheel_and_the_same_one_again_interrupt_nothing(service: Service) -> None:
    service.upgrade("one")
    service.upgrade("one")
    with pytest.raises(IncompatibleOptionsError):
        service.upgrade("two", refuses=True)
    assert service.unit.starts == ["one"]
    service.unit.stop()
    service.upgrade("one")
    assert service.unit.starts == ["one", "one"], "it did not serve"


def test_there_is_nothing_before_the_first(service: Service) -> None:
    service.upgrade("one")
    with pytest.raises(UnknownNameError, match="nothing to go back to"):
        service.roll_back()
