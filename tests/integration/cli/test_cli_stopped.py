"""Runs that are killed, interrupted, starved of disk or not alone: what is left, and how it goes on."""

import os
import re
import select
import signal
import subprocess
import threading

import pytest
from http_index import Fault
from killed import at_call, goes_on, killed, nothing_is_half_done, starve, stopped
from kit import read_only, small_disk
from tiny_release import CLAMPED
from wheelkit import sha256
from world import World, finish, wait_until

from sparkwright.base.errors import StorageError

SLOW_PROBE = """\
import os, time
from pathlib import Path

def probe():
    import vllm.clamp
    Path({folder!r}, str(os.getpid())).touch()
    time.sleep(120)
"""


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
    goes_on(world, "wheel")
    assert [sha256(wheel) for wheel in world.wheels] == [digest]
    assert world.good("audit", world.wheels[0]).status == 0


@pytest.mark.parametrize(
    ("number", "words", "status"),
    [
        (signal.SIGINT, ["wheel"], 130),
        (signal.SIGINT, ["carry", "prove", "--json"], 130),
        (signal.SIGTERM, ["wheel"], -signal.SIGTERM),
        (signal.SIGKILL, ["wheel"], -signal.SIGKILL),
    ],
)
def test_probes_end_with_the_command(world: World, number: int, words: list[str], status: int) -> None:
    marks = world.folder / "marks"
    marks.mkdir()
    world.list_carries([])
    world.carry("clamp", {"vllm/clamp.py": CLAMPED}, probe=SLOW_PROBE.format(folder=str(marks)))
    child = world.start(*words)
    ran = stopped(child, number, lambda: len(list(marks.iterdir())) == 2, group=number == signal.SIGINT)
    assert ran.status == status, ran.said
    if number == signal.SIGINT:
        assert list(world.store.scratch_root.iterdir()) == []
        assert "--json" not in words or ran.json["error"]["exit-code"] == status
        assert "run the same command again" in ran.said


@pytest.mark.usefixtures("proved")
def test_an_interrupted_download_goes_on(world: World, digest: str) -> None:
    world.index.faults += [Fault(), Fault(pause_s=0.5)]

    def begun() -> bool:
        return any(path.stat().st_size >= 1 << 16 for path in world.store.partial.glob("*"))

    ran = stopped(world.start("wheel"), signal.SIGINT, begun, group=True)
    assert ran.status == 130, ran.said
    goes_on(world, "wheel")
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

    def test_of_two_platforms(self, world: World) -> None:
        world.index.faults += [Fault(pause_s=0.3)]
        other = world.start("wheel", "--platform", "aarch64")
        both = [world.call("wheel", "--platform", "x86_64"), finish(other)]
        assert [ran.status for ran in both] == [0, 0], both
        assert len(world.index.downloads) == 3
        listed = (world.dist / "simple" / "vllm" / "index.html").read_text()
        assert len(world.wheels) == listed.count("<a ") == 2
        goes_on(world, "wheel")
        assert set(world.steps().values()) == {"found"}


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
