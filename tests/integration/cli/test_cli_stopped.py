"""Runs that are killed, interrupted, starved of disk or not alone: what is left, and how it goes on."""

import os
import re
import select
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from http_index import Fault
from killed import at_call, killed, starve
from kit import read_only, small_disk
from tiny_release import CLAMPED
from wheelkit import sha256, unpack
from world import World, finish, interrupt, wait_until

from sparkwright.base.errors import StorageError

SLOW_PROBE = """\
import os, time
from pathlib import Path

def probe():
    import vllm.clamp
    Path({folder!r}, str(os.getpid())).touch()
    time.sleep(120)
"""


def nothing_is_half_done(world: World) -> None:
    """What anybody may find in dist at any time is whole."""
    for wheel in world.wheels:
        assert unpack(wheel), wheel
    for page in world.dist.glob("simple/**/index.html"):
        assert page.read_text().endswith("</html>\n")


def nothing_is_left_over(world: World) -> None:
    hidden = [path.name for path in world.dist.rglob(".*") if path.name != ".publish.lock"]
    assert hidden == []
    assert list(world.store.scratch_root.iterdir()) == []
    assert list(world.store.partial.iterdir()) == []
    assert [path for path in world.store.home.rglob("*.lock") if path.stat().st_size] == []


@pytest.fixture
def digest(world: World) -> str:
    """The digest of the wheel that an undisturbed run makes; the store is empty again afterwards."""
    out = world.folder / "undisturbed"
    world.new_store("undisturbed store")
    found = world.good("wheel", "--json", "--out", out).json["sha256"]
    world.new_store("store again")
    world.index.requests.clear()
    return found


@pytest.mark.slow
def test_killed_after_each_thing_that_it_puts_into_place(world: World, digest: str) -> None:
    log, placed, more = world.folder / "placed", [], 1

    def puts(path: object) -> bool:
        log.write_text(str(path))
        return "/git/objects/" not in str(path)

    for _ in range(60):
        status = killed(world, at_call(("replace", "rename", "link"), more, after=puts), "wheel")
        nothing_is_half_done(world)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        # Where two things belong together, the first alone is put again: let one more through then.
        path = re.sub(r"\d+-\w{8}|(?<=\.)\w{8}$", "N", log.read_text())
        more = more + 1 if path in placed else 1
        placed.append(path)
    else:
        pytest.fail(f"it never ends: {placed[-5:]}")
    assert len(set(placed)) > 12
    world.good("wheel")
    assert [sha256(wheel) for wheel in world.wheels] == [digest]
    assert world.good("audit", world.wheels[0]).status == 0
    nothing_is_left_over(world)


class TestWhileAProbeRuns:
    @pytest.fixture
    def pids(self, world: World) -> Path:
        folder = world.folder / "pids"
        folder.mkdir()
        world.list_carries([])
        world.carry("clamp", {"vllm/clamp.py": CLAMPED}, probe=SLOW_PROBE.format(folder=str(folder)))
        return folder

    @staticmethod
    def running(pids: Path) -> list[int]:
        found = []
        for path in pids.iterdir():
            with suppress(OSError):
                if Path("/proc", path.name, "stat").read_text().split(")")[1].split()[0] != "Z":
                    found.append(int(path.name))
        return found

    def start(self, world: World, pids: Path, *words: str) -> subprocess.Popen[str]:
        child = world.start(*words)
        wait_until(lambda: len(self.running(pids)) == 2 or child.poll() is not None)
        assert child.poll() is None, child.communicate()
        return child

    def test_an_interrupt_ends_both(self, world: World, pids: Path) -> None:
        child = self.start(world, pids, "wheel")
        interrupt(child)
        ran = finish(child)
        assert ran.status == 130, ran.said
        assert "interrupted" in ran.err
        assert "run the same command again" in ran.err
        assert "Traceback" not in ran.err
        assert self.running(pids) == []
        assert list(world.store.scratch_root.iterdir()) == []

    def test_an_interrupt_is_json_too(self, world: World, pids: Path) -> None:
        child = self.start(world, pids, "carry", "prove", "--json")
        interrupt(child)
        ran = finish(child)
        assert ran.status == ran.json["error"]["exit-code"] == 130

    def test_a_kill_leaves_none_behind(self, world: World, pids: Path) -> None:
        child = self.start(world, pids, "wheel")
        child.kill()
        finish(child)
        wait_until(lambda: not self.running(pids))


