"""The one place that starts a program.

Arguments are always a list and never meet a shell. Each start is logged as an event with
the *difference* of its environment only, which is what one needs to repeat it by hand.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.errors import ProcessError, ToolError
from sparkwright.events import emit

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["Completed", "Limits", "LimitsExceeded", "run", "run_limited", "stream", "which"]

_TAIL = 4000
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
        changed |= {name: value for name, value in env.items() if os.environ.get(name) != value}
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
        try:
            child = subprocess.Popen(
                command,
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise _not_started(command, error) from error
        try:
            _watch(child, limits, started, stop)
        finally:
            _kill_group(child)
    text = log.read_bytes()[-_TAIL:].decode(errors="replace")
    result = Completed(command, child.returncode, b"", text, time.monotonic() - started)
    _log(result, env)
    return result


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
