"""The one place that starts a program.

Arguments are always a list and never meet a shell. Each start is logged as an event with
the *difference* of its environment only, which is what one needs to repeat it by hand.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import signal
import subprocess  # noqa: TID251
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

from sparkwright.errors import ProcessError, ToolError
from sparkwright.events import emit

if TYPE_CHECKING:
    import threading
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import psutil

__all__ = [
    "Companion",
    "Completed",
    "Ended",
    "Limits",
    "LimitsExceeded",
    "Running",
    "companion",
    "resident_mib",
    "run",
    "run_limited",
    "start",
    "stream",
    "which",
]

_TAIL = 4000
_DYING_S = 5.0
_PIECE = 1 << 20


@dataclass(frozen=True)
class Completed:
    """A program that has ended.

    Attributes:
        argv: its argument list.
        status: its exit status; negative is the signal that ended it.
        stdout: what it wrote to standard output, raw.
        stderr: what it wrote to standard error, decoded.
        seconds: wall-clock time.
    """

    argv: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: str
    seconds: float

    @property
    def text(self) -> str:
        """Standard output, decoded and stripped."""
        return self.stdout.decode(errors="replace").strip()


def which(program: str, *, hint: str = "") -> str:
    """The absolute path of *program*.

    Raises:
        ToolError: it is not installed.
    """
    found = shutil.which(program)
    if found is None:
        raise ToolError(f"the program {program!r} was not found", because="it is not on PATH", next_step=hint)
    return found


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout: float | None = None,
    accept: Sequence[int] = (0,),
) -> Completed:
    """Run a program to its end and capture its output.

    Args:
        argv: program and arguments.
        cwd: its working folder.
        env: its whole environment; `None` inherits ours.
        stdin: what it reads; nothing by default.
        timeout: seconds after which it is killed.
        accept: exit statuses that are not errors.

    Raises:
        ToolError: the program does not exist, or may not be run.
        ProcessError: it ended with another status, or ran out of time.
    """
    command = tuple(str(part) for part in argv)
    started = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=env,
            input=stdin if stdin is not None else b"",
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except OSError as error:
        raise _not_started(command, error) from error
    except subprocess.TimeoutExpired as error:
        raise ProcessError(
            f"{_title(command)} … did not end", because=f"it ran for more than {timeout:g} s"
        ) from error
    result = Completed(
        command,
        done.returncode,
        done.stdout,
        done.stderr.decode(errors="replace"),
        time.monotonic() - started,
    )
    _log(result, env)
    _require(result, accept)
    return result


def stream(argv: Sequence[str | Path], *, accept: Sequence[int] = (0,)) -> Iterator[bytes]:
    """Run a program and give its standard output in pieces of a MiB at most, while it runs.

    For output that is too much to be held. A caller that stops reading ends the program.

    Raises:
        ToolError: the program does not exist, or may not be run.
        ProcessError: it ended with a status that is not in *accept*.
    """
    command = tuple(str(part) for part in argv)
    started = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
        except OSError as error:
            raise _not_started(command, error) from error
        with child:
            try:
                while child.stdout is not None and (piece := child.stdout.read(_PIECE)):
                    yield piece
            except BaseException:
                child.kill()
                raise
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    result = Completed(command, child.returncode, b"", said, time.monotonic() - started)
    _log(result, None)
    _require(result, accept)


def _require(result: Completed, accept: Sequence[int]) -> None:
    if result.status not in accept:
        raise ProcessError(
            f"{_title(result.argv)} … failed with status {result.status}",
            because=(result.stderr.strip() or result.text)[-_TAIL:] or "it said nothing",
        )


def _title(command: tuple[str, ...]) -> str:
    """The first words of *command*, without what is only configuration: ``git --git-dir X fetch``."""
    pairs = zip(command, ("", *command), strict=False)
    return shlex.join([word for word, before in pairs if "-c" not in {word, before}][:4])


def _not_started(command: tuple[str, ...], error: OSError) -> ToolError:
    what = "was not found" if isinstance(error, FileNotFoundError) else "could not be started"
    return ToolError(f"the program {command[0]!r} {what}", because=str(error))


def _log(result: Completed, env: Mapping[str, str] | None) -> None:
    changed: dict[str, str | None] = {}
    if env is not None:
        changed |= {name: None for name in os.environ if name not in env}
        new = {name: value for name, value in env.items() if os.environ.get(name) != value}
        changed |= {name: "***" if name.endswith(("_KEY", "_TOKEN")) else new[name] for name in new}
    emit(
        "process.ended",
        argv=shlex.join(result.argv),
        env=changed,
        status=result.status,
        seconds=round(result.seconds, 4),
    )


@dataclass(frozen=True)
class Limits:
    """How much a child may use: wall-clock seconds, resident MiB over its process tree."""

    seconds: float
    memory_mib: int


class LimitsExceeded(Exception):  # noqa: N818 - an outcome for the caller to judge, not a user-facing error
    """The child was killed because it passed one of its limits."""


def run_limited(
    argv: Sequence[str | Path],
    *,
    limits: Limits,
    cwd: Path,
    env: Mapping[str, str],
    log: Path,
    stop: threading.Event | None = None,
) -> Completed:
    """Run a program in a process group of its own, output to *log*, within *limits*.

    Whatever happens, no process of the group is left behind.

    Args:
        argv: program and arguments.
        limits: how much it may use.
        cwd: its working folder.
        env: its whole environment.
        log: file that takes its output.
        stop: when set, from another thread, the program is killed: being in a group of its own, it
            hears nothing of a Ctrl-C.

    Raises:
        ToolError: the program does not exist, or may not be run.
        LimitsExceeded: it was killed; the message says which limit it passed.
    """
    command = tuple(str(part) for part in argv)
    started = time.monotonic()
    with log.open("wb") as output:
        child = _in_session(command, command, cwd, env, output)
        try:
            _watch(child, limits, started, stop)
        finally:
            _kill_group(child)
    text = log.read_bytes()[-_TAIL:].decode(errors="replace")
    result = Completed(command, child.returncode, b"", text, time.monotonic() - started)
    _log(result, env)
    return result


def _in_session(
    argv: Sequence[str], command: tuple[str, ...], cwd: Path, env: Mapping[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start *argv* in a session of its own, all that it says going to *output*.

    Raises:
        ToolError: *command*, which is what the caller asked for, cannot be started.
    """
    try:
        return subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise _not_started(command, error) from error


