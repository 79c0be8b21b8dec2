"""Run a program within limits of time and memory, and leave no process of it behind."""

from __future__ import annotations

import contextlib
import itertools
import subprocess  # noqa: TID251
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.process.run import TAIL, Completed, log_end
from sparkwright.base.process.session import kill_group, start_session

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
) -> Completed:
    """Run a program in a process group of its own, output to *log*, within *limits*.

    Whatever happens, no process of the group is left behind.

    Args:
        argv: program and arguments.
        limits: limits of time and memory.
        cwd: its working folder.
        env: its whole environment.
        log: file that takes its output.
        stop: when set, from another thread, the program is killed: in a group of its own, it
            receives no Ctrl-C.

    Raises:
        ToolError: the program does not exist, or may not be run.
        LimitsExceeded: it was killed; the message says which limit it passed.
    """
    command = tuple(str(part) for part in argv)
    started = time.monotonic()
    with log.open("wb") as output:
        child = start_session(command, command, cwd, env, output)
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

    Args:
        pid: its process id.
        ended: waits so many seconds for its end and tells if it came.
        limits: limits of time and memory.
        stop: when set, it is to be killed.

    Raises:
        LimitsExceeded: it is to be killed; the message says which limit it passed.
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
        if tick % _MEMORY_TICKS == 0 and (used := _resident_mib(pid)) > limits.memory_mib:
            raise LimitsExceeded(f"it used {used} MiB of {limits.memory_mib} MiB of memory")


def _ended(child: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        child.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _resident_mib(pid: int) -> int:
    import psutil

    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    used = 0
    for process in family:
        # A process that ended since it was listed uses nothing; the others still count.
        with contextlib.suppress(psutil.NoSuchProcess):
            used += process.memory_info().rss
    return used >> 20
