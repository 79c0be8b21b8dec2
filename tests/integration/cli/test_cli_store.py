"""``store status``, ``verify`` and ``prune`` through the command line, and builds that go on meanwhile."""

import os
import time
from pathlib import Path

import pytest
from world import World, wait_until

from sparkwright.store.disk import oldest_run, remove_tree
from sparkwright.store.upkeep import survey

DAY = 86400.0


def age(paths: list[Path], days: float) -> None:
    moment = time.time() - days * DAY
    for path in paths:
        os.utime(path, (moment, moment))


class TestList:
    def test_every_kind_with_what_it_takes(self, world: World) -> None:
        world.good("wheel")
        report = world.good("store", "status", "--json").json
        kinds = {kind["kind"]: kind for kind in report["kinds"]}
        assert {"files", "trees", "environments", "records", "git", "logs"} <= kinds.keys()
        assert kinds["files"]["size"] >= world.wheels[0].stat().st_size
        assert kinds["files"]["used"].startswith("20")
        ran = world.good("store", "status")
        for name, kind in kinds.items():
            if name not in {"logs", "records"}:  # which every command adds to
                assert f"{name} " in ran.out
                assert f" {kind['count']} " in ran.out
        assert str(world.store.home) in ran.out


class TestPrune:
    def test_it_wants_to_be_told_what(self, world: World) -> None:
        ran = world.call("store", "prune")
        assert ran.status == 2
        assert "--older-than" in ran.err
        assert world.call("store", "prune", "--older-than", "-1").status == 2

    def test_what_went_comes_back_when_it_is_needed(self, world: World) -> None:
        world.good("wheel")
        before = world.wheels[0].read_bytes()
        dry = world.good("store", "prune", "--keep-size", "0", "--dry-run", "--json").json
        assert dry["dry-run"]
        assert {"files", "trees"} <= {kind["kind"] for kind in dry["removed"]}
        world.good("store", "prune", "--keep-size", "0")
        left = {entry.kind for entry in survey(world.store)}
        assert left <= {"git", "records", "scratch"}
        world.new_store("with an environment")
        world.good("wheel")
        assert world.wheels[0].read_bytes() == before

    def test_its_own_log_stays(self, world: World) -> None:
        world.good("store", "prune", "--older-than", "0")
        assert len(list((world.root / ".sparkwright" / "events").iterdir())) == 1


def test_old_logs_go_when_a_command_starts(world: World) -> None:
    world.good("status")
    work = world.root / ".sparkwright"
    (log,) = (work / "events").iterdir()
    crash, young = work / "crash-1.txt", work / "crash-2.txt"
    crash.touch()
    young.touch()
    age([log, crash], 31)
    age([young], 29)
    world.good("status")
    assert not log.exists()
    assert not crash.exists()
    assert young.exists()


@pytest.mark.slow
def test_pruning_again_and_again_never_hinders_a_build(world: World) -> None:
    """All but the environment for probes is old: what the build has not found yet may go at any time."""
    world.good("wheel")
    before = world.wheels[0].read_bytes()
    remove_tree(world.dist)
    stored = survey(world.store)
    age([entry.path for entry in stored if entry.kind not in {"environments", "git"}], 10)
    build = world.start("wheel")
    wait_until(lambda: oldest_run(world.store.runs))
    removed = 0
    while build.poll() is None:
        done = world.good("store", "prune", "--keep-size", "0", "--json").json
        removed += sum(kind["count"] for kind in done["removed"])
    out, err = build.communicate()
    assert build.returncode == 0, (out, err)
    assert world.wheels[0].read_bytes() == before
    assert removed
