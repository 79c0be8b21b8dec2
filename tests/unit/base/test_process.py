"""Starting programs: no shell, clear failures, and nothing left behind."""

import os
import sys
import time
from pathlib import Path

import pytest
from kit import Recorder
from world import ended, wait_until

from sparkwright.base.errors import ProcessError, ToolError
from sparkwright.base.process.run import Completed, run, stream, which
from sparkwright.base.process.session import LimitsExceeded, ProcessLimits, run_limited

ROOMY = ProcessLimits(seconds=30, memory_mib=2000)


def test_output_status_and_command_come_back() -> None:
    done = run([sys.executable, "-c", "import sys; print(' out '); print('err', file=sys.stderr)"])
    assert done.stdout == b" out \n"
    assert done.text == "out"
    assert done.stderr == "err\n"
    assert done.status == 0
    assert done.argv[0] == sys.executable
    assert done.seconds > 0


def test_a_program_reads_what_it_is_given_and_nothing_of_ours() -> None:
    copy = [sys.executable, "-c", "import sys; sys.stdout.write(sys.stdin.read())"]
    assert run(copy, stdin=b"in").stdout == b"in"
    assert run(copy).stdout == b""


@pytest.mark.parametrize("status", [1, 3, 128])
def test_other_statuses_are_errors_unless_accepted(status: int) -> None:
    command = [sys.executable, "-c", f"import sys; print('why', file=sys.stderr); sys.exit({status})"]
    assert run(command, accept=(0, status)).status == status
    with pytest.raises(ProcessError, match=f"status {status}") as caught:
        run(command)
    assert caught.value.because == "why"


def test_the_reason_is_what_it_said_wherever_it_said_it() -> None:
    with pytest.raises(ProcessError) as caught:
        run([sys.executable, "-c", "print('on stdout'); exit(1)"])
    assert caught.value.because == "on stdout"
    with pytest.raises(ProcessError) as caught:
        run(["false"])
    assert caught.value.because == "it printed nothing"


def test_a_title_names_the_command_and_not_its_settings() -> None:
    with pytest.raises(ProcessError, match=r"^git nonsense x … failed"):
        run(["git", "-c", "a.b=c", "-c", "d.e=f", "nonsense", "x"])


def test_a_program_that_does_not_end_is_killed() -> None:
    started = time.monotonic()
    with pytest.raises(ProcessError, match="did not end") as caught:
        run(["sleep", "60"], timeout=0.1)
    assert "0.1 s" in caught.value.because
    assert time.monotonic() - started < 30


