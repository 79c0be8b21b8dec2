"""Start another script so that it cannot outlive who started this one: ``launch.py PID SCRIPT ARGUMENTS``.

A command that is killed cannot end its probes, so the kernel does (prctl(2), PR_SET_PDEATHSIG). No part
of what a proof hangs on: it changes nothing about how the script runs. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Ask the kernel for SIGKILL when *parent*, by process id, dies; end at once if it is dead already."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux: limits still end what hangs
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("who started this is gone")


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")
