"""The compile driver, with real programs in the place of compilers."""

import errno
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from killed import stopped
from kit import Recorder, finish, python
from world import ended, wait_until

from sparkwright.base.errors import (
    CompileError,
    NotEnoughMemoryError,
    SparkwrightError,
    StorageError,
    ToolError,
)
from sparkwright.base.machine import MachineSnapshot, Pressure
from sparkwright.native.compile import CompileJob, Finished, run_jobs
from sparkwright.native.model import Cost
from sparkwright.native.schedule import CRITICAL, JobLimits

WRITE = "import os, sys, time\nopen(sys.argv[1], 'w').write('object')\n"
"""A compiler that works."""

KILLED = (
    "import os, signal, subprocess, sys\n"
    "child = subprocess.run([sys.executable, '-c', 'import os; os.kill(os.getpid(), 9)'])\n"
    "print(\"nvcc error   : 'cicc' died due to signal 9 (Kill signal)\")\nsys.exit(9)\n"
)
"""A stand-in for an nvcc whose compiler was killed."""

ROOMY = MachineSnapshot(cores=4, total_mib=65536, available_mib=60000, pressure=Pressure())


def until(path: Path, then: str = "") -> str:
    """Return a compiler that writes a partial object and waits for *path*; without that file it fails."""
    return (
        "import os, sys, time\nopen(sys.argv[1], 'w').write('part')\n"
        f"end = time.monotonic() + 60\nwhile not os.path.exists({str(path)!r}):\n"
        f" time.sleep(0.01)\n if time.monotonic() > end: sys.exit('it never came')\n{then}"
    )


def make_job(
    folder: Path, name: str, script: str = WRITE, *, seconds: float = 1.0, mib: int = 100, **changes: object
) -> CompileJob:
    """Return a job in *folder* that runs *script*, whose first argument is the object to make."""
    output = folder / "objects" / f"{name}.o"
    return CompileJob(
        name=name,
        argv=(sys.executable, "-c", script, str(output)),
        cwd=folder,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(folder)},
        output=output,
        log=folder / "logs" / f"{name}.log",
        expected=Cost(seconds=seconds, mib=mib),
        **changes,
    )


NO_OUTPUT = "raise SystemExit(0)"
REFUSE = (
    "import sys\nopen(sys.argv[1], 'w').write('part')\nprint('a.cu(1): error: no such thing')\nsys.exit(2)"
)
FULL = "import sys\nprint('fatal error: a.o: No space left on device')\nsys.exit(1)"


@dataclass
class Driver:
    """Runs jobs and remembers whose objects were handed on."""

    folder: Path
    done: list[Finished] = field(default_factory=list)
    on_done: Callable[[Finished], None] = lambda _: None

    def __call__(self, *jobs: CompileJob, count: int = 2, **options: object) -> None:
        def kept(finished: Finished) -> None:
            assert finished.job.output.read_text() == "object"
            self.done.append(finished)
            self.on_done(finished)

        settings = {"machine": lambda: ROOMY, "nice": 0, **options}
        run_jobs(jobs, on_done=kept, limits=JobLimits(jobs=count, reserve_mib=0), **settings)

    @property
    def names(self) -> list[str]:
        return [one.job.name for one in self.done]

    def job(self, name: str, script: str = WRITE, **options: object) -> CompileJob:
        return make_job(self.folder, name, script, **options)

    def objects(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "objects").iterdir())


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


def total(heard: Recorder) -> dict[str, Any]:
    """Return the event that the build emits about all its units."""
    (event,) = heard.of("native.compiled")
    return event


def order(heard: Recorder) -> list[str]:
    return [event["unit"] for event in heard.of("compile.started")]


# In good weather -----------------------------------------------------------------------------


def test_units_start_longest_first_and_are_handed_on(driver: Driver, heard: Recorder) -> None:
    jobs = [driver.job(name, seconds=seconds) for name, seconds in (("b", 2), ("c", 9), ("a", 5))]
    driver(*jobs, count=1)
    assert order(heard) == driver.names == ["c", "a", "b"]
    told = total(heard)
    assert (told["units"], told["jobs"], told["stopped"], told["retried"]) == (3, 1, [], [])
    assert driver.objects() == ["a.o", "b.o", "c.o"]


