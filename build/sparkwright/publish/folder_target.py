"""A folder as a target, such as the root of a static web server; see `target`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.digests import copy_hashed, sha256_bytes, sha256_file
from sparkwright.base.errors import LostRaceError, UploadError
from sparkwright.publish.target import Stored, checked_path, require_digest
from sparkwright.store import atomic_file, hold, storing, write_atomically

_LOCK = ".publish.lock"
_INSTEAD = "publish into another folder"


@dataclass(frozen=True)
class FolderTarget:
    """A folder; the tag of a file is its SHA-256.

    Attributes:
        folder: made when missing.
    """

    folder: Path

    def read(self, path: str) -> Stored | None:
        """See `Target.read`."""
        with self._using(f"reading {path}"):
            try:
                data = self._at(path).read_bytes()
            except FileNotFoundError:
                return None
        return Stored(data, sha256_bytes(data))

    def put_file(self, path: str, file: Path, sha256: str) -> None:
        """See `Target.put_file`."""
        at = self._at(path)
        with self._using(f"writing {path}"):
            if at.exists():
                require_digest(str(at), sha256_file(at), sha256)
                return
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
        at = self._at(path)
        with self._using(f"writing {path}"), hold(self.folder / _LOCK, f"the channels in {self.folder}"):
            found = self.read(path)
            if (found.tag if found else None) != expected:
                raise LostRaceError(
                    f"{path} was not replaced",
                    because=f"another publisher wrote it first, into {self.folder}",
                    next_step="run the same command again: it starts from what the other one published",
                )
            at.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(at, data)
        return sha256_bytes(data)

    def sizes(self, prefix: str) -> dict[str, int]:
        """See `Target.sizes`."""
        start = self._at(prefix.rstrip("/")) if prefix else self.folder
        with self._using(f"listing {prefix or self.folder}"):
            found = {}
            for at in start.rglob("*"):
                with contextlib.suppress(FileNotFoundError):  # removed since its folder was read
                    if at.is_file() and not at.name.startswith("."):
                        found[at.relative_to(self.folder).as_posix()] = at.stat().st_size
            return found

    def remove(self, path: str) -> None:
        """See `Target.remove`; its folder stays, as another publisher may be about to write into it."""
        with self._using(f"removing {path}"):
            self._at(path).unlink(missing_ok=True)

    def url(self, path: str) -> str:
        """See `Target.url`."""
        return self._at(path).absolute().as_uri()

    def elsewhere(self, path: str) -> str:
        """See `Target.elsewhere`."""
        del path
        return ""

    def _at(self, path: str) -> Path:
        return self.folder / checked_path(path)

    @contextlib.contextmanager
    def _using(self, what: str) -> Iterator[None]:
        """Turn an unusable folder into one error about *what*.

        Raises:
            StorageError: the disk is full, read-only or broken.
            UploadError: a file is in the place of a folder, or the like.
        """
        try:
            with storing(f"{what} in {self.folder}", instead=_INSTEAD):
                yield
        except OSError as error:
            raise UploadError(
                f"{what} in {self.folder} failed", because=error.strerror or str(error), next_step=_INSTEAD
            ) from error
