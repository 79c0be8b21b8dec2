"""The compile driver interrupted, killed and starved of disk: nothing runs on, what was done is kept."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from kit import finish, python, small_disk
from world import ended, wait_until

HEAD = """
import os, sys, time
from pathlib import Path
from sparkwright.base.errors import SparkwrightError
from sparkwright.native.compile import CompileJob, run_jobs
from sparkwright.base.machine import Pressure, MachineSnapshot
from sparkwright.native.model import Cost
from sparkwright.native.schedule import JobLimits

folder = Path(sys.argv[1])
disk = Path(sys.argv[2]) if len(sys.argv) > 2 else folder
room = MachineSnapshot(cores=2, total_mib=9999, available_mib=9999, pressure=Pressure())

def job(name, seconds, script):
    output = disk / f"{name}.o"
    argv = (sys.executable, "-c", script, str(output))
    env = {"PATH": os.environ["PATH"]}
    return CompileJob(name, argv, folder, env, output, folder / f"{name}.log", Cost(seconds=seconds, mib=1))

def keep(finished):
    kept = folder / "kept" / finished.job.name
    kept.parent.mkdir(exist_ok=True)
    finished.job.output.rename(kept)

def build(*jobs, **options):
    return run_jobs(jobs, on_done=keep, limits=JobLimits(2, 0), machine=lambda: room, nice=0, **options)
"""

# Two quick units, then two that start a child and go on without end, then one that never has its turn.
ENDLESS = """
WRITE = "import sys; open(sys.argv[1], 'w').write('object')"
CHILD = "import os, time; open('pids', 'a').write(f'{os.getpid()} '); time.sleep(600)"
FOREVER = (
    "import os, subprocess, sys, time\\nopen(sys.argv[1], 'w').write('part')\\n"
    "open('pids', 'a').write(f'{os.getpid()} ')\\n"
    f"subprocess.run([sys.executable, '-c', {CHILD!r}])"
)
try:
    scripts = {"a": WRITE, "b": WRITE, "c": FOREVER, "d": FOREVER, "e": WRITE}
    build(*(job(name, 9 - n, script) for n, (name, script) in enumerate(scripts.items())))
except KeyboardInterrupt:
    print("interrupted")
"""


def pids(folder: Path) -> list[int]:
    """All four processes of the two endless units, once they are there."""

    def found() -> list[int]:
        path = folder / "pids"
        words = path.read_text().split() if path.exists() else []
        return [int(word) for word in words] if len(words) == 4 else []

    return wait_until(found)


def begin(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    build = python(HEAD + ENDLESS, folder)
    running = [*pids(folder), *(child.pid for child in psutil.Process(build.pid).children())]
    assert len(running) == 6
    assert not any(map(ended, running))
    assert sorted(os.listdir(folder / "kept")) == ["a", "b"]  # noqa: PTH208 - names are all that is wanted
    return build, running


def test_an_interrupt_kills_every_compiler_and_leaves_no_part(tmp_path: Path) -> None:
    build, running = begin(tmp_path)
    build.send_signal(signal.SIGINT)
    assert finish(build) == "interrupted\n"
    assert all(map(ended, running)), "gone before the build says so"
    assert list(tmp_path.glob("*.o")) == []
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["a", "b"]
    assert not (tmp_path / "e.log").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_it_takes_every_compiler_along_and_loses_only_what_ran(tmp_path: Path, number: int) -> None:
    build, running = begin(tmp_path)
    build.send_signal(number)
    build.communicate(timeout=60)
    assert build.returncode == -number
    wait_until(lambda: all(map(ended, running)))
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["a", "b"]
    time.sleep(0.2)
    assert not (tmp_path / "e.log").exists(), "nothing goes on"


DISK = """
TOO_MUCH = (
    "import os, sys, time\\n"
    "while not os.path.exists('kept/small'): time.sleep(0.01)\\n"
    "open(sys.argv[1], 'wb').write(bytes(8 << 20))"
)
try:
    build(job("small", 9, "import sys; open(sys.argv[1], 'wb').write(b'x')"), job("large", 8, TOO_MUCH))
except SparkwrightError as error:
    print(type(error).__name__, "|", error.what, "|", " ".join(error.because.split()), "|", error.next_step)
print(sorted(os.listdir(disk)), sorted(os.listdir(folder / "kept")))
"""


def test_a_full_disk_is_told_as_such_and_leaves_no_part(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    prefix = small_disk(disk, "4m")
    rename = (
        "import shutil\ndef keep(finished):\n    (folder / 'kept').mkdir(exist_ok=True)\n    shutil.move("
    )
    rename += "finished.job.output, folder / 'kept' / finished.job.name)\n"
    said, listed = finish(python(HEAD + rename + DISK, tmp_path, disk, prefix=prefix)).splitlines()
    kind, what, because, following = said.split(" | ")
    assert (kind, what) == ("StorageError", "large was not compiled")
    assert "No space left on device" in because
    assert "free some space" in following
    assert listed == "[] ['small']"