def test_missing_programs_are_tool_errors(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no-such-program"):
        run(["no-such-program"])
    with pytest.raises(ToolError, match="no-such-program"):
        run_limited(["no-such-program"], limits=ROOMY, cwd=tmp_path, env={}, log=tmp_path / "log")
    with pytest.raises(ToolError, match="no-such-program") as caught:
        which("no-such-program", hint="install it")
    assert caught.value.next_step == "install it"
    assert os.path.isabs(which("sh"))  # noqa: PTH117


def test_programs_that_may_not_be_run_are_tool_errors(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("#!/bin/sh\n")
    with pytest.raises(ToolError, match="could not be started"):
        run([tmp_path / "text"])
    with pytest.raises(ToolError):
        run_limited([tmp_path / "text"], limits=ROOMY, cwd=tmp_path, env={}, log=tmp_path / "log")
    with pytest.raises(ToolError):
        run(["true"], cwd=tmp_path / "missing")


@pytest.mark.parametrize("text", ["$HOME", "`id`", "; touch owned", "a b", "*", "'", '"', "|cat", "\n", "é"])
def test_no_shell_reads_the_arguments(tmp_path: Path, text: str) -> None:
    show = [sys.executable, "-c", "import sys; sys.stdout.write(ascii(sys.argv[1:]))", text]
    assert run(show, cwd=tmp_path).stdout.decode() == ascii([text])
    assert list(tmp_path.iterdir()) == []


def test_the_event_tells_only_how_the_environment_differs(heard, monkeypatch):
    monkeypatch.setenv("SAME", "1")
    monkeypatch.setenv("GONE", "1")
    monkeypatch.setenv("CHANGED", "old")
    env = {**os.environ, "CHANGED": "new", "ADDED": "1", "MADE_UP_API_KEY": "secret"}
    del env["GONE"]
    run(["sh", "-c", "exit 3"], env=env, accept=(3,))
    run(["true"])
    told, inherited = heard.of("process.ended")
    assert told["env"] == {"GONE": None, "CHANGED": "new", "ADDED": "1", "MADE_UP_API_KEY": "***"}
    assert told["argv"] == "sh -c 'exit 3'"
    assert told["status"] == 3
    assert told["seconds"] >= 0
    assert inherited["env"] == {}


def test_an_environment_is_the_whole_of_it() -> None:
    shown = run(["env"], env={"ONLY": "1", "PATH": os.environ["PATH"]}).text.splitlines()
    assert sorted(line.partition("=")[0] for line in shown if not line.startswith("_=")) == ["ONLY", "PATH"]


# Limits ------------------------------------------------------------------------------------

FAMILY = """
import os, subprocess, sys, time
code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); {grandchild}; time.sleep(60)"
child = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[2]])"
process = subprocess.Popen([sys.executable, "-c", child, code, sys.argv[1]])
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
    time.sleep(0.01)
print("grandchild is there", flush=True)
{then}
"""


def limited(tmp_path: Path, script: str, limits: ProcessLimits) -> Completed:
    return run_limited(
        [sys.executable, "-c", script, tmp_path / "pid"],
        limits=limits,
        cwd=tmp_path,
        env=dict(os.environ),
        log=tmp_path / "log",
    )


def assert_gone(tmp_path: Path) -> None:
    """The grandchild that wrote its id is dead, or dies within moments."""
    wait_until(lambda: ended(int((tmp_path / "pid").read_text())), patience_s=10)


def test_within_its_limits_a_program_just_runs(tmp_path: Path, heard: Recorder) -> None:
    done = limited(tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(5)", ROOMY)
    assert done.status == 5
    assert sorted(done.stderr.split()) == ["err", "out"]
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]
    assert [event["status"] for event in heard.of("process.ended")] == [5]


def test_too_long_kills_the_whole_family(tmp_path: Path) -> None:
    script = FAMILY.format(grandchild="pass", then="time.sleep(60)")
    with pytest.raises(LimitsExceeded, match=r"more than 3 s"):
        limited(tmp_path, script, ProcessLimits(seconds=3, memory_mib=2000))
    assert_gone(tmp_path)


def test_too_much_memory_in_a_grandchild_kills_the_whole_family(tmp_path: Path) -> None:
    script = FAMILY.format(grandchild="hog = b'x' * (200 << 20)", then="time.sleep(60)")
    with pytest.raises(LimitsExceeded, match=r"of 150 MiB of memory"):
        limited(tmp_path, script, ProcessLimits(seconds=30, memory_mib=150))
    assert_gone(tmp_path)


def test_a_family_left_behind_by_a_program_that_ends_is_killed(tmp_path: Path) -> None:
    script = FAMILY.format(grandchild="pass", then="os._exit(0)")
    assert limited(tmp_path, script, ROOMY).status == 0
    assert_gone(tmp_path)


def test_a_limited_program_reads_nothing_and_has_a_group_of_its_own(tmp_path: Path) -> None:
    script = "import os, sys; print(repr(sys.stdin.read()), os.getpid() == os.getpgid(0))"
    assert limited(tmp_path, script, ROOMY).stderr.split() == ["''", "True"]


def test_a_stream_gives_all_and_tells_how_it_ended(tmp_path: Path) -> None:
    assert b"".join(stream(["head", "-c", "3000000", "/dev/zero"])) == bytes(3_000_000)
    with pytest.raises(ProcessError, match="status 3") as caught:
        list(stream(["sh", "-c", "echo out; echo why >&2; exit 3"]))
    assert caught.value.because == "why"
    with pytest.raises(ToolError):
        list(stream([tmp_path / "none"]))


def test_who_stops_reading_ends_the_program() -> None:
    pieces = stream(["sh", "-c", "head -c 1048576 /dev/zero; exec sleep 60"])
    assert len(next(pieces)) == 1 << 20
    started = time.monotonic()
    pieces.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 30, "killed, and not waited for"