def test_units_run_at_the_same_time(driver: Driver, tmp_path: Path, heard: Recorder) -> None:
    """Each waits for the other: they end only if both run."""
    both = [
        driver.job(mine, f"open({str(tmp_path / mine)!r}, 'w')\n" + until(tmp_path / other, WRITE))
        for mine, other in (("a", "b"), ("b", "a"))
    ]
    driver(*both)
    assert total(heard)["jobs"] == 2


def test_what_a_unit_took_is_measured_over_all_its_processes(driver: Driver, heard: Recorder) -> None:
    burn = "import time\nhog = b'x' * (80 << 20)\nwhile time.process_time() < 0.7: pass"
    script = (
        "import subprocess, sys\nboth = [subprocess.Popen([sys.executable, '-c', "
        f"{burn!r}]) for _ in range(2)]\n[one.wait() for one in both]\n{WRITE}"
    )
    driver(driver.job("a", script))
    (one,) = driver.done
    assert one.cost.seconds >= 1.4
    # A fork is seen with all pages of its parent, of these tests, until it runs something else.
    most = 600 + 2 * (psutil.Process().memory_info().rss >> 20)
    assert 160 <= one.cost.mib < most, "two at once, where the kernel's own count knows one"
    told = total(heard)
    assert told["cpu_seconds"] == round(one.cost.seconds, 1)
    assert told["peak_mib"] >= 160
    assert one.attempts == 1


def test_a_short_peak_counts_as_the_kernel_saw_it(driver: Driver) -> None:
    driver(driver.job("a", "hog = b'x' * (90 << 20)\ndel hog\n" + WRITE))
    assert driver.done[0].cost.mib >= 90


@pytest.mark.parametrize("script", [NO_OUTPUT, "import sys; open(sys.argv[1], 'w')"], ids=["older", "empty"])
def test_an_older_or_empty_object_is_no_success(driver: Driver, script: str) -> None:
    job = driver.job("a", script)
    job.output.parent.mkdir()
    job.output.write_text("old")
    with pytest.raises(CompileError, match="a was not compiled") as caught:
        driver(job)
    assert "no object" in caught.value.because
    assert driver.objects() == []


# Failures ------------------------------------------------------------------------------------


def test_the_first_failure_starts_nothing_new_and_keeps_what_runs(driver, tmp_path, heard):
    failed = tmp_path / "failed"
    long = driver.job("long", until(failed, WRITE), seconds=9)
    bad = driver.job("bad", REFUSE, seconds=5)

    def machine() -> MachineSnapshot:
        if heard.of("compile.failed"):
            failed.touch()
        return ROOMY

    with pytest.raises(CompileError) as caught:
        driver(long, bad, driver.job("later", seconds=1), machine=machine)
    assert order(heard) == ["long", "bad"]
    assert driver.names == ["long"]
    assert driver.objects() == ["long.o"], "nothing half-made stays"
    error = caught.value
    assert error.what == "bad was not compiled"
    assert "a.cu(1): error: no such thing" in error.because
    assert f"log: {bad.log}" in error.because
    assert "kept" in error.next_step
    (told,) = heard.of("compile.failed")
    assert told["unit"] == "bad"


def test_units_that_fail_together_are_told_together(driver: Driver, tmp_path: Path, heard: Recorder) -> None:
    """`y` fails once `x` has: both ran by then."""
    jobs = [driver.job("x", REFUSE, seconds=9), driver.job("y", until(tmp_path / "failed", "sys.exit(3)"))]

    def machine() -> MachineSnapshot:
        if heard.of("compile.failed"):
            (tmp_path / "failed").touch()
        return ROOMY

    with pytest.raises(CompileError, match="x was not compiled") as caught:
        driver(*jobs, machine=machine)
    assert "also failed: y" in caught.value.because


def test_a_missing_compiler_is_a_tool_error(driver: Driver, heard: Recorder) -> None:
    gone = replace(driver.job("gone", seconds=9), argv=("no-such-nvcc", "-c"))
    with pytest.raises(ToolError, match="no-such-nvcc"):
        driver(gone, driver.job("b"), count=1)
    assert order(heard) == []