def _watch(
    child: subprocess.Popen[bytes], limits: Limits, started: float, stop: threading.Event | None
) -> None:
    while True:
        try:
            child.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            if stop is not None and stop.is_set():
                raise LimitsExceeded("the run was interrupted") from None
            if time.monotonic() - started > limits.seconds:
                raise LimitsExceeded(f"it ran for more than {limits.seconds:g} s") from None
            if (used := _resident_mib(child.pid)) > limits.memory_mib:
                raise LimitsExceeded(f"it used {used} MiB of {limits.memory_mib} MiB of memory") from None
        else:
            return


def _resident_mib(pid: int) -> int:
    import psutil

    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    used = 0
    for process in family:
        # One that ended since it was listed uses nothing; the others still count.
        with contextlib.suppress(psutil.NoSuchProcess):
            used += process.memory_info().rss
    return used >> 20


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


Companion: TypeAlias = subprocess.Popen[bytes]


def companion(argv: Sequence[str | Path]) -> Companion:
    """Start a program in our own process group, and watch over nothing.

    It reads from a pipe that ends when we do, and writes nowhere. For a server that has processes of its own;
    whoever wants a program to end with us takes `start`.

    Raises:
        ToolError: the program does not exist, or may not be run.
    """
    command = tuple(str(part) for part in argv)
    silent = subprocess.DEVNULL
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=silent, stderr=silent)
    except OSError as error:
        raise _not_started(command, error) from error


