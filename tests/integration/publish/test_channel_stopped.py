"""Publishers that are killed at every step, and readers who look all the while."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from channel_kit import POLICY, ChannelWorld, now
from killed import at_call, in_child
from prune_kit import broken_links

from sparkwright.base.errors import LostRaceError, UntrustedKeyError
from sparkwright.publish import target as targets
from sparkwright.publish.keys import rotate_key
from sparkwright.publish.repository import read_unverified
from sparkwright.publish.target import FolderTarget


@pytest.fixture
def world(tmp_path: Path) -> ChannelWorld:
    """Return a channel of one wheel, with a second wheel built."""
    world = ChannelWorld(tmp_path / "world")
    world.promote("1")
    world.pin()
    world.wheel("2")
    return world


def pointed(world: ChannelWorld) -> set[str]:
    """Return the versions that the pointer lists, once everything that it names is there."""
    target = FolderTarget(world.published)
    state = read_unverified(target.read, "nightly", "there").state
    assert broken_links(world, target, "nightly") == []
    return {file.version for file in state.offered}


def killed_at_each_write(
    world: ChannelWorld, folder: Path, work: Callable[[ChannelWorld], object]
) -> Iterator[ChannelWorld]:
    """Give a copy of *world* for each write of *work*, killed before that one; the last has them all."""
    for write in range(1, 90):
        copy = ChannelWorld(folder / str(write))
        shutil.copytree(world.folder, copy.folder)
        status = in_child(lambda copy=copy: work(copy), at_call(["fsync"], write))
        (copy.published / targets.LEASE).unlink(missing_ok=True)  # as if it had ended
        yield copy
        shutil.rmtree(copy.folder)
        if status == 0:
            return
        assert status == -signal.SIGKILL
    pytest.fail("it did not end")


def promote(world: ChannelWorld) -> None:
    world.promote_file(world.dist / "vllm-2-py3-none-any.whl")


def test_a_half_done_promotion_is_never_visible(world: ChannelWorld, tmp_path: Path) -> None:
    """Kill a publisher before each of its writes in turn, look, and let the next one finish the work."""
    stages: list[set[str]] = []
    for copy in killed_at_each_write(world, tmp_path, promote):
        stages.append(pointed(copy))
        assert {file.version for file in copy.verify().state.offered} == stages[-1]
        promote(copy)
        assert pointed(copy) == {"1", "2"}
        copy.verify()
    # Nothing was visible, then the pointer moved.
    assert stages == sorted(stages, key=len)
    assert stages[0] == {"1"} != stages[-1] == {"1", "2"}
    assert len(stages) > 8


def test_a_killed_replacement_of_a_key_shuts_readers_out_before_the_pointer_alone(
    world: ChannelWorld, tmp_path: Path
) -> None:
    first = world.digest()
    rotate_key(world.home, revoke="stolen")
    seen = []
    for copy in killed_at_each_write(
        world, tmp_path, lambda copy: copy.publisher().renew("nightly", POLICY, now())
    ):
        copy.reader.pin(FolderTarget(copy.published), "nightly", first)
        try:
            copy.verify()
        except UntrustedKeyError:
            seen.append("shut out")
        else:
            seen.append("new" if copy.verify().state.action.kind == "renew" else "old")
        copy.publisher().renew("nightly", POLICY, now())
        copy.verify()
    assert sorted(set(seen), key=seen.index) == ["old", "shut out", "new"]
    assert seen.count("shut out") == 1


def test_a_reader_never_sees_a_state_that_is_wrong(world: ChannelWorld) -> None:
    done = threading.Event()
    seen: set[int] = set()

    def read() -> int:
        count = 0
        while not done.is_set():
            seen.add(world.verify().state.generation)
            count += 1
        return count

    with ThreadPoolExecutor(2) as pool:
        readings = [pool.submit(read)]
        try:
            for version in range(2, 12):
                world.promote(str(version))
        finally:
            done.set()
        assert readings[0].result() > 1
    assert len(seen) > 1


def test_of_publishers_in_several_processes_each_wins_or_is_told(world: ChannelWorld) -> None:
    wheels = [world.wheel(str(number)) for number in range(2, 6)]
    start = world.folder / "start"
    waiting = []
    for wheel in wheels:

        def work(wheel: Path = wheel) -> None:
            while not start.exists():
                pass
            world.promote_file(wheel)

        waiting.append(ThreadPoolExecutor(1).submit(in_child, work))
    start.touch()
    statuses = [future.result() for future in waiting]
    assert set(statuses) <= {0, LostRaceError.exit_code}
    assert 0 in statuses
    winners = {
        wheel.name.split("-")[1] for wheel, status in zip(wheels, statuses, strict=True) if status == 0
    }
    assert pointed(world) == {"1", *winners}
    assert world.verify().state.generation == 1 + len(winners)
