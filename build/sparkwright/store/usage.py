"""The time of last use of things in the store, and the runs that use them.

A use is noted in the times of the thing itself: a file's or record's time of access (its time of
change is left alone, it tells copies from originals), a folder's time of change (listing a folder
may alter its time of access). It is noted once an hour at most, so a hit costs one ``stat``.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparkwright.store.disk import hold, is_owned, owned_file, storing, sweep_file

NOTED_EVERY_S = 3600.0


def last_used(state: os.stat_result) -> float:
    """Return when the file or folder of that *state* was last used, in seconds since the epoch."""
    if stat.S_ISDIR(state.st_mode):
        return state.st_mtime
    return max(state.st_atime, state.st_mtime)


def note_use(path: Path, state: os.stat_result | None = None) -> None:
    """Note that *path* is used now; where that cannot be written, nothing happens."""
    with contextlib.suppress(OSError):
        state = state or path.stat()
        now = time.time_ns()
        if now - int(last_used(state) * 1e9) < NOTED_EVERY_S * 1e9:
            return
        os.utime(path, ns=(now, now if stat.S_ISDIR(state.st_mode) else state.st_mtime_ns))


@dataclass(frozen=True)
class ActiveRun:
    """A run under way, visible to others.

    Attributes:
        path: a file that is locked while it lasts.
        started: when it began, in seconds since the epoch.
    """

    path: Path
    started: float


@contextlib.contextmanager
def running(folder: Path) -> Iterator[ActiveRun]:
    """Be seen in *folder* as a run for the length of the block."""
    with contextlib.ExitStack() as stack:
        with storing(f"using the store {folder.parent}"), _locked(folder, shared=True):
            _, path = stack.enter_context(owned_file(folder, f"{os.getpid()}-"))
        yield ActiveRun(path, path.stat().st_mtime)


def claim(folder: Path, runs: Path) -> bool:
    """Note that *folder* is used now; return if it is there, and then no other run prunes it any more.

    Waits while another run removes things: nothing can be claimed between its look at their times and the
    removal. Without the folder *runs* there is no run, and so none that prunes.
    """
    with _locked(runs, shared=True) if runs.is_dir() else contextlib.nullcontext():
        note_use(folder)
        return folder.is_dir()


def no_new_runs(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Let no run begin in *folder* for the length of the block; those under way go on."""
    return _locked(folder, shared=False)


def _locked(folder: Path, *, shared: bool) -> contextlib.AbstractContextManager[None]:
    """Hold a lock on *folder* itself, so that one who only looks leaves no file behind."""
    folder.mkdir(parents=True, exist_ok=True)
    return hold(folder, "the store for a prune", shared=shared)


def oldest_run(folder: Path, *, but: ActiveRun | None = None) -> float | None:
    """Return when the oldest run seen in *folder*, other than *but*, began; `None` where there is none."""
    started = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if but is not None and path == but.path:
            continue
        with contextlib.suppress(FileNotFoundError):
            if is_owned(path):
                started.append(path.stat().st_mtime)
            else:
                sweep_file(path)
    return min(started, default=None)
