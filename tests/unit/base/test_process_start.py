"""Programs under way: measured while they run, and never left behind."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from killed import stopped
from kit import Recorder, python
from world import ended as is_dead
from world import wait_until

from sparkwright.base.errors import ToolError
from sparkwright.base.process.run import start_unguarded
from sparkwright.base.process.session import Ended, Running, resident_mib, start

FAMILY = (
    "import os, subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
    "open('family', 'a').write(f'{{os.getpid()}} {{child.pid}} ')\n"
    "time.sleep({seconds})"
)


def begin(folder: Path, script: str, **options: int) -> Running:
    env = {"PATH": os.environ["PATH"], "ONLY": "é"}
    return start(
        [sys.executable, "-c", script, "an argument"], cwd=folder, env=env, log=folder / "log", **options
    )


def ended(running: Running) -> Ended:
    return wait_until(running.poll)


def output(folder: Path) -> str:
    return (folder / "log").read_text().partition("\n\n")[2]


def family(folder: Path, size: int = 2) -> list[int]:
    """The ids that `FAMILY` wrote, once all are there."""
    path = folder / "family"
    return wait_until(
        lambda: (
            path.exists() and len(path.read_text().split()) >= size and [*map(int, path.read_text().split())]
        )
    )


def test_the_log_begins_with_the_command(tmp_path: Path, heard: Recorder) -> None:
    (tmp_path / "log").write_text("old\n" * 100)
    found = ended(begin(tmp_path, "import sys; print('out', flush=True); print('err', file=sys.stderr)"))
    assert found.status == 0
    first = (tmp_path / "log").read_text().splitlines()[0]
    assert first.startswith(f"{sys.executable} -c 'import sys; print(")
    assert first.endswith("' 'an argument'")
    assert output(tmp_path) == "out\nerr\n"
    (told,) = heard.of("process.ended")
    assert (told["argv"], told["status"]) == (first, 0)


def test_it_has_its_own_session_folder_environment_and_no_input(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "print(os.getsid(0) not in (int(sys.argv[1]), os.getpid()), os.getcwd(), repr(sys.stdin.read()))\n"
        "print(sorted(open('/proc/self/environ').read().split(chr(0))))"
    )
    running = start(
        [sys.executable, "-c", script, str(os.getsid(0))],
        cwd=tmp_path,
        env={"PATH": "/usr/bin", "ONLY": "é"},
        log=tmp_path / "log",
    )
    assert ended(running).status == 0
    assert output(tmp_path) == f"True {tmp_path} ''\n['', 'ONLY=é', 'PATH=/usr/bin']\n"


@pytest.mark.parametrize(
    "status", [0, 1, 127, 200, -signal.SIGKILL, -signal.SIGSEGV, -signal.SIGTERM, -signal.SIGINT]
)
def test_its_status_or_what_killed_it_is_ours(tmp_path: Path, status: int) -> None:
    script = f"import os; os.kill(os.getpid(), {-status})" if status < 0 else f"raise SystemExit({status})"
    assert ended(begin(tmp_path, script)).status == status
    assert list(tmp_path.glob("core*")) == []


def test_cpu_time_and_memory_of_descendants_count(tmp_path: Path) -> None:
    burn = "import time\nhog = b'x' * (100 << 20)\nwhile time.process_time() < 0.3: pass"
    found = ended(
        begin(tmp_path, f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])")
    )
    assert found.cpu_seconds >= 0.3
    # A fork shares its pages with its parent, these tests, until it runs something else.
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    assert 100 <= found.peak_mib < 200 + ours
    assert found.seconds > 0


def test_memory_of_a_session_is_that_of_all_its_processes(tmp_path: Path) -> None:
    hold = "hog = b'x' * (60 << 20); print('ready', flush=True); import time; time.sleep(60)"
    running = begin(tmp_path, "hog = b'x' * (50 << 20)\n" + FAMILY.format(child=hold, seconds=60))
    wait_until(lambda: "ready" in output(tmp_path))
    assert 110 <= resident_mib([running.pid])[running.pid] < 200
    running.kill()
    assert resident_mib([running.pid]) == {running.pid: 0}
    assert resident_mib([]) == {}


def test_kill_ends_the_whole_family(tmp_path: Path) -> None:
    running = begin(tmp_path, FAMILY.format(child="import time; time.sleep(60)", seconds=60))
    pids = family(tmp_path)
    assert running.poll() is None
    assert running.kill().status == -signal.SIGKILL
    assert running.poll() == running.kill(), "it ended once"
    assert all(map(is_dead, [*pids, running.pid]))


def test_asking_it_to_end_reaches_the_program_alone(tmp_path: Path) -> None:
    script = (
        "import signal, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('asked', child.poll(), flush=True), sys.exit(3)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    running = begin(tmp_path, script)
    wait_until(lambda: "ready" in output(tmp_path))
    running.terminate()
    assert ended(running).status == 3
    assert output(tmp_path).endswith("asked None\n"), "its child was not asked"
    running.terminate()  # nothing is there any more


def test_what_it_leaves_behind_is_killed(tmp_path: Path) -> None:
    running = begin(tmp_path, FAMILY.format(child="import time; time.sleep(60)", seconds=0))
    assert ended(running).status == 0
    wait_until(lambda: all(map(is_dead, family(tmp_path))))


STARTER = """
import os, sys, time
from pathlib import Path
from sparkwright.base.process.session import start
folder = Path(sys.argv[1])
for _ in range(2):
    start([sys.executable, "-c", sys.argv[2]], cwd=folder, env=dict(os.environ), log=folder / "log")
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_the_whole_family_dies_with_whoever_started_it(tmp_path: Path, number: int) -> None:
    parent = python(STARTER, tmp_path, FAMILY.format(child="import time; time.sleep(60)", seconds=60))
    pids = family(tmp_path, 4)
    assert not any(map(is_dead, pids))
    assert stopped(parent, number).status == -number
    assert all(map(is_dead, pids))


