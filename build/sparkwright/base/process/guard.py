"""Run a program whose processes all end with its parent: ``guard.py PARENT NICE OOM_SCORE_ADJ COMMAND``.

A compiler driver starts compilers of its own, and a signal at its parent's death (prctl(2),
PR_SET_PDEATHSIG) reaches only the driver. The guard therefore stays between the two: it leads the session,
gets the signal, and kills the whole group. It ends as the program ends, by the same status or signal.

A program of its own, run by its path in an isolated interpreter. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_NOT_STARTED = 127


def kill_group(_number: int = 0, _frame: object = None) -> None:
    """Kill every process of our group, this one too."""
    os.killpg(0, signal.SIGKILL)


def kill_group_on_parent_death(parent: int) -> None:
    """Kill the group when the process *parent* dies; at once if it is dead already."""
    signal.signal(signal.SIGTERM, kill_group)
    with contextlib.suppress(OSError, AttributeError):  # not Linux: the parent still ends us when it can
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        kill_group()


def environment() -> dict[bytes, bytes]:
    """Return the environment as the guard got it; Python adds ``LC_CTYPE`` to ``os.environ`` (PEP 538)."""
    try:
        raw = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(os.environb)
    return dict(entry.split(b"=", 1) for entry in raw.split(b"\0") if b"=" in entry)


def end_like(status: int) -> int:
    """Return the exit status for a child's *status*; if a signal ended it, end by the same signal."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def main(parent: int, nice: int, oom_score_adj: int, argv: list[str]) -> int:
    """Run *argv* to its end; return the exit status."""
    kill_group_on_parent_death(parent)
    os.nice(nice)
    with contextlib.suppress(OSError):
        # Where the scheduler groups by session (sched(7), autogroup), niceness counts within ours alone; what
        # weighs against the others is the group's own, and desktop kernels group by default.
        Path("/proc/self/autogroup").write_text(str(nice), encoding="ascii")
    with contextlib.suppress(OSError):  # it may only be raised, and not everywhere
        Path("/proc/self/oom_score_adj").write_text(str(oom_score_adj), encoding="ascii")
    try:
        child = os.posix_spawnp(  # noqa: TID251
            argv[0], argv, environment(), setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM]
        )
    except OSError as error:
        os.write(2, f"error: {argv[0]} could not be started: {error.strerror}\n".encode())
        return _NOT_STARTED
    return end_like(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
