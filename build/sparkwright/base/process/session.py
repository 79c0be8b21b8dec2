"""Start a program in a session of its own, so that it and all that it starts can be monitored and ended.

The program stands behind ``guard.py``, which kills the whole group when this process dies.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import shlex
import shutil
import signal
import subprocess  # noqa: TID251
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from sparkwright.base.process.run import TAIL, Completed, log_end, not_started

if TYPE_CHECKING:
    import psutil

_DYING_S = 5.0


def start_session(
    argv: Sequence[str], command: tuple[str, ...], cwd: Path, env: Mapping[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start *argv* in a session of its own, with its output going to *output*."""
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
        raise not_started(command, error) from error


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill the process group that *child* leads, and wait for *child*."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@dataclass(frozen=True)
class Ended:
    """The result of a program that ran in a session.

    Attributes:
        status: its exit status; negative is the signal that ended it.
        peak_mib: most resident memory of any one of these processes.
    """

    status: int
    seconds: float
    cpu_seconds: float
    peak_mib: int


class Running:
    """A running program in a session of its own; see `start`."""

    def __init__(self, child: subprocess.Popen[bytes], argv: tuple[str, ...], env: Mapping[str, str]) -> None:
        self.argv, self.pid = argv, child.pid
        self.started = time.monotonic()
        self._child, self._env = child, env
        self._ended: Ended | None = None

    def poll(self) -> Ended | None:
        """Return its result, or `None` while it runs; kill the rest of its group once it ended."""
        # Polled without reaping, so that its id still names its group and nothing else.
        if self._ended is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self._end()
        return self._ended

    def terminate(self) -> None:
        """Send SIGTERM to the program, if it runs, but not to its guard, which would kill the whole group."""
        import psutil

        with _vanishing():
            for program in psutil.Process(self.pid).children():
                program.terminate()

    def kill(self) -> Ended:
        """Kill it with all of its group, unless it has ended; return its result once all are gone."""
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
            log_end(Completed(self.argv, self._ended.status, b"", "", self._ended.seconds), self._env)
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
    when the *thread* that started it ends: that is how the kernel defines it (prctl(2)).

    *env* is its whole environment; *log* a file for its output, below the command line, which is replaced;
    *oom_score_adj* its priority to be killed when memory runs out, up to 1000.

    Raises:
        ToolError: the program does not exist, or may not be run.
    """
    command = tuple(str(part) for part in argv)
    guarded = _guarded(command, cwd, env, nice, oom_score_adj)
    log.write_bytes(b"")
    with log.open("ab") as output:  # appended to, so that the file can be cut while the program runs
        output.write(f"{shlex.join(command)}\n\n".encode(errors="surrogateescape"))
        output.flush()
        child = start_session(guarded, command, cwd, env, output)
    return Running(child, command, dict(env))


def _guarded(
    command: tuple[str, ...], cwd: Path, env: Mapping[str, str], nice: int = 0, oom_score_adj: int = 0
) -> list[str]:
    """Return *command* behind ``guard.py``."""
    program = command[0]
    place = str(cwd / program) if os.sep in program else program
    if shutil.which(place, path=env.get("PATH", os.defpath)) is None:
        number = errno.EACCES if os.sep in program and Path(place).exists() else errno.ENOENT
        raise not_started(command, OSError(number, os.strerror(number), program))
    guard = Path(__file__).with_name("guard.py")
    numbers = (os.getpid(), nice, oom_score_adj)
    return [sys.executable, "-I", "-S", str(guard), *map(str, numbers), *command]


def resident_mib(sessions: Collection[int]) -> dict[int, int]:
    """Return the resident memory, in MiB, of all processes of each of *sessions* (ids of `Running` programs).

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
    """Yield every process of *sessions* but their leaders, each with its session."""
    import psutil

    for pid in psutil.pids() if sessions else ():
        with _vanishing():
            session = os.getsid(pid)
            if session in sessions and pid != session:
                yield session, psutil.Process(pid)


def _vanishing() -> contextlib.suppress:
    """Ignore a process that ended since it was listed; the others still count."""
    import psutil

    return contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error)


# Run a program within limits of time and memory, and leave no process of it behind ----------------

_TICK_S = 0.1
_MEMORY_TICKS = 5


@dataclass(frozen=True)
class ProcessLimits:
    """Limits of a child: wall-clock seconds, resident MiB over its process tree."""

    seconds: float
    memory_mib: int


class LimitsExceeded(Exception):  # noqa: N818 - an outcome for the caller to judge, not a user-facing error
    """The child was killed because it passed one of its limits."""


