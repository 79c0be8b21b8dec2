"""Processes of engines, each in a session of its own, which end with the script that started them.

A script that is ended by SIGTERM, as by ``timeout``, would otherwise leave its engines on the card.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

STOPPED = 128 + signal.SIGTERM
"""Exit status of a script that SIGTERM ended."""
_live: set[int] = set()
_stop = threading.Event()


def _end(*_: object) -> None:
    """End every session; `session` leaves the script from there, as it may be waiting in other threads."""
    _stop.set()
    for leader in tuple(_live):
        _kill(leader)


def _kill(leader: int) -> None:
    """Kill the session of *leader*, and what it started in other sessions, as parts of a script do."""
    below = _descendants(leader)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    for process in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _descendants(leader: int) -> list[int]:
    """Return the processes that *leader* started, and those that they started."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = children.get(leader, [])
    for one in found:  # grows meanwhile
        found += children.get(one, [])
    return found


def stopped() -> bool:
    """Return whether SIGTERM has arrived since engines were guarded."""
    return _stop.is_set()


def _leave_if_stopped() -> None:
    if stopped():
        raise SystemExit(STOPPED)


@contextlib.contextmanager
def ended(leader: int) -> Iterator[None]:
    """Kill the session of the process *leader* at the end of this block, or when SIGTERM arrives in it."""
    _live.add(leader)
    try:
        _leave_if_stopped()  # it came while the process was being started
        yield
    finally:
        _kill(leader)
        _live.discard(leader)
    _leave_if_stopped()


@contextlib.contextmanager
def engines_end_on_sigterm() -> Iterator[None]:
    """End every engine and then the script when SIGTERM arrives in this block.

    Signals are received by the main thread alone: put a pool of threads that run engines into this block. In
    other threads it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
    _leave_if_stopped()


@contextlib.contextmanager
def session(words: Sequence[str], log: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a session of its own, with output in *log*; kill what is left of it at the end."""
    with engines_end_on_sigterm():
        _leave_if_stopped()
        with log.open("wb") as stream:
            child = subprocess.Popen(
                words, stdout=stream, stderr=subprocess.STDOUT, env=env, start_new_session=True
            )
        try:
            with ended(child.pid):
                yield child
        finally:
            child.wait()
