"""Simulators as forks of this process, which has imported what they need, instead of an interpreter each.

Each is still a process of its own behind a guard, in a session of its own.
"""

import gc
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from sparkwright.base.process import guard, session
from sparkwright.verify.simulator.main import main

_start_session = session.start_session
_SIMULATOR = ("-m", main.__module__)


def fork_simulators() -> None:
    """Let `sparkwright.base.process.session.start` fork this process for a simulator."""
    session.start_session = _start


def _start(
    argv: Sequence[str], command: tuple[str, ...], cwd: Path, env: Mapping[str, str], output: IO[bytes]
) -> Any:
    if command[1:3] != _SIMULATOR:
        return _start_session(argv, command, cwd, env, output)
    parent = os.getpid()
    if pid := os.fork():
        return SimpleNamespace(pid=pid, returncode=None)
    status = 1
    try:
        gc.freeze()  # what is closed below keeps its numbers, which this process uses again
        os.setsid()
        os.chdir(cwd)
        for number, other in enumerate((os.open(os.devnull, os.O_RDONLY), output.fileno(), output.fileno())):
            os.dup2(other, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115 - open to the end
        os.environ.clear()
        os.environ.update(env)
        signal.set_wakeup_fd(-1)
        guard.kill_group_on_parent_death(parent)
        if pid := os.fork():
            status = guard.end_like(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        else:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            status = main(command[3:])
    except BaseException as error:  # noqa: BLE001 - as an interpreter ends by it
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(status)