def run_limited(
    argv: Sequence[str | Path],
    *,
    limits: ProcessLimits,
    cwd: Path,
    env: Mapping[str, str],
    log: Path,
    stop: threading.Event | None = None,
    guard: bool = False,
) -> Completed:
    """Run a program in a process group of its own, output to *log*, within *limits*.

    No process of the group is left behind, with *guard* not even if this process is killed.

    *stop* kills it when set from another thread: in a group of its own, it receives no Ctrl-C.

    Raises:
        ToolError: the program does not exist, or may not be run.
        LimitsExceeded: it was killed; the message says which limit it passed.
    """
    command = tuple(str(part) for part in argv)
    started = time.monotonic()
    with log.open("wb") as output:
        argv = _guarded(command, cwd, env) if guard else command
        child = start_session(argv, command, cwd, env, output)
        try:
            watch(child.pid, lambda seconds: _ended(child, seconds), limits, stop)
        finally:
            kill_group(child)
    text = log.read_bytes()[-TAIL:].decode(errors="replace")
    result = Completed(command, child.returncode, b"", text, time.monotonic() - started)
    log_end(result, env)
    return result


def watch(
    pid: int, ended: Callable[[float], bool], limits: ProcessLimits, stop: threading.Event | None
) -> None:
    """Return when a program has ended; the caller kills what is left of it in any case.

    *ended* waits so many seconds for its end and tells if it came.
    """
    started = time.monotonic()
    for tick in itertools.count():
        if ended(_TICK_S):
            return
        if stop is not None and stop.is_set():
            raise LimitsExceeded("the run was interrupted")
        if time.monotonic() - started > limits.seconds:
            raise LimitsExceeded(f"it ran for more than {limits.seconds:g} s")
        # Reading the memory of a family takes milliseconds, as every process has to be asked for its parent.
        if tick % _MEMORY_TICKS == 0 and (used := family_mib(pid)) > limits.memory_mib:
            raise LimitsExceeded(f"it used {used:.0f} MiB of {limits.memory_mib} MiB of memory")


def _ended(child: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        child.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def family_mib(pid: int) -> float:
    """Return the resident memory of *pid* and its descendants, in MiB; -1 when it is gone."""
    import psutil

    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.Error:
        return -1
    used = 0
    for process in family:
        with _vanishing():
            used += process.memory_info().rss
    return used / (1 << 20)


# Talk with a program line by line while it runs ---------------------------------------------------

_PIECE = 1 << 16
_LONGEST = 1 << 27  # of a line: no program says so much at once


class Dialogue:
    """A running program in a session of its own, for the length of a ``with`` block.

    In a session of its own it gets no Ctrl-C: it learns of the end of this process, however that comes, by
    the end of its input, and has time to clean up.
    """

    def __init__(
        self, argv: Sequence[str | Path], *, patience_s: float = 60.0, output: IO[bytes] | None = None
    ) -> None:
        """Start the program.

        It is killed *patience_s* after the end of its input; a file *output* takes its output, of which
        `line` returns nothing then.
        """
        self.argv = tuple(str(part) for part in argv)
        self._patience_s, self._started = patience_s, time.monotonic()
        self._rest, self._searched = bytearray(), 0
        self._result: Completed | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the dialogue
        pipe = subprocess.PIPE
        try:
            self._child = subprocess.Popen(
                self.argv,
                stdin=pipe,
                stdout=output or pipe,
                stderr=self._errors,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise not_started(self.argv, error) from error

    def send(self, data: bytes) -> bool:
        """Write *data* to its input; return false if it no longer reads."""
        if self._child.stdin is None:
            return False
        left = memoryview(data)
        try:
            while left:
                left = left[self._child.stdin.write(left) or 0 :]
        except OSError:
            return False
        return True

    def line(self, wait_s: float) -> bytes | None:
        """Return its next line without the newline; `None` if none came in time.

        Raises:
            EOFError: its output has ended, or has a line without end.
        """
        end = time.monotonic() + wait_s
        while (at := self._rest.find(b"\n", self._searched)) < 0:
            self._searched = len(self._rest)
            if self._child.stdout is None:
                raise EOFError
            ready, _, _ = select.select([self._child.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            piece = os.read(self._child.stdout.fileno(), _PIECE)
            if not piece or len(self._rest) > _LONGEST:
                raise EOFError
            self._rest += piece
        found = bytes(self._rest[:at])
        del self._rest[: at + 1]
        self._searched = 0
        return found

    def poll(self) -> int | None:
        """Return its exit status; `None` while it runs."""
        return self._child.poll()

    def kill(self) -> None:
        """Kill it; `end` returns its result."""
        kill_group(self._child)

    def end(self) -> Completed:
        """End its input, wait until it has ended, and return the result; kill it where it takes too long."""
        if self._result is not None:
            return self._result
        if self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.close()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(self._patience_s)
        finally:
            kill_group(self._child)
            if self._child.stdout is not None:
                self._child.stdout.close()
        with self._errors as errors:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - TAIL))
            said = errors.read().decode(errors="replace")
        seconds = time.monotonic() - self._started
        self._result = Completed(self.argv, self._child.returncode, b"", said, seconds)
        log_end(self._result, None)
        return self._result

    def __enter__(self) -> Self:
        """Return the dialogue itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.end()
