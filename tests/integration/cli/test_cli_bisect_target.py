"""``sparkwright bisect`` with servers over a real ssh, and rehearsed: the simulator is served."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bisect_kit import commit, harmless
from rehearsal_kit import stage
from ssh_kit import Sshd, fault_file, running_sshd, served_release, torch_wheel, write_recipe
from test_cli_bisect import culprits
from world import World, wait_until

from sparkwright.base.errors import BisectionError, ConfigError, TargetError

if TYPE_CHECKING:
    from collections.abc import Iterator

MACHINE = platform.machine()
METRIC = "metric decode-tok-s@1 --worse-by 5%"
TIMED = {"speed": 4, "requests": 3, "tokens": 24}


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    with running_sshd(tmp_path / "sshd") as running:
        yield running


@pytest.fixture
def reachable(world: World, sshd: Sshd) -> World:
    """A world without carries whose releases can be served on a target."""
    world.environment["PATH"] = sshd.path
    sshd.install(world.index.url)
    world.index.add(*torch_wheel())
    world.list_carries([])
    shutil.rmtree(world.root / "carries")
    world.pin(served_release())
    harmless(world, 0)
    commit(world, "good")
    return world


def plant(world: World, fault: str, *, alone: bool = False) -> None:
    """Commit a carry that gives the server *fault*, between two harmless ones unless it is *alone*."""
    if not alone:
        harmless(world, 1)
    world.carry("culprit", dict(fault_file(fault)))
    if not alone:
        harmless(world, 2)
    commit(world, "bad")


def words(world: World, sshd: Sshd, judge: str = "verify coherence", **recipe) -> tuple[str, ...]:
    path = write_recipe(world.folder / "recipe.toml", **recipe)
    return (
        "bisect", "--good=HEAD~1", "--bad=HEAD", "--judge", judge, f"--target={sshd.address}",
        f"--recipe={path}", f"--platform={MACHINE}", "--deterministic", "--json",
    )  # fmt: skip


@pytest.mark.slow
def test_a_carry_is_named_by_what_is_served_on_the_target(reachable: World, sshd: Sshd) -> None:
    plant(reachable, "repeated-token")
    ran = reachable.good(*words(reachable, sshd))
    assert culprits(ran) == ["culprit:added"]
    assert ran.json["calibration"]["signature"].startswith("coherence: ")
    for step in ran.json["steps"]:
        kept = json.loads(Path(step["evaluation"]["evidence"]).read_text())
        assert kept["started"]
    again = reachable.good(*words(reachable, sshd))
    assert again.json["steps"] == ran.json["steps"], "and nothing is judged twice"


@pytest.mark.slow
@pytest.mark.parametrize("end", [pytest.param(signal.SIGINT, marks=pytest.mark.walk), signal.SIGKILL])
def test_a_stopped_search_leaves_nothing_there_and_goes_on(reachable: World, sshd: Sshd, end) -> None:
    plant(reachable, "repeated-token", alone=True)
    child = reachable.start(*words(reachable, sshd))
    (journal,) = wait_until(
        lambda: list((reachable.root / ".sparkwright" / "bisect").glob("*/journal.jsonl")), patience_s=60
    )
    wait_until(lambda: b'"evaluation"' in journal.read_bytes() and _serving(sshd), patience_s=120)
    before = journal.read_text()
    os.killpg(child.pid, end)
    child.communicate(timeout=60)
    assert child.returncode == (130 if end is signal.SIGINT else -end)
    wait_until(lambda: not sshd.processes(), patience_s=60)
    ran = reachable.good(*words(reachable, sshd))
    assert culprits(ran) == ["culprit:added"]
    assert journal.read_text().startswith(before)


def _serving(sshd: Sshd) -> bool:
    return bool(sshd.serving())


def test_an_unreachable_target_stops_the_search_without_a_verdict(
    reachable: World, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkwright.search.engine.time.sleep", lambda _: None)
    plant(reachable, "repeated-token")
    sshd.process.kill()
    sshd.process.wait()
    ran = reachable.call(*words(reachable, sshd))
    assert ran.status == TargetError.exit_code
    (state,) = reachable.good("bisect", "status", "--json").json
    assert (state["evaluations"], state["refused"], len(state["stopped"])) == (0, "", 1)


@pytest.mark.slow
def test_a_slowdown_of_5_percent_is_named(reachable: World, sshd: Sshd) -> None:
    plant(reachable, "slow=1.08", alone=True)
    ran = reachable.good(*words(reachable, sshd, METRIC, **TIMED))
    assert culprits(ran) == ["culprit:added"]
    values = [step["evaluation"]["value"] for step in ran.json["steps"] if step["verdict"] == "bad"]
    assert values
    assert all(0.88 < value < 0.97 for value in values)


@pytest.mark.walk  # as of measured values, in test_search_metric.py and test_search_planted.py
def test_a_healthy_pair_names_no_culprit(reachable: World, sshd: Sshd) -> None:
    plant(reachable, "slow=1", alone=True)
    ran = reachable.call(*words(reachable, sshd, METRIC, **TIMED))
    assert ran.status == BisectionError.exit_code


@pytest.mark.walk
@pytest.mark.slow
def test_a_figure_of_a_rehearsal_is_compared(world: World) -> None:
    world.list_carries([])
    shutil.rmtree(world.root / "carries")
    stage(world)
    harmless(world, 0)
    commit(world, "good")
    plant(world, "slow=4")
    ran = world.call(
        "bisect", "--good=HEAD~1", "--bad=HEAD", "--judge", "metric tpot-ms@1 --worse-by 50%",
        "--try=culprit:added", "--json",
    )  # fmt: skip
    assert (ran.status, ran.json["verdict"]) == (1, "bad"), ran.said
    assert ran.json["value"] > 1.5


@pytest.mark.parametrize(
    "more",
    [
        ("--judge=probe probe.py", "--target=local"),
        ("--judge=run true", "--target=local"),
        ("--judge=metric x --worse-by 5% -- true", "--target=local"),
        ("--judge=verify parity", "--target=local"),
        ("--judge=verify nonsense", "--target=local"),
        ("--judge=verify coherence", "--target=-oProxyCommand=x"),
        ("--judge=verify coherence", "--target=local", "--jobs=2"),
        ("--judge=verify coherence", "--recipe=smoke"),
        ("--judge=metric decode-tok-s@1 --worse-by 5%", "--jobs=2"),
        ("--judge=metric decode-tok-s@1 --worse-by 5% --lower-is-better",),
        ("--judge=metric decode-tok-s@1 --worse-by 100%",),
    ],
)
def test_what_cannot_be_judged_is_refused(world: World, more: tuple[str, ...]) -> None:
    shutil.rmtree(world.root / "carries")
    world.list_carries([])
    commit(world, "good")
    harmless(world, 0)
    ran = world.call("bisect", "--good=HEAD", "--bad=.", "--json", *more)
    assert ran.status == ConfigError.exit_code, ran.said
