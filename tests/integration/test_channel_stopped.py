"""Publishers that are killed at every step, and readers who look all the while."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote

import pytest
from channel_kit import POLICY, ChannelWorld, now
from killed import at_call, in_child

from sparkwright.base.errors import LostRaceError, ReplayedChannelError, UntrustedKeyError
from sparkwright.publish.keys import rotate_key
from sparkwright.publish.repository import read_unverified

SIMPLE = "channels/nightly/simple"


@pytest.fixture
def world(tmp_path: Path) -> ChannelWorld:
    """Return a channel of one wheel, with a second wheel built."""
    world = ChannelWorld(tmp_path / "world")
    world.promote("1")
    world.pin()
    world.wheel("2")
    return world


def pages_of(folder: Path) -> dict[str, set[str]]:
    """Return the versions on each page for clients, once every wheel on it has the digest that it states."""
    found = {}
    for page in folder.glob(f"{SIMPLE}/vllm/index.*"):
        base = page.parent.relative_to(folder).as_posix()
        if page.suffix == ".json":
            listed = [
                (file["url"], file["hashes"]["sha256"]) for file in json.loads(page.read_bytes())["files"]
            ]
        else:
            listed = re.findall(r'href="([^"#]+)#sha256=([0-9a-f]{64})"', page.read_text())
        for url, sha256 in listed:
            wheel = folder / posixpath.normpath(posixpath.join(base, unquote(url)))
            assert hashlib.sha256(wheel.read_bytes()).hexdigest() == sha256
            assert wheel.with_name(f"{wheel.name}.metadata").is_file()
        found[page.name] = {posixpath.basename(unquote(url)).split("-")[1] for url, _ in listed}
    return found


def pointed(folder: Path) -> set[str]:
    """Return the versions that the pointer lists."""

    def read(path: str) -> bytes | None:
        return (folder / path).read_bytes() if (folder / path).exists() else None

    state = read_unverified(read, "nightly", "there").state
    return {file.version for file in state.files if file.yanked is None}


def killed_at_each_write(
    world: ChannelWorld, folder: Path, work: Callable[[ChannelWorld], object]
) -> Iterator[ChannelWorld]:
    """Give a copy of *world* for each write of *work*, killed before that one; the last has them all."""
    for write in range(1, 90):
        copy = ChannelWorld(folder / str(write))
        shutil.copytree(world.folder, copy.folder)
        status = in_child(lambda copy=copy: work(copy), at_call(["fsync"], write))
        yield copy
        shutil.rmtree(copy.folder)
        if status == 0:
            return
        assert status == -signal.SIGKILL
    pytest.fail("it did not end")


def promote(world: ChannelWorld) -> None:
    world.promote_file(world.dist / "vllm-2-py3-none-any.whl")


def roll_back(world: ChannelWorld) -> None:
    world.publisher().rollback("nightly", POLICY, now(), to=1, reason="x")


def test_a_half_done_promotion_is_never_visible(world: ChannelWorld, tmp_path: Path) -> None:
    """Kill a publisher before each of its writes in turn, look, and let the next one finish the work."""
    stages: list[tuple[bool, bool]] = []
    for copy in killed_at_each_write(world, tmp_path, promote):
        listed, promised = pages_of(copy.published), pointed(copy.published)
        assert promised in ({"1"}, {"1", "2"})
        assert all({"1"} <= versions <= promised for versions in listed.values())
        stages.append((promised == {"1", "2"}, all(versions == promised for versions in listed.values())))
        if stages[-1][1]:
            copy.verify()
        else:
            with pytest.raises(ReplayedChannelError, match="publisher was interrupted"):
                copy.verify()
        promote(copy)
        assert pages_of(copy.published) == {"index.json": {"1", "2"}, "index.html": {"1", "2"}}
        copy.verify()
    # Nothing was visible, then the pointer moved, then the pages followed.
    assert stages == sorted(stages)
    assert {(False, True), (True, False), (True, True)} == set(stages)
    assert len(stages) > 10


def test_a_killed_rollback_is_finished_by_the_next_one(world: ChannelWorld, tmp_path: Path) -> None:
    promote(world)
    for copy in killed_at_each_write(world, tmp_path, roll_back):
        assert pointed(copy.published) in ({"1"}, {"1", "2"})
        roll_back(copy)
        assert copy.listed() == {"1": None, "2": "x"}
        copy.verify()


def test_a_killed_replacement_of_a_key_shuts_readers_out_before_the_pointer_alone(
    world: ChannelWorld, tmp_path: Path
) -> None:
    rotate_key(world.home, revoke="stolen")
    seen = []
    for copy in killed_at_each_write(
        world, tmp_path, lambda copy: copy.publisher().renew("nightly", POLICY, now())
    ):
        try:
            copy.verify()
        except UntrustedKeyError:
            seen.append("shut out")
        except ReplayedChannelError:
            seen.append("behind")
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
            # Pages first: a page may be behind the pointer for a moment, never before it.
            listed = pages_of(world.published)
            promised = pointed(world.published)
            assert all(versions <= promised for versions in listed.values())
            seen.add(world.verify(patience_s=30.0).state.generation)
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
    assert pointed(world.published) == {"1", *winners}
    assert world.verify().state.generation == 1 + len(winners)
