"""Temporary files and folders that belong to a running process, by a lock that dies with it.

A process id would not do: two containers that share a store number their processes each for itself.
The lock is the kernel's (``flock``), so that it goes when its process does, however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sparkwright.store.removal import remove_tree

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


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
