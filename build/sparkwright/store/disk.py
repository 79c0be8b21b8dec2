"""Files and folders on disk: whole or not there, removed with care, and locked between processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
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


# Temporary files and folders -------------------------------------------------------------------------


_LOCK = ".lock"


@contextlib.contextmanager
def owned_file(folder: Path, prefix: str) -> Iterator[tuple[int, Path]]:
    """Give a new, empty file in *folder* whose name begins with *prefix*, ours for the length of the block.

    It is gone after the block unless it was renamed.

    Yields:
        its descriptor and its path.
    """
    while True:
        handle, name = tempfile.mkstemp(prefix=prefix, dir=folder)
        if _take(handle):
            break
        os.close(handle)
    try:
        yield handle, Path(name)
    finally:
        Path(name).unlink(missing_ok=True)
        os.close(handle)


@contextlib.contextmanager
def owned_folder(parent: Path) -> Iterator[Path]:
    """Give a new folder in *parent*, ours for the length of the block and gone after it.

    Its name begins with the number of this process.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
        handle = _open_lock(folder)
        if handle is None:
            continue  # another sweep was faster
        if _take(handle):
            break
        os.close(handle)
    try:
        yield folder
    finally:
        _remove_folder(folder)
        os.close(handle)


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
    """Tell if the file at *path*, made by `owned_file`, belongs to a process that is alive."""
    with _opened(path) as handle:
        return handle is not None and not _lock(handle)


def sweep_file(path: Path) -> None:
    """Remove what `owned_file` or `shared` left at *path*, if its owner is dead."""
    with _opened(path) as handle:
        if handle is None or _lock(handle):
            path.unlink(missing_ok=True)


def sweep_folder(folder: Path) -> None:
    """Remove what `owned_folder` left at *folder*, or whatever else has no owner there."""
    if folder.is_symlink() or not folder.is_dir():
        sweep_file(folder)
        return
    try:
        handle = _open_lock(folder)
    except PermissionError:
        return  # another user's, who sweeps it
    if handle is None:
        return
    try:
        if _lock(handle):
            _remove_folder(folder)
    finally:
        os.close(handle)


def _take(handle: int) -> bool:
    """Lock a file that was just made; whether it is still there, for a sweep may have come between."""
    return _lock(handle) and os.fstat(handle).st_nlink > 0


def _lock(handle: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """Give a descriptor of the file at *path*, or `None` where it is gone or no file that has an owner."""
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


def _open_lock(folder: Path) -> int | None:
    """Return a descriptor of the folder's lock file, made when missing; `None` where the folder is gone."""
    try:
        return os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None


def _remove_folder(folder: Path) -> None:
    """Remove *folder*, whose lock we hold, and its lock last of all."""
    with contextlib.suppress(FileNotFoundError):
        folder.chmod(0o700)
        for path in folder.iterdir():
            if path.name != _LOCK:
                remove_tree(path)
        (folder / _LOCK).unlink(missing_ok=True)
        try:
            folder.rmdir()
        except OSError as error:
            # Another sweep made a new lock file in this moment: it holds that one.
            if error.errno != errno.ENOTEMPTY:
                raise


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

    Only its owner can read *path* before it is complete; *mode* are its permissions then.
    """
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


def sweep_beside(path: Path) -> None:
    """Remove what runs that were killed while they wrote *path* left beside it."""
    prefix = f".{path.name}."
    for name in os.listdir(path.parent):  # noqa: PTH208 - names are all that is wanted
        if name.startswith(prefix):
            sweep_file(path.with_name(name))


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
    path.parent.mkdir(parents=True, exist_ok=True)
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