# Programs under way ------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a program that was under way ended.

    Attributes:
        status: its exit status; negative is the signal that ended it.
        seconds: wall-clock time.
        cpu_seconds: CPU time of it and of every descendant that was waited for.
        peak_mib: most resident memory of any one of these processes.
    """

    status: int
    seconds: float
    cpu_seconds: float
    peak_mib: int


class Running:
    """A program under way in a session of its own; see `start`."""

    def __init__(self, child: subprocess.Popen[bytes], argv: tuple[str, ...], env: Mapping[str, str]) -> None:
        self.argv, self.pid = argv, child.pid
        self.started = time.monotonic()
        self._child, self._env = child, env
        self._ended: Ended | None = None

    def poll(self) -> Ended | None:
        """How it ended, or `None` while it runs; what it left behind in its group is killed."""
        # Looked at without being reaped, so that its id still names its group and nothing else.
        if self._ended is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self._end()
        return self._ended

    def ask_to_end(self) -> None:
        """Send SIGTERM to the program, if it runs; its guard would kill the whole group on hearing it."""
        import psutil

        with _vanishing():
            for program in psutil.Process(self.pid).children():
                program.terminate()

    def kill(self) -> Ended:
        """Kill it with all of its group, unless it has ended; returns how it ended once all are gone."""
        if self._ended is None:
            self._end()
            _wait_until_gone(self.pid)
        return self._end()

    def _end(self) -> Ended:
        if self._ended is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            _, status, usage = os.wait4(self.pid, 0)
            self._child.returncode = os.waitstatus_to_exitcode(status)
            self._ended = Ended(
                status=self._child.returncode,
                seconds=time.monotonic() - self.started,
                cpu_seconds=usage.ru_utime + usage.ru_stime,
                peak_mib=usage.ru_maxrss >> 10,
            )
            _log(Completed(self.argv, self._ended.status, b"", "", self._ended.seconds), self._env)
        return self._ended


def start(
    argv: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str],
    log: Path,
    nice: int = 0,
    oom_score_adj: int = 0,
) -> Running:
    """Start a program in a session of its own and return at once.

    It reads nothing. It and all that it starts are killed when this process dies, however it dies, and also
    when the *thread* that started it ends: so the kernel counts (prctl(2)).

    Args:
        argv: program and arguments.
        cwd: its working folder.
        env: its whole environment.
        log: file that takes its output, below the command that gave it; what was there is replaced.
        nice: by how much it is nicer than we are.
        oom_score_adj: how much sooner than others it is killed when memory runs out, up to 1000.

    Raises:
        ToolError: the program does not exist, or may not be run.
    """
    command = tuple(str(part) for part in argv)
    _check_startable(command, cwd, env)
    guard = Path(__file__).with_name("guard.py")
    guarded = [
        sys.executable,
        "-I",
        "-S",
        str(guard),
        *map(str, (os.getpid(), nice, oom_score_adj)),
        *command,
    ]
    with log.open("wb") as output:
        output.write(f"{shlex.join(command)}\n\n".encode(errors="surrogateescape"))
        output.flush()
        child = _in_session(guarded, command, cwd, env, output)
    return Running(child, command, dict(env))


def _check_startable(command: tuple[str, ...], cwd: Path, env: Mapping[str, str]) -> None:
    program = command[0]
    place = str(cwd / program) if os.sep in program else program
    if shutil.which(place, path=env.get("PATH", os.defpath)) is None:
        number = errno.EACCES if os.sep in program and Path(place).exists() else errno.ENOENT
        raise _not_started(command, OSError(number, os.strerror(number), program))


def resident_mib(sessions: Collection[int]) -> dict[int, int]:
    """Resident memory, in MiB, of all processes of each of *sessions* (ids of `Running` programs).

    The guard that leads a session does not count.
    """
    used = dict.fromkeys(sessions, 0)
    for session, process in _members(used):
        with _vanishing():
            used[session] += process.memory_info().rss
    return {session: size >> 20 for session, size in used.items()}


def _wait_until_gone(session: int) -> None:
    """Wait until nothing of *session* runs: killed processes may be busy in the kernel for a moment."""
    import psutil

    end = time.monotonic() + _DYING_S
    while time.monotonic() < end:
        alive = False
        for _, process in _members([session]):
            with _vanishing():
                alive |= process.status() != psutil.STATUS_ZOMBIE
        if not alive:
            return
        time.sleep(0.01)


def _members(sessions: Collection[int]) -> Iterator[tuple[int, psutil.Process]]:
    """Every process of *sessions* but their leaders, each with its session."""
    import psutil

    for pid in psutil.pids() if sessions else ():
        with _vanishing():
            session = os.getsid(pid)
            if session in sessions and pid != session:
                yield session, psutil.Process(pid)


def _vanishing() -> contextlib.suppress:
    """Pass over a process that ended since it was listed; the others still count."""
    import psutil

    return contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error)