@pytest.mark.usefixtures("proved")
def test_an_interrupted_download_goes_on(world: World, digest: str) -> None:
    world.index.faults += [Fault(), Fault(pause_s=0.5)]
    child = world.start("wheel")
    wait_until(lambda: any(path.stat().st_size >= 1 << 16 for path in world.store.partial.glob("*")))
    interrupt(child)
    ran = finish(child)
    assert ran.status == 130, ran.said
    world.good("wheel")
    assert world.index.downloads[-1] not in {None, "bytes=0-"}
    assert [sha256(wheel) for wheel in world.wheels] == [digest]


def new_output(children: list[subprocess.Popen[str]]) -> str:
    """What *children* have written to their standard errors since the last call."""
    streams = [child.stderr for child in children if child.stderr is not None]
    ready = select.select(streams, [], [], 0.1)[0]
    return "".join(os.read(stream.fileno(), 1 << 16).decode() for stream in ready)


@pytest.mark.usefixtures("proved")
class TestTwoRunsAtOnce:
    def test_of_the_same_point(self, world: World, digest: str) -> None:
        seen = threading.Event()
        world.index.faults += [Fault(until=seen)]
        children = [world.start("wheel") for _ in range(2)]
        said = wait_until(lambda: new_output(children))
        while "waiting for another run, which uses this build spec" not in said:
            said += wait_until(lambda: new_output(children))
        seen.set()
        both = [finish(child) for child in children]
        assert [ran.status for ran in both] == [0, 0], both
        assert len(world.index.downloads) == 2, "the sdist once, the wheel once"
        assert [sha256(wheel) for wheel in world.wheels] == [digest]
        nothing_is_left_over(world)

    def test_of_two_platforms(self, world: World) -> None:
        world.index.faults += [Fault(pause_s=0.3)]
        other = world.start("wheel", "--platform", "aarch64")
        both = [world.call("wheel", "--platform", "x86_64"), finish(other)]
        assert [ran.status for ran in both] == [0, 0], both
        assert len(world.index.downloads) == 3
        listed = (world.dist / "simple" / "vllm" / "index.html").read_text()
        assert len(world.wheels) == listed.count("<a ") == 2
        world.good("wheel")
        assert set(world.steps().values()) == {"found"}
        nothing_is_left_over(world)


FREE = (60_000, 500_000, None)


@pytest.mark.slow
class TestFullDisk:
    @pytest.mark.usefixtures("proved")
    def test_the_store(self, world: World) -> None:
        disk = world.folder / "disk"
        prefix = small_disk(disk, "3m")
        world.environment["SPARKWRIGHT_HOME"] = str(disk / "store")
        *full, last = starve(world, prefix, disk, FREE, "wheel")
        assert [ran.status for ran in full] == [StorageError.exit_code] * len(full), full
        for ran in full:
            assert ran.err.count("error: ") == 1
            assert "Traceback" not in ran.err
            assert "space" in ran.err
        assert last.status == 0, last
        assert len(world.wheels) == 1
        nothing_is_half_done(world)

    def test_the_checkout_is_read_only(self, world: World) -> None:
        ran = finish(world.start("wheel", "--plan", prefix=read_only(world.root)))
        assert ran.status == StorageError.exit_code, ran.said
        assert "Traceback" not in ran.err
        assert str(world.root) in ran.err
        assert "SPARKWRIGHT_HOME" not in ran.err, "another store would not help"
