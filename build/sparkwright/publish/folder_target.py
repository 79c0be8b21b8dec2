"""A folder as a target and as a mirror, such as the root of a static web server; see `target`."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sparkwright.base.digests import CHUNK, copy_hashed, sha256_bytes, sha256_file, sha256_stream
from sparkwright.base.errors import UploadError
from sparkwright.publish.target import (
    MOST_BYTES,
    Entry,
    Stored,
    checked_path,
    hashed,
    lost_race,
    require_digest,
)
from sparkwright.store import atomic_file, hold, storing, write_atomically

_LOCK = ".publish.lock"
_INSTEAD = "use another folder"
_COPY = "copy the channel again from where it was published"


@dataclass(frozen=True)
class FolderTarget:
    """A folder, made when missing; the tag of a file is its SHA-256."""

    folder: Path

    def read(self, path: str) -> Stored | None:
        """See `Target.read`.

        Raises:
            StorageError, UploadError: it is no plain file of the folder, or too large.
        """
        with self._open(path) as stream:
            data = stream.read(MOST_BYTES + 1) if stream else None
        if data is None:
            return None
        if len(data) > MOST_BYTES:
            raise UploadError(
                f"{self.folder / path} was not read",
                because=f"it has more than {MOST_BYTES} bytes, which no file of a channel has",
                next_step=_COPY,
            )
        return Stored(data, sha256_bytes(data))

    def digest(self, path: str, most: int) -> tuple[str, int] | None:
        """See `Mirror.digest`."""
        with self._open(path) as stream:
            return hashed(iter(lambda: stream.read(CHUNK), b""), most) if stream else None

    def put_file(self, path: str, file: Path, sha256: str) -> None:
        """See `Target.put_file`."""
        at = self._place(path)
        with self._open(path) as found:
            if found is not None:
                require_digest(str(at), sha256_stream(found), sha256)
                return
        with _using(f"writing {path} in {self.folder}"):
            at.parent.mkdir(parents=True, exist_ok=True)
            with (
                atomic_file(at) as handle,
                os.fdopen(os.dup(handle), "wb") as copy,
                file.open("rb") as original,
            ):
                require_digest(str(file), copy_hashed(original, copy), sha256)
            require_digest(str(at), sha256_file(at), sha256)

    def replace(self, path: str, data: bytes, *, expected: str | None) -> str:
        """See `Target.replace`."""
        at = self._place(path)
        with (
            _using(f"writing {path} in {self.folder}"),
            hold(self.folder / _LOCK, f"the channels in {self.folder}"),
        ):
            found = self.read(path)
            if (found.tag if found else None) != expected:
                raise lost_race(path, str(self.folder))
            at.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(at, data)
        return sha256_bytes(data)

    def files(self, prefix: str) -> dict[str, Entry]:
        """See `Target.files`; links are among them, and not followed."""
        start = self._at(prefix.rstrip("/")) if prefix else self.folder
        with _using(f"listing {start}"):
            found = {}
            for at in start.rglob("*"):
                with contextlib.suppress(FileNotFoundError):  # removed since its folder was read
                    state = at.lstat()
                    if not stat.S_ISDIR(state.st_mode) and not at.name.startswith("."):
                        path = at.relative_to(self.folder).as_posix()
                        found[path] = Entry(state.st_size, state.st_mtime)
            return found

    def remove(self, path: str) -> None:
        """See `Target.remove`; its folder stays, as another publisher may be about to write into it."""
        with _using(f"removing {path} in {self.folder}"):
            self._place(path).unlink(missing_ok=True)

    def url(self, path: str) -> str:
        """See `Mirror.url`."""
        return self._at(path).absolute().as_uri()

    def _at(self, path: str) -> Path:
        return self.folder / checked_path(path)

    def _place(self, path: str) -> Path:
        """Return the place of *path* for a change of it, which no link on the way leads elsewhere."""
        at = self._at(path)
        link = next(
            (above for above in at.parents if self.folder in above.parents and above.is_symlink()), None
        )
        if link is not None:
            raise UploadError(
                f"{path} was not changed in {self.folder}",
                because=f"{link} is a link: the file would be written to the folder that it points to",
                next_step="put a folder in its place; the folder of a target may be a link itself",
            )
        return at

    @contextlib.contextmanager
    def _open(self, path: str) -> Iterator[BinaryIO | None]:
        """Give the file at *path*, `None` if there is none; a pipe is not waited for."""
        at = self._at(path)
        with _using(f"reading {at}"):
            try:
                handle = os.open(at, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                yield None
                return
            with os.fdopen(handle, "rb") as stream:
                within = at.resolve().is_relative_to(self.folder.resolve())
                if not (within and stat.S_ISREG(os.fstat(handle).st_mode)):
                    raise UploadError(
                        f"{at} was not read", because="it is no plain file of that folder", next_step=_COPY
                    )
                yield stream


@contextlib.contextmanager
def _using(what: str) -> Iterator[None]:
    """Turn an unusable folder into one error about *what*."""
    try:
        with storing(what, instead=_INSTEAD):
            yield
    except OSError as error:
        raise UploadError(
            f"{what} failed", because=error.strerror or str(error), next_step=_INSTEAD
        ) from error
