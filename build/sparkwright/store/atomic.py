"""Whole files or none, and one clear error for a disk that is full, read-only or broken."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from sparkwright.base.errors import StorageError
from sparkwright.store.owned import owned_file, sweep_file


@contextlib.contextmanager
def storing(what: str, *, instead: str = "point SPARKWRIGHT_HOME to another disk") -> Iterator[None]:
    """Turn a full, read-only or broken disk into one clear error about *what*.

    Args:
        what: what is being done.
        instead: what helps where the place itself cannot be mended.

    Raises:
        StorageError: the block raised such an `OSError`.
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

    Args:
        path: the file; only its owner can read it before it is complete.
        mode: its permissions.
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
