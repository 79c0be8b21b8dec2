"""Evidence and logs of a served engine: processes, stacks, samples, and a log that is cut while it grows."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from world import wait_until

from sparkwright.base.process.session import start
from sparkwright.engine.server.compiling import running_compilers
from sparkwright.serve.engine import family, keep_incident, rotate
from sparkwright.serve.watchdog import EngineSample

PATIENCE_S = 60.0
WRITER = """
import itertools, time
for n in itertools.count():
    print("line", n, flush=True)
    time.sleep(0.002)
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time\\ndef waits():\\n    time.sleep(600)\\nwaits()"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def engine() -> Iterator[tuple[int, int]]:
    """A process with a child; their ids."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    yield parent.pid, child
    for pid in (child, parent.pid):
        psutil.Process(pid).kill()
    parent.communicate()


def test_processes_and_samples_are_kept(tmp_path: Path, engine: tuple[int, int]) -> None:
    parent, child = engine
    os.kill(child, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(child).status() == psutil.STATUS_STOPPED)  # the signal takes a moment
    samples = [EngineSample(at=float(number), running=number) for number in range(3)]
    names = keep_incident(tmp_path, parent, samples)
    assert {"processes.json", "samples.jsonl"} <= set(names)
    found = {one["pid"]: one for one in json.loads((tmp_path / "processes.json").read_text())}
    assert found.keys() == {parent, child}
    assert (found[child]["state"], found[child]["parent"]) == ("stopped", parent)
    kept = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [one["running"] for one in kept] == [0, 1, 2]


@pytest.mark.skipif(shutil.which("py-spy") is None, reason="py-spy is not here")
def test_stacks_show_where_a_process_waits(tmp_path: Path, engine: tuple[int, int]) -> None:
    command, end = ["py-spy", "dump", "--pid", str(engine[1])], time.monotonic() + PATIENCE_S
    while (tried := subprocess.run(command, check=False, capture_output=True, text=True)).returncode:
        if "ermission" in tried.stderr:
            pytest.skip("py-spy may not read other processes here")
        assert time.monotonic() < end, tried.stderr
        time.sleep(0.1)  # the interpreter is still starting
    os.kill(engine[1], signal.SIGSTOP)
    assert "stacks.txt" in keep_incident(tmp_path, engine[0], [])
    assert "waits" in (tmp_path / "stacks.txt").read_text()


def test_processes_that_are_gone_leave_no_gap(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert family(child.pid) == []
    assert running_compilers(child.pid) == {}
    assert keep_incident(tmp_path, child.pid, []) == ("processes.json", "samples.jsonl")


def test_compilers_are_counted_by_their_names(tmp_path: Path, engine: tuple[int, int]) -> None:
    assert running_compilers(engine[0]) == {}
    program = tmp_path / "ptxas"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    script = f"import subprocess; subprocess.run([{str(program)!r}, '600'])"
    child = subprocess.Popen([sys.executable, "-c", script])
    try:
        end = time.monotonic() + PATIENCE_S
        while not running_compilers(child.pid) and time.monotonic() < end:
            time.sleep(0.02)
        assert list(running_compilers(child.pid).values()) == ["ptxas"]
    finally:
        for process in (*psutil.Process(child.pid).children(), child):
            process.kill()
        child.wait()


def test_a_log_is_cut_while_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    running = start([sys.executable, "-c", WRITER], cwd=tmp_path, env=dict(os.environ), log=log)
    try:
        cuts, end = 0, time.monotonic() + PATIENCE_S
        while cuts < 4 and time.monotonic() < end:
            cuts += rotate(log, most=2000, kept=2)
            time.sleep(0.01)
        size = log.stat().st_size
        while log.stat().st_size <= size and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        running.kill()
    assert cuts == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server.log", "server.log.1", "server.log.2"]
    assert b"\0" not in log.read_bytes(), "its writer appends, so that no hole is left"
    numbers = [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("line ")]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    before = [int(line.split()[1]) for line in (tmp_path / "server.log.1").read_text().splitlines()[:-1]]
    assert before[-1] < numbers[0]
