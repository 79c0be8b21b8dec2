"""A dry run: a target on which writes are listed and kept in memory, and nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sparkwright.base.digests import sha256_bytes, sha256_file
from sparkwright.publish import lease
from sparkwright.publish.target import Stored, Target, checked_path, lost_race, require_digest

_SMALL = 1 << 20
"""Bytes up to which a file that is there already is read and compared; of a larger one the size is."""


@dataclass(frozen=True)
class PlannedWrite:
    """A write that was not made.

    Attributes:
        path: of the file at the target.
        size: in bytes.
        change: ``replaced`` and ``removed`` are of a file that is there.
    """

    path: str
    size: int
    change: Literal["new", "replaced", "removed"]


@dataclass(frozen=True)
class PlannedTarget:
    """A stand-in for *target* that lists writes and makes none; see `Target` for the methods.

    The lease of another writer is not waited for, and one of its own is not listed.

    Attributes:
        target: the target, which is only read.
        writes: in their order.
        files: content of the planned files by path; of a removed one `None`.
    """

    target: Target
    writes: list[PlannedWrite] = field(default_factory=list)
    files: dict[str, bytes | Path | None] = field(default_factory=dict)

    def read(self, path: str) -> Stored | None:
        """See `Target.read`."""
        if path not in self.files:
            return None if path == lease.PATH else self.target.read(path)
        content = self.files[path]
        if content is None:
            return None
        data = content.read_bytes() if isinstance(content, Path) else content
        return Stored(data, sha256_bytes(data))

    def put_file(self, path: str, file: Path, sha256: str) -> None:
        """Plan *file* at *path* unless it is there.

        Raises:
            TamperedError: other bytes are there.
        """
        size, found = file.stat().st_size, self.sizes(path.rpartition("/")[0]).get(checked_path(path))
        require_digest(str(file), sha256_file(file), sha256)
        if found is None:
            self._plan(PlannedWrite(path, size, "new"), file.read_bytes() if size <= _SMALL else file)
            return
        stored = self.read(path) if found <= _SMALL else None
        actual = sha256_bytes(stored.data) if stored else sha256 if found == size else "another one's"
        require_digest(self.url(path), actual, sha256)

    def replace(self, path: str, data: bytes, *, expected: str | None) -> str:
        """See `Target.replace`."""
        found = self.read(checked_path(path))
        if (found.tag if found else None) != expected:
            raise lost_race(path, self.url(path))
        self._plan(PlannedWrite(path, len(data), "replaced" if found else "new"), data)
        return sha256_bytes(data)

    def sizes(self, prefix: str) -> dict[str, int]:
        """See `Target.sizes`."""
        found = self.target.sizes(prefix)
        below = prefix.rstrip("/") + "/" if prefix else ""
        found |= {write.path: write.size for write in self.writes if write.path.startswith(below)}
        return {path: size for path, size in found.items() if self.files.get(path, b"") is not None}

    def remove(self, path: str) -> None:
        """Plan the removal of *path*."""
        size = self.sizes(path.rpartition("/")[0]).get(checked_path(path), 0)
        self._plan(PlannedWrite(path, size, "removed"), None)

    def url(self, path: str) -> str:
        """See `Target.url`."""
        return self.target.url(path)

    def elsewhere(self, path: str) -> str:
        """See `Target.elsewhere`."""
        return self.target.elsewhere(path)

    def _plan(self, write: PlannedWrite, content: bytes | Path | None) -> None:
        self.files[write.path] = content
        if write.path != lease.PATH:
            self.writes.append(write)