def test_a_compiler_that_says_that_the_disk_is_full_is_believed(driver: Driver, heard: Recorder) -> None:
    with pytest.raises(StorageError, match="x was not compiled") as caught:
        driver(driver.job("x", FULL, seconds=9), driver.job("y"), count=1)
    assert "no space left on device" in caught.value.because.lower()
    assert order(heard) == ["x"]


@pytest.mark.parametrize(
    ("raised", "kind", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/store/file"), StorageError, "/store/file"),
        (SparkwrightError("I do not want it"), SparkwrightError, "I do not want it"),
    ],
    ids=["a full disk", "the caller's error"],
)
def test_what_keeping_an_object_raises_comes_through_and_stops_all(driver, tmp_path, raised, kind, says):
    def refuse(_: Finished) -> None:
        raise raised

    driver.on_done = refuse
    never = driver.job("never", until(tmp_path / "never"), seconds=9)
    with pytest.raises(kind) as caught:
        driver(never, driver.job("a"))
    assert says in str(caught.value)
    assert driver.objects() == ["a.o"], "the one that ran was stopped, and its part removed"


# Memory --------------------------------------------------------------------------------------


def once(mark: Path, then: str) -> str:
    """Does *then* at its first start, and compiles well at its second."""
    first = f"if not os.path.exists({str(mark)!r}):\n open({str(mark)!r}, 'w')\n exec({then!r})\n"
    return f"import os\n{first}{WRITE}"


@pytest.mark.parametrize("then", [KILLED, "import os; os.kill(os.getpid(), 9)"], ids=["a child", "itself"])
def test_a_unit_that_is_killed_is_tried_again_alone(driver, tmp_path, heard, then):
    alone = "import os, sys\nif os.path.exists('other'): sys.exit('not alone')\n"
    big = driver.job("big", once(tmp_path / "mark", then).replace(WRITE, alone + WRITE), seconds=99)
    here = "import os, time\nopen('other', 'w')\ntime.sleep(0.3)\nos.unlink('other')\n"
    driver(big, driver.job("b", here + WRITE, mib=50000), driver.job("c", here + WRITE, mib=50000))
    assert order(heard)[0] == "big"
    assert order(heard)[-1] == "big", "when nothing else is left"
    assert total(heard)["retried"] == ["big"]
    assert driver.names[-1] == "big"
    assert driver.done[-1].attempts == 2
    (warning,) = heard.warnings
    assert "big ran out of memory" in warning


def test_killed_alone_too_is_an_error_with_the_numbers(driver: Driver, heard: Recorder) -> None:
    with pytest.raises(NotEnoughMemoryError, match="big was not compiled: memory ran out") as caught:
        driver(driver.job("big", KILLED))
    assert order(heard) == ["big", "big"]
    because = caught.value.because
    assert "died due to signal 9" in because
    assert "it used up to 0." in because
    assert "fewer jobs" in caught.value.next_step


def test_memory_that_comes_back_is_waited_for(driver: Driver, heard: Recorder) -> None:
    looks = itertools.count()

    def machine() -> MachineSnapshot:
        return replace(ROOMY, available_mib=100 if next(looks) < 3 else 60000)

    driver(driver.job("a", mib=2048), machine=machine)
    assert driver.names == ["a"]
    (warning,) = heard.warnings
    assert (
        warning == "nothing can be compiled for now: memory: 0.1 GiB free, the unit is expected to take 2.0"
    )


def test_memory_that_does_not_come_back_is_an_error(driver: Driver) -> None:
    with pytest.raises(NotEnoughMemoryError, match="a cannot be compiled"):
        driver(driver.job("a", mib=70000), patience_s=0)
    assert driver.names == []


def test_a_kernel_without_pressure_is_told_of_once(driver: Driver, heard: Recorder) -> None:
    driver(driver.job("a"), driver.job("b"), machine=lambda: replace(ROOMY, pressure=None))
    assert len([text for text in heard.warnings if "memory pressure" in text]) == 1
    assert driver.names


