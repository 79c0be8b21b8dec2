"""``sparkwright bisect`` with wheels that are served here and over a real ssh, and rehearsed."""

import json
import os
import platform
import shutil
from pathlib import Path

import pytest
from bisect_kit import commit, harmless
from cluster_kit import Host, card
from ssh_kit import fault_file, served_release, torch_wheel, write_recipe
from test_cli_bisect import culprits
from world import World

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import BisectionError, ClusterError, ConfigError, ServerError

pytest_plugins = "cluster_fixtures"
MACHINE = platform.machine()


@pytest.fixture
def reachable(world: World, request: pytest.FixtureRequest) -> World:
    """A world without carries whose releases can be served, at a speed that a test may set."""
    world.environment["UV_DEFAULT_INDEX"] = world.index.url
    torch, data = torch_wheel()
    world.index.add(torch, data)
    world.list_carries([])
    shutil.rmtree(world.root / "carries")
    world.pin(served_release(speed=getattr(request, "param", 60)))
    locked = f"torch=={torch.split('-')[1]} --hash=sha256:{sha256_bytes(data)}\n"
    (world.root / "patchsets" / f"1.2-{MACHINE}.requirements.txt").write_text(locked)
    harmless(world, 0)
    commit(world, "good")
    return world


@pytest.fixture
def host(reachable: World, url: str, hosts: list[Host]) -> Host:
    """A machine with a GB10, which shares a store with the world."""
    card(hosts[0], "12.1")
    hosts[0].install(extra=f"os.environ['UV_DEFAULT_INDEX'] = {reachable.index.url!r}")
    reachable.environment |= {"PATH": os.environ["PATH"], "SPARKWRIGHT_STORE_URL": url}
    return hosts[0]


def plant(world: World, fault: str, *, alone: bool = False) -> None:
    """Commit a carry that gives the server *fault*, between two harmless ones unless it is *alone*."""
    if not alone:
        harmless(world, 1)
    world.carry("culprit", dict(fault_file(fault)))
    if not alone:
        harmless(world, 2)
    commit(world, "bad")


def words(world: World, judge: str = "verify coherence", host: Host | None = None) -> tuple[str, ...]:
    path = write_recipe(world.folder / "recipe.toml")
    return (
        "bisect", "HEAD~1", "HEAD", "--judge", judge, f"--recipe={path}",
        f"--platform={MACHINE}", "--deterministic", "--json",
        *([] if host is None else [f"--cluster=ssh://{host.sshd.host}"]),
    )  # fmt: skip


@pytest.mark.slow
def test_a_carry_is_named_by_what_is_served_here(reachable: World) -> None:
    plant(reachable, "repeated-token", alone=True)  # test_cli_bisect.py has the search among many
    ran = reachable.good(*words(reachable))
    assert culprits(ran) == ["culprit:added"]
    assert ran.json["calibration"]["signature"].startswith("coherence: ")
    for step in ran.json["steps"]:
        kept = json.loads(Path(step["evaluation"]["evidence"]).read_text())
        assert kept["started"]
    again = reachable.good(*words(reachable))
    assert again.json["steps"] == ran.json["steps"], "and nothing is judged twice"


@pytest.mark.slow
def test_a_carry_is_named_by_what_is_served_on_another_machine(reachable: World, host: Host) -> None:
    plant(reachable, "repeated-token", alone=True)
    ran = reachable.good(*words(reachable, host=host))
    assert culprits(ran) == ["culprit:added"]
    served = [event for event in reachable.events() if event["kind"] == "step.finished"]
    assert {event["machine"] for event in served} == {f"127.0.0.1:{host.sshd.port}"}
    assert "--cluster=ssh://" in ran.json["check"][0]
    assert not host.workers()


def test_a_machine_that_is_gone_stops_the_search_without_a_verdict(reachable: World) -> None:
    plant(reachable, "repeated-token")
    ran = reachable.call(*words(reachable), "--cluster=ssh://127.0.0.1:1")
    assert ran.status == ClusterError.exit_code
    assert "cannot be reached" in ran.said


def test_a_wheel_that_cannot_be_served_is_untestable(reachable: World) -> None:
    """Its server does not start, and what is judged is not the start."""
    plant(reachable, "does-not-start", alone=True)
    ran = reachable.call(*words(reachable), "--try=culprit:added")
    assert (ran.status, ran.json["verdict"]) == (125, "untestable")
    ran = reachable.call(*words(reachable, "verify boot"), "--try=culprit:added")
    assert (ran.status, ran.json["verdict"]) == (1, "bad")
    assert "gone_#" in ran.json["signature"]


def test_a_wheel_whose_packages_no_index_has_is_untestable_and_one_without_an_index_stops(
    reachable: World,
) -> None:
    plant(reachable, "repeated-token", alone=True)
    runtime = reachable.root / "patchsets" / f"1.2-{MACHINE}.requirements.txt"
    runtime.write_text(f"{runtime.read_text()}absent==1 --hash=sha256:{sha256_bytes(b'')}\n")
    ran = reachable.call(*words(reachable), "--try=culprit:added")
    assert (ran.status, ran.json["verdict"]) == (125, "untestable")
    assert "absent" in ran.json["detail"]
    reachable.environment |= {"UV_DEFAULT_INDEX": "http://127.0.0.1:9", "UV_HTTP_RETRIES": "0"}
    ran = reachable.call(*words(reachable), "--try=culprit:added")
    assert (ran.status, ran.json["error"]["kind"]) == (ServerError.exit_code, "ServerError"), ran.said


@pytest.mark.slow
@pytest.mark.parametrize("reachable", [600], indirect=True)
def test_a_carry_that_slows_each_step_is_named_by_a_metric(reachable: World) -> None:
    plant(reachable, "slow", alone=True)
    ran = reachable.good(*words(reachable, "metric decode-tok-s@1 --worse-by 5%"))
    assert culprits(ran) == ["culprit:added"]
    assert ran.json["calibration"]["signature"].startswith("metric decode-tok-s@")
    harmless(reachable, 1)
    commit(reachable, "as slow as before")
    ran = reachable.call(*words(reachable, "metric decode-tok-s@1 --worse-by 5%"))
    assert (ran.status, ran.json["error"]["kind"]) == (BisectionError.exit_code, "BisectionError"), ran.said
    assert "is not bad" in ran.json["error"]["what"]


@pytest.mark.parametrize(
    "more",
    [
        ("--judge=probe probe.py", "--recipe=smoke"),
        ("--judge=run true", "--recipe=smoke"),
        ("--judge=metric x --worse-by 5% -- true", "--recipe=smoke"),
        ("--judge=verify parity", "--recipe=smoke"),
        ("--judge=verify nonsense", "--recipe=smoke"),
        ("--judge=verify coherence", "--recipe=smoke", "--cluster=-oProxyCommand=x"),
        ("--judge=verify coherence", "--cluster=ssh://one"),
        ("--judge=run true", "--cluster=ssh://one"),
        ("--judge=metric decode-tok-s@1 --worse-by 5%", "--recipe=smoke", "--cluster=ssh://one,two"),
        ("--judge=metric decode-tok-s@1 --worse-by 5%",),
        ("--judge=metric decode-tok-s@1 --worse-by 100%", "--recipe=smoke"),
    ],
)
def test_what_cannot_be_judged_is_refused(world: World, more: tuple[str, ...]) -> None:
    shutil.rmtree(world.root / "carries")
    world.list_carries([])
    commit(world, "good")
    harmless(world, 0)
    ran = world.call("bisect", "HEAD", ".", "--json", *more)
    assert ran.status == ConfigError.exit_code, ran.said
