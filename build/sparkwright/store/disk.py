"""Files and folders on disk: whole or not there, removed with care, locked between processes, and in use."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.errors import BusyError, StorageError
from sparkwright.base.events import emit


def remove_tree(folder: Path) -> None:
    """Remove *folder* and all in it, read-only folders included.

    A missing one is fine, also when another process removes it at the same time. A file, link, socket or
    pipe of that name is removed too; nothing is ever reached through a link.
    """
    if not folder.is_dir() or folder.is_symlink():
        folder.unlink(missing_ok=True)
        return
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        with contextlib.suppress(FileNotFoundError):
            folder.chmod(0o700)
            for parent, names, _ in os.walk(folder):
                for path in (Path(parent, name) for name in names):
                    if not path.is_symlink():
                        path.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)  # says why it cannot be removed


# Temporary files and folders: each is locked by the run that made it -----------------------------------


@contextlib.contextmanager
def owned_file(folder: Path, prefix: str) -> Iterator[tuple[int, Path]]:
    """Give a new, empty file in *folder* whose name begins with *prefix*, ours for the length of the block.

    It is gone after the block unless it was renamed.

    Yields:
        its descriptor and its path.
    """
    while True:
        handle, name = tempfile.mkstemp(prefix=prefix, dir=folder)
        if _take(handle, path := Path(name)):
            break
        os.close(handle)
    try:
        yield handle, path
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


@contextlib.contextmanager
def owned_folder(parent: Path) -> Iterator[Path]:
    """Give a new folder in *parent*, ours for the length of the block and gone after it.

    Its name begins with the number of this process.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
        with _opened(folder) as handle:
            if handle is not None and _take(handle, folder):
                try:
                    yield folder
                finally:
                    remove_tree(folder)
                return


@contextlib.contextmanager
def shared(path: Path) -> Iterator[None]:
    """Keep others from sweeping any link to the file at *path* while the block lasts."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def is_owned(path: Path) -> bool:
    """Tell if what is at *path* belongs to a process that is alive."""
    with _opened(path) as handle:
        return handle is not None and not _lock(handle)


def sweep(path: Path) -> None:
    """Remove what is at *path*, a file or a folder, if its owner is dead or it has none."""
    with contextlib.suppress(PermissionError), _opened(path) as handle:  # another user's, who sweeps it
        if handle is None or _lock(handle):
            remove_tree(path)


def sweep_beside(path: Path) -> None:
    """Remove what runs that were killed while they wrote *path* left beside it."""
    prefix = f".{path.name}."
    for name in os.listdir(path.parent):  # noqa: PTH208 - names are all that is wanted
        if name.startswith(prefix):
            sweep(path.with_name(name))


def _take(handle: int, path: Path) -> bool:
    """Lock what was just made at *path*; whether it is still there, for a sweep may have come between."""
    return _lock(handle) and path.exists()


def _lock(handle: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """Give a descriptor of the file or folder at *path*; `None` where it is gone, or can have no owner."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ELOOP, errno.ENXIO}:
            raise
        handle = None
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def make_folder(folder: Path) -> None:
    """Make *folder* and those above it, where they are missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # in /proc, which holds no folders of others
        raise PermissionError(errno.EPERM, "", str(folder)) from error


# Whole files -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def storing(what: str, *, instead: str = "point SPARKWRIGHT_HOME to another disk") -> Iterator[None]:
    """Turn a full, read-only or broken disk into one clear error about *what*.

    *instead* says what helps where the place itself cannot be mended.
    """
    hints = {
        errno.ENOSPC: f"free some space, or {instead}",
        errno.EDQUOT: f"raise the quota, or {instead}",
        errno.EROFS: instead,
        errno.ENOTDIR: f"a file stands where a folder has to be: {instead}",
        errno.EEXIST: f"a file stands where a folder has to be: {instead}",
        errno.EISDIR: f"a folder stands where a file has to be: {instead}",
        errno.ENAMETOOLONG: "give a shorter name",
        errno.EACCES: f"check the owner and mode of that folder, or {instead}",
        errno.EPERM: f"check the owner and mode of that folder, or {instead}",
        errno.EIO: "check the disk",
    }
    try:
        yield
    except OSError as error:
        if error.errno not in hints:
            raise
        where = f" ({error.filename})" if error.filename else ""
        raise StorageError(
            f"{what} failed",
            because=f"{os.strerror(error.errno).lower()}{where}",
            next_step=hints[error.errno],
        ) from error


@contextlib.contextmanager
def atomic_file(path: Path, *, mode: int = 0o644) -> Iterator[int]:
    """Give a descriptor to write to; *path* appears, complete and synced, when the block succeeds.

    Its folder is made when missing. Only its owner can read *path* before it is complete; *mode* are its
    permissions then.
    """
    make_folder(path.parent)
    sweep_beside(path)
    with owned_file(path.parent, f".{path.name}.") as (handle, temporary):
        yield handle
        temporary.chmod(mode)
        os.fsync(handle)
        temporary.replace(path)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace *path* by *data*: readers see the old bytes or the new ones, never a mixture."""
    with atomic_file(path) as handle, os.fdopen(os.dup(handle), "wb") as stream:
        stream.write(data)


# Locks -----------------------------------------------------------------------------------------------


_PATIENCE_S = 3600.0
_POLL_S = 0.05


@contextlib.contextmanager
def hold(path: Path, what: str, *, patience_s: float = _PATIENCE_S, shared: bool = False) -> Iterator[None]:
    """Lock *path* for the length of the block: a folder that is there, or a file, which is made when missing.

    Another run waits, reports that, and finds the work done; with *shared* it waits for exclusive ones alone.
    The kernel releases a lock when the process dies, however it dies.

    *what* it protects is told to those who wait, *patience_s* seconds at most.
    """
    make_folder(path.parent)
    mode = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    handle = os.open(path, mode | os.O_CLOEXEC, 0o644)
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        if not _lock(handle, kind):
            emit("lock.waiting", what=what, path=str(path))
            end = time.monotonic() + patience_s
            while not _lock(handle, kind):
                if time.monotonic() >= end:
                    raise BusyError(
                        f"{what} is in use",
                        because=f"another run has held {path} for {patience_s:g} s",
                        next_step="wait for that run to end, or end it, then start again",
                    )
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)


# The time of last use of things in the store, and the runs that use them -----------------------------


# A use is noted in the times of the thing itself: a file's or record's time of access (its time of change is
# left alone, it tells copies from originals), a folder's time of change (listing a folder may alter its time
# of access). It is noted once an hour at most, so a hit costs one ``stat``.
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
                sweep(path)
    return min(started, default=None)
