"""Runs that are killed, interrupted, starved of disk or not alone: what is left, and how it goes on."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from http_index import Fault
from tiny_release import CLAMPED
from wheelkit import sha256, unpack
from world import World, clean_environment, finish, interrupt, wait_until

# Kills its own process right after the first things (argv[1] of them) that it puts into place.
KILLED_AFTER_PLACING = """
import os, signal, sys
left = int(sys.argv.pop(1))
def deadly(put):
    def wrapper(*arguments, **named):
        global left
        put(*arguments, **named)
        left -= "/git/objects/" not in str(arguments[-1])
        if not left:
            print(arguments[-1], flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    return wrapper
os.replace, os.rename, os.link = map(deadly, (os.replace, os.rename, os.link))
from sparkwright.cli.main import main
sys.exit(main(sys.argv[1:]))
"""

# Kills its own process when an event of a kind names something.
KILLED_AT_EVENT = """
import os, signal, sys
from sparkwright.cli.main import main
from sparkwright.base.events import subscribe
kind, text = sys.argv[1:3]
def deadly(event):
    if event.kind == kind and text in str(event.data):
        os.kill(os.getpid(), signal.SIGKILL)
with subscribe(deadly):
    sys.exit(main(sys.argv[3:]))
"""

EVENTS = [
    ("task.progress", "download vllm-1.2.0.tar.gz"),
    ("task.started", "import vllm"),
    ("step.made", "pristine tree"),
    ("merge.outcome", "align"),
    ("step.made", "merge"),
    ("task.started", "check out"),
    ("task.started", "prove clamp"),
    ("probe.judged", "clamp"),
    ("step.made", "prove align"),
    ("task.progress", "download vllm-1.2.0-cp38"),
    ("step.made", "upstream's wheel"),
    ("wheel.assembled", ""),
    ("step.made", "assemble"),
    ("wheel.audited", ""),
    ("step.made", "audit"),
    ("step.made", "place"),
    ("index.published", ""),
]

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
    for page in world.dist.glob("simple/**/index.json"):
        json.loads(page.read_text())


def nothing_is_left_over(world: World) -> None:
    hidden = [
        path.name for path in world.dist.rglob(".*") if path.name not in {".publish.lock", ".written.json"}
    ]
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
    placed: list[str] = []
    more = 1
    for _ in range(60):
        ran = world.run(str(more), "wheel", script=KILLED_AFTER_PLACING)
        nothing_is_half_done(world)
        if ran.status == 0:
            break
        assert ran.status == -signal.SIGKILL, ran.said
        # Where two things belong together, the first alone is put again: let one more through then.
        path = re.sub(r"\d+-\w{8}|(?<=\.)\w{8}$", "N", ran.out.strip())
        more = more + 1 if path in placed else 1
        placed.append(path)
    else:
        pytest.fail(f"it never ends: {placed[-5:]}")
    assert len(set(placed)) > 12
    world.good("wheel")
    assert [sha256(wheel) for wheel in world.wheels] == [digest]
    assert world.good("audit", world.wheels[0]).status == 0
    nothing_is_left_over(world)


@pytest.mark.slow
def test_killed_within_and_right_after_each_step(world: World, digest: str) -> None:
    for kind, text in EVENTS:
        ran = world.run(kind, text, "wheel", script=KILLED_AT_EVENT)
        assert ran.status == -signal.SIGKILL, (kind, text, ran.said)
        nothing_is_half_done(world)
    world.good("wheel")
    assert [sha256(wheel) for wheel in world.wheels] == [digest]
    nothing_is_left_over(world)
    assert len(world.index.downloads) <= 4, "what had come was kept"


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


class TestTwoRunsAtOnce:
    def test_of_the_same_point(self, world: World, digest: str) -> None:
        seen = threading.Event()
        world.index.faults += [Fault(until=seen)]
        children = [world.start("wheel") for _ in range(2)]
        said = wait_until(lambda: new_output(children))
        while "waiting for another run" not in said:
            said += wait_until(lambda: new_output(children))
        seen.set()
        both = [finish(child) for child in children]
        assert [ran.status for ran in both] == [0, 0], both
        assert len(world.index.downloads) == 2, "the sdist once, the wheel once"
        assert [sha256(wheel) for wheel in world.wheels] == [digest]
        nothing_is_left_over(world)

    def test_of_two_platforms(self, world: World) -> None:
        world.index.faults += [Fault(pause_s=0.3)]
        children = [world.start("wheel", "--platform", platform) for platform in ("aarch64", "x86_64")]
        both = [finish(child) for child in children]
        assert [ran.status for ran in both] == [0, 0], both
        assert len(world.index.downloads) == 3
        listed = (world.dist / "simple" / "vllm" / "index.html").read_text()
        assert len(world.wheels) == listed.count("<a ") == 2
        world.good("wheel")
        assert set(world.steps().values()) == {"found"}
        nothing_is_left_over(world)


# Runs in a mount namespace of its own, with a small disk at argv[1] that it fills but for some bytes.
STARVED = """
import json, os, shutil, subprocess, sys
disk, command = sys.argv[1], sys.argv[2:]
ballast = os.path.join(disk, "ballast")
found = []
for free in (60_000, 250_000, 500_000, None):
    if os.path.exists(ballast):
        os.unlink(ballast)
    if free is not None:
        with open(ballast, "wb") as file:
            file.write(bytes(max(0, shutil.disk_usage(disk).free - free)))
    done = subprocess.run(command, capture_output=True, text=True)
    found.append([done.returncode, done.stderr, sorted(os.listdir(disk))])
print(json.dumps(found))
"""


def with_small_disk(disk: Path, size: str) -> tuple[str, ...]:
    """A prefix for commands that mounts *size* at *disk*, for them alone."""
    disk.mkdir()
    mount = f'mount -t tmpfs -o size={size} tmpfs "$1" && shift && exec "$@"'
    prefix = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", str(disk))
    if subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    return prefix


def starve(
    world: World, prefix: tuple[str, ...], disk: Path, *words: str
) -> list[tuple[int, str, list[str]]]:
    command = [sys.executable, "-m", "sparkwright", *words]
    done = subprocess.run(
        [*prefix, sys.executable, "-c", STARVED, str(disk), *command],
        cwd=world.root,
        env={**clean_environment(), **world.environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return [tuple(one) for one in json.loads(done.stdout)]


@pytest.mark.slow
class TestFullDisk:
    def test_the_store(self, world: World) -> None:
        world.good("carry", "prove")
        disk = world.folder / "disk"
        prefix = with_small_disk(disk, "3m")
        world.environment["SPARKWRIGHT_HOME"] = str(disk / "store")
        *full, last = starve(world, prefix, disk, "wheel")
        assert [status for status, _, _ in full] == [70] * len(full), full
        for _, said, _ in full:
            assert said.count("error: ") == 1
            assert "Traceback" not in said
            assert "space" in said
        assert last[0] == 0, last
        assert len(world.wheels) == 1
        nothing_is_half_done(world)

    def test_the_folder_for_the_wheel(self, world: World) -> None:
        disk = world.folder / "disk"
        prefix = with_small_disk(disk, "2m")
        *full, last = starve(world, prefix, disk, "wheel", "--out", str(disk / "dist"))
        assert [status for status, _, _ in full[:2]] == [70, 70], full
        assert "placing vllm-1.2.0+spark" in full[0][1]
        assert last[0] == 0, last

    def test_the_checkout_is_read_only(self, world: World) -> None:
        if os.geteuid() == 0:
            prefix = (
                "unshare",
                "--mount",
                "sh",
                "-c",
                'mount --bind -o ro "$1" "$1" && cd "$1" && shift && exec "$@"',
                "sh",
            )
        else:
            prefix = ()
        if (
            prefix
            and subprocess.run(
                [*prefix, str(world.root), "true"], check=False, capture_output=True
            ).returncode
        ):
            pytest.skip("this machine lets nobody mount")
        if not prefix:
            world.root.chmod(0o555)
        try:
            ran = finish(world.start("plan", prefix=(*prefix, str(world.root)) if prefix else ()))
        finally:
            world.root.chmod(0o755)
        assert ran.status == 70, ran.said
        assert "Traceback" not in ran.err
        assert str(world.root) in ran.err
        assert "SPARKWRIGHT_HOME" not in ran.err, "another store would not help"


def test_waiting_is_said_at_once(world: World) -> None:
    seen = threading.Event()
    world.index.faults += [Fault(until=seen)]
    first = world.start("wheel")
    wait_until(lambda: world.index.downloads, patience_s=30)
    second = world.start("wheel")
    line = second.stderr.readline()
    seen.set()
    assert "waiting for another run, which uses this build spec" in line
    assert [finish(child).status for child in (first, second)] == [0, 0]
