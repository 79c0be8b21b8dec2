"""Processes of a server: which are its own, which other one listens at its port, which outlived it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import psutil

MARK = "SPARKWRIGHT_SERVER"
"""Variable of a server's environment that marks its processes."""


def runs(pid: int) -> bool:
    """Tell if a process runs; unlike `Running.poll`, this does not kill what it left behind."""
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def is_owned(leader: int | None, marker: str, process: psutil.Process) -> bool:
    """Tell if *process* belongs to the server of *leader*: by its session, its ancestors or its environment.

    Its environment alone does not tell: vLLM's processes write their titles over it.
    """
    with contextlib.suppress(psutil.Error, OSError):
        if os.getsid(process.pid) == leader or any(one.pid == leader for one in process.parents()):
            return True
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get(MARK) == marker
    return False


def other_listener(address: str, port: int, owns: Callable[[psutil.Process], bool] | None = None) -> str:
    """Return the process, in words, that may get connections to *address*, unless the server *owns* it.

    The kernel gives a connection to a listener of that very address; only where there is none, to one of all
    addresses. Empty where the server owns all of these, or this user may not look into them.
    """
    address = address.partition("%")[0]  # a link-local one has its interface
    everywhere = ("::",) if ":" in address else ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
    found: dict[str, list[int]] = {}
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port:
                found.setdefault(one.laddr.ip, []).append(one.pid or 0)
    for pid in next((found[place] for place in (address, *everywhere) if place in found), []):
        # Judged only now: a process that the server forked meanwhile has its socket as well.
        with contextlib.suppress(psutil.Error):
            if pid and not (owns and owns(psutil.Process(pid))):
                return f"{psutil.Process(pid).name()} (process {pid})"
    return ""


def marked(marker: str, leader: int = 0) -> list[psutil.Process]:
    """Return the living processes but the *leader* whose environment holds *marker*."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid not in {os.getpid(), leader} and process.environ().get(MARK) == marker:
                found.append(process)
    return found


def sweep(marker: str, seconds: float) -> int:
    """Kill the processes whose environment holds *marker*, wait for their ends, and return their number."""
    found = marked(marker)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(found, timeout=seconds)
    return len(found)