# Pressure ------------------------------------------------------------------------------------


def test_under_great_pressure_the_youngest_is_stopped_and_done_again(driver, tmp_path, heard):
    """`old` ends only after `young` was begun twice: that is, after it was stopped."""
    begun = tmp_path / "begun"
    old = driver.job("old", until(tmp_path / "stopped", WRITE), seconds=9)
    young = driver.job(
        "young", f"open({str(begun)!r}, 'a').write('x')\n" + until(tmp_path / "stopped", WRITE)
    )

    def machine() -> MachineSnapshot:
        if heard.warnings:
            (tmp_path / "stopped").touch()
        pressed = begun.exists() and not heard.warnings
        return replace(ROOMY, pressure=CRITICAL if pressed else Pressure())

    driver(old, young, machine=machine)
    assert total(heard)["stopped"] == ["young"]
    steps = [
        (e.kind, e.data["unit"]) for e in heard.events if e.kind in {"compile.started", "compile.finished"}
    ]
    assert [unit for _, unit in steps] == ["old", "young", "old", "young", "young"], "with fewer at once"
    assert steps[2][0] == "compile.finished"
    assert begun.read_text() == "xx"
    assert {one.job.name: one.attempts for one in driver.done} == {"old": 1, "young": 2}
    (warning,) = heard.warnings
    assert "young was stopped and will be done again" in warning


@pytest.mark.parametrize(("settle_s", "stopped"), [(1000, 1), (0, 2)], ids=["not yet", "again"])
def test_one_stop_is_given_time_to_help(driver, tmp_path, heard, settle_s, stopped):
    """Three run under unending pressure; even then one goes on."""
    go = tmp_path / "go"
    looks = itertools.count()

    def machine() -> MachineSnapshot:
        if heard.warnings and next(looks) > 2:
            go.touch()
        pressed = len(heard.of("compile.started")) >= 3 and not go.exists()
        return replace(ROOMY, pressure=CRITICAL if pressed else Pressure())

    jobs = [driver.job(name, until(go, WRITE)) for name in "abc"]
    driver(*jobs, count=3, machine=machine, settle_s=settle_s)
    assert len(total(heard)["stopped"]) == stopped
    assert sorted(driver.names) == ["a", "b", "c"]


# The compile driver interrupted, killed and starved of disk: nothing runs on, what was done is kept


# Two quick units, then two that start a child and go on without end, then one that never has its turn.
ENDLESS = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_native_compile import ROOMY, WRITE, JobLimits, make_job, run_jobs

folder = Path(sys.argv[1])
CHILD = "import os, time; open('pids', 'a').write(f'{os.getpid()} '); time.sleep(600)"
FOREVER = (
    "import os, subprocess, sys, time\\nopen(sys.argv[1], 'w').write('part')\\n"
    "open('pids', 'a').write(f'{os.getpid()} ')\\n"
    f"subprocess.run([sys.executable, '-c', {CHILD!r}])"
)

def keep(finished):
    kept = folder / "kept" / finished.job.name
    kept.parent.mkdir(exist_ok=True)
    finished.job.output.rename(kept)

try:
    scripts = {"a": WRITE, "b": WRITE, "c": FOREVER, "d": FOREVER, "e": WRITE}
    jobs = [make_job(folder, name, script, seconds=9 - n) for n, (name, script) in enumerate(scripts.items())]
    run_jobs(jobs, on_done=keep, limits=JobLimits(2, 0), machine=lambda: ROOMY, nice=0)
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
    here = Path(__file__)
    build = python(ENDLESS, folder, here.parent, here.parents[2] / "support")
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
    assert list(tmp_path.rglob("*.o")) == []
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["a", "b"]
    assert not (tmp_path / "logs" / "e.log").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_it_takes_every_compiler_along_and_loses_only_what_ran(tmp_path: Path, number: int) -> None:
    build, running = begin(tmp_path)
    assert stopped(build, number).status == -number
    assert all(map(ended, running))
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["a", "b"]
    time.sleep(0.2)
    assert not (tmp_path / "logs" / "e.log").exists(), "nothing goes on"
