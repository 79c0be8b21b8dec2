"""Locks between runs: the second run waits, reports that, and finds the work done."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sparkwright.base.errors import BusyError
from sparkwright.base.events import emit

_PATIENCE_S = 3600.0


@contextlib.contextmanager
def hold(path: Path, what: str, *, patience_s: float = _PATIENCE_S) -> Iterator[None]:
    """Hold the lock file *path* for the length of the block.

    The kernel releases it when the process dies, however it dies.

    Args:
        path: the lock file; its folder is made when missing.
        what: what the lock protects, for the message to those who wait.
        patience_s: how long to wait for another run, in seconds.

    Raises:
        BusyError: another run held it for longer than that.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            emit("lock.waiting", what=what, path=str(path))
            lock.acquire(timeout=patience_s)
    except Timeout as error:
        raise BusyError(
            f"{what} is in use",
            because=f"another run has held {path} for {patience_s:g} s",
            next_step="wait for that run to end, or end it, then start again",
        ) from error
    try:
        yield
    finally:
        lock.release()
