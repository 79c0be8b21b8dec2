"""Files of JSON lines that one process at a time appends to, for journals that outlive a kill.

Each line is on the disk before the call returns. What a killed process leaves may end in a cut line, which is
dropped when the file is opened again. Nothing else is ever rewritten.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from sparkwright.base.errors import BusyError, ConfigError, StorageError


class JournalFile:
    """A journal's file, open for appending; one process at a time.

    Args:
        path: the file; its folder is made when missing.
        subject: the noun for messages: ``run`` or ``bisection``.

    Raises:
        BusyError: another process has it open.
        ConfigError: it is no regular file.
        StorageError: the disk is full or cannot be written.
    """

    def __init__(self, path: Path, *, subject: str) -> None:
        self.path = path
        _require_regular(path, subject)
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock(subject)
            self.empty = self._drop_cut_line() == 0
        except BaseException:
            os.close(self._file)
            raise

    def _lock(self, subject: str) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(
                f"{self.path.parent} is being written by another {subject}",
                because="its journal is locked",
                next_step=f"wait for that {subject}, or choose another folder",
            ) from error

    def _drop_cut_line(self) -> int:
        """Return the length of the whole lines, after which the file now ends, in bytes."""
        with self._writing():
            whole = self.path.read_bytes().rfind(b"\n") + 1
            os.ftruncate(self._file, whole)
        return whole

    def append(self, line: bytes) -> None:
        """Append *line*, which has no newline; it is on the disk when this returns."""
        with self._writing():
            end = os.lseek(self._file, 0, os.SEEK_END)
            left = memoryview(line + b"\n")
            try:
                while left:
                    left = left[os.write(self._file, left) :]
                os.fsync(self._file)
            except OSError:
                os.ftruncate(self._file, end)
                raise

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"{self.path} could not be written",
                because=error.strerror or str(error),
                next_step="free some space, then run the same command again: it continues from here",
            ) from error

    def close(self) -> None:
        """Close the file and release its lock."""
        os.close(self._file)

    def __enter__(self) -> Self:
        """Return the journal itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def read_lines(path: Path, *, subject: str) -> list[bytes]:
    """Return the whole lines of the journal at *path*; a cut last line is left out."""
    _require_regular(path, subject)
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            f"{path.parent} is not the folder of a {subject}",
            because=f"it has no {path.name}",
            next_step="name another one",
        ) from error
    return data[: data.rfind(b"\n") + 1].splitlines()


def _require_regular(path: Path, subject: str) -> None:
    """Refuse anything but a file or nothing at all: a pipe would never be read to its end."""
    if path.exists() and not path.is_file():
        raise ConfigError(
            f"{path} is not the journal of a {subject}",
            because=f"{path.name} is no regular file",
            next_step="name another folder",
        )
