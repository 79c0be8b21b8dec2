"""``sparkwright service`` under a real systemd: started, killed, wedged, changed, booted again, and removed.

The engine is the simulator. What systemd does is real: notification, watchdog, credentials, sandbox, journal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from nspawn_kit import Container
from systemd_kit import NAME, PATIENCE_S, UNIT, Offers, Service, write_recipe
from world import wait_until

RUN_AS = "sparkwright"


@pytest.fixture(scope="module")
def offers(shared: Path) -> Offers:
    made = Offers(shared)
    made.offer("1.0+spark.1")
    return made


@pytest.fixture(scope="module")
def recipe(shared: Path) -> Path:
    return write_recipe(shared)


@pytest.fixture(scope="module", params=["", "ada"], ids=["system", "user"])
def installed(
    request: pytest.FixtureRequest, container: Container, offers: Offers, recipe: Path
) -> Iterator[Service]:
    """A service of the system, then one of a user who lingers."""
    service = Service(container, user=request.param)
    if service.user:
        container.run("useradd", "--create-home", service.user, check=True)
        container.run("loginctl", "enable-linger", service.user, check=True)
        wait_until(lambda: service.systemctl("is-system-running") == "running")
    offers.pin(service)
    done = service.install(recipe, "--channel", offers.place)
    assert done.returncode == 0, done.stderr + service.journal()
    yield service
    service.sparkwright("service", "uninstall", NAME, "--purge")


@pytest.fixture
def service(installed: Service) -> Service:
    installed.wait_for_answer()
    return installed


def test_it_is_ready_once_it_answers_and_its_key_is_nowhere(service: Service) -> None:
    assert service.shows("ActiveState") == "active"
    assert service.shows("StatusText") in {"healthy", "serving"}
    assert service.get("/v1/models", key="") == 401
    assert service.status["serves"]
    assert "ready    http://" in service.journal()
    assert "warning" not in service.journal()
    everything = service.container.run("journalctl", "--no-pager").stdout
    everything += service.container.run("ps", "-eww", "-o", "args").stdout
    everything += service.systemctl("show", UNIT)
    assert "sparkwright serve" in everything
    assert service.key not in everything
    assert not [
        path for path in service.logs("**/*") if path.is_file() and service.key in path.read_text("latin1")
    ]


def test_what_root_runs_is_not_the_service_s_to_change(service: Service) -> None:
    if service.user:
        pytest.skip("all of it is the user's")
    assert service.shows("User") == RUN_AS
    owned = service.container.run("find", "/", "-xdev", "-user", RUN_AS, "-not", "-path", "/proc/*").stdout
    below = ("store", "huggingface")
    place = f"/var/lib/sparkwright/services/{NAME}"
    others = [
        path for path in owned.split() if not path.startswith(tuple(f"{place}/{name}" for name in below))
    ]
    assert [path for path in others if not path.startswith(("/tmp", "/var/tmp", "/run"))] == []
    assert f"{place}/store/bytecode" in owned, "modules are not compiled at each start"


def test_a_killed_engine_is_started_again_by_systemd(service: Service) -> None:
    service.change("RestartSec=1s")
    service.wait_for_answer()
    for number in (1, 2):
        service.signal("KILL", "child.py")
        wait_until(lambda number=number: service.shows("NRestarts") == str(number), patience_s=PATIENCE_S)
        service.wait_for_answer()
        wait_until(lambda: service.shows("ActiveState") == "active", patience_s=PATIENCE_S)
    assert len(service.logs("incident-1/incident.json")) >= 2
    service.change()


def test_a_stopped_engine_is_found_and_replaced_with_evidence(service: Service) -> None:
    service.change("RestartSec=1s", words="--stall-seconds 10")
    service.wait_for_answer()
    known = set(service.logs("incident-1"))
    service.signal("STOP", "vllm.entrypoints")
    service.wait_for_journal("wedged")
    wait_until(lambda: service.shows("NRestarts") == "1" and service.chat(), patience_s=PATIENCE_S)
    (place,) = set(service.logs("incident-1")) - known
    assert "stopped" in {one["state"] for one in json.loads((place / "processes.json").read_text())}
    assert len((place / "samples.jsonl").read_text().splitlines()) > 1


def test_a_watchdog_that_hangs_is_ended_by_systemd(service: Service) -> None:
    service.change("WatchdogSec=20s", "TimeoutAbortSec=2s", "RestartSec=1s")
    service.wait_for_answer()
    first = service.shows("MainPID")
    service.container.run("kill", "-STOP", first, check=True)
    wait_until(lambda: service.shows("NRestarts") == "1", patience_s=PATIENCE_S)
    service.wait_for_answer()
    assert service.shows("MainPID") != first
    assert "Watchdog timeout" in service.journal()


def test_what_another_start_does_not_cure_is_not_tried_again(service: Service) -> None:
    service.change("RestartSec=1s", words="--set gpu-memory-utilization=0.99")
    assert (service.shows("ActiveState"), service.shows("ExecMainStatus")) == ("failed", "76")
    assert (service.shows("NRestarts"), service.processes()) == ("0", {})
    assert "[host-reserve]" in service.journal()
    service.change()


def test_a_wheel_that_does_not_answer_is_replaced_by_the_one_before(service: Service, offers: Offers) -> None:
    first = service.status["wheel"]
    broken = offers.offer(_next(first), "boot-engine")
    done = service.sparkwright("service", "upgrade", NAME)
    assert done.returncode == 77, done.stderr
    assert "the environment before it serves again" in done.stderr
    assert (service.status["wheel"], bool(service.chat())) == (first, True)
    better = offers.offer(_next(broken))
    done = service.sparkwright("service", "upgrade", NAME)
    assert done.returncode == 0, done.stderr
    assert (service.status["wheel"], service.status["previous"], bool(service.chat())) == (
        better,
        first,
        True,
    )
    done = service.sparkwright("service", "upgrade", "--previous", NAME)
    assert done.returncode == 0, done.stderr
    assert (service.status["wheel"], bool(service.chat())) == (first, True)


def _next(wheel: str) -> str:
    version = wheel.split("-")[1]
    return f"1.0+spark.{int(version.rpartition('.')[2]) + 1}"


def test_a_log_that_has_grown_is_cut(service: Service) -> None:
    log = service.logs("server.log")[-1]
    with log.open("r+b") as stream:
        stream.truncate(65 << 20)
    wait_until(lambda: log.with_name("server.log.1").exists() and log.stat().st_size < 1 << 20)
    assert service.chat()
    assert log.with_name("server.log.1").stat().st_size >= 65 << 20


def test_it_is_back_after_a_boot(service: Service) -> None:
    boots = service.container.run("journalctl", "--list-boots", "--no-pager").stdout.count("\n")
    service.container.power_off()
    assert service.get("/health") == 0
    service.container.boot()
    service.wait_for_answer()
    assert service.container.run("journalctl", "--list-boots", "--no-pager").stdout.count("\n") > boots
    wait_until(lambda: service.status["serves"])  # once it is warm


def test_stopped_it_leaves_no_process(service: Service) -> None:
    assert len(service.processes()) >= 4
    service.systemctl("stop", UNIT)
    assert service.shows("Result") == "success"
    assert "no process is left" in service.journal()
    left = service.container.run("ps", "-eww", "-o", "args").stdout
    assert "sparkwright" not in left.replace("sparkwright-", "")
    service.systemctl("start", UNIT)


def test_a_recipe_that_is_refused_is_not_started_at_boot(
    service: Service, recipe: Path, offers: Offers
) -> None:
    words = ("--set", "gpu-memory-utilization=0.99", "--name", "other")
    done = service.install(recipe, *words, "--channel", offers.place)
    assert done.returncode == 76, done.stderr
    assert service.systemctl("is-enabled", UNIT) == "enabled"
    assert service.systemctl("is-enabled", "sparkwright-other.service") == "disabled"


def test_removed_it_is_gone(service: Service) -> None:
    done = service.sparkwright("service", "uninstall", NAME, "--purge")
    assert done.returncode == 0, done.stderr
    assert service.shows("LoadState") == "not-found"
    assert service.get("/health", key="") == 0
    assert not service.state.exists()