def test_a_family_whose_parent_died_before_it_began_does_not_begin(tmp_path: Path) -> None:
    guard = Path(start.__code__.co_filename).with_name("guard.py")
    dead = 2**22 + 1  # above any process id
    mark = tmp_path / "ran"
    command = [sys.executable, "-I", guard, str(dead), "0", "0", "touch", mark]
    assert subprocess.run(command, start_new_session=True, check=False).returncode == -signal.SIGKILL
    assert not mark.exists()


def test_it_is_nice_and_dies_first_when_memory_runs_out(tmp_path: Path) -> None:
    script = "import os; print(os.nice(0), open('/proc/self/oom_score_adj').read().strip())"
    before = os.nice(0)
    assert ended(begin(tmp_path, script, nice=3, oom_score_adj=700)).status == 0
    assert output(tmp_path).split() == [str(before + 3), "700"]


def test_missing_programs_are_tool_errors(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x")
    for program, why in (
        ("no-such-program", "was not found"),
        ("./no-such", "was not found"),
        ("./text", "started"),
    ):
        with pytest.raises(ToolError, match=why):
            start([program], cwd=tmp_path, env=dict(os.environ), log=tmp_path / "log")
    with pytest.raises(ToolError, match="sh"):
        start(["sh"], cwd=tmp_path, env={"PATH": str(tmp_path)}, log=tmp_path / "log")
    with pytest.raises(ToolError):
        start(["sh"], cwd=tmp_path / "missing", env=dict(os.environ), log=tmp_path / "log")


def test_a_program_below_its_own_folder_is_found_there(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cc").symlink_to("/bin/true")
    assert ended(start(["bin/cc"], cwd=tmp_path, env={}, log=tmp_path / "log")).status == 0


def test_signals_that_python_ignores_are_as_usual_again(tmp_path: Path) -> None:
    running = start(["cat", "/proc/self/status"], cwd=tmp_path, env=dict(os.environ), log=tmp_path / "log")
    assert ended(running).status == 0
    (ignored,) = [line.split()[1] for line in output(tmp_path).splitlines() if line.startswith("SigIgn")]
    assert not int(ignored, 16) & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGTERM - 1))


def test_a_companion_is_in_our_group_and_reads_until_it_is_closed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = (
        f"import os, sys; sys.stdin.read(); open({str(mark)!r}, 'w').write(str(os.getpgid(0))); print('x')"
    )
    child = start_unguarded([sys.executable, "-c", script])
    assert child.poll() is None
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(30) == 0
    assert mark.read_text() == str(os.getpgid(0))
