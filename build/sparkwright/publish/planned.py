"""A dry run: a target on which writes are told as events and kept in memory, and nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import LostRaceError, TamperedError
from sparkwright.base.events import emit
from sparkwright.publish.target import Stored, StoredStat, Target, checked_path

_SMALL = 1 << 20
"""Bytes up to which a file that is there already is read and compared."""


@dataclass(frozen=True)
class PlannedWrite:
    """A write that was not made.

    Attributes:
        path: of the file at the target.
        size: in bytes.
        change: ``new``, ``replaced`` for a pointer or page that is there, or ``removed``.
    """

    path: str
    size: int
    change: Literal["new", "replaced", "removed"]


@dataclass(frozen=True)
class PlannedTarget:
    """A stand-in for *target* that records writes and makes none; see `Target` for the methods.

    Attributes:
        target: the target, which is only read.
        files: content of the planned small files by path.
        removed: paths whose removal is planned.
        listed: bytes of the files that were listed, by path.
    """

    target: Target
    writes: list[PlannedWrite] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    listed: dict[str, int] = field(default_factory=dict)

    def read(self, path: str) -> Stored | None:
        """See `Target.read`."""
        if path in self.files:
            return Stored(self.files[path], sha256_bytes(self.files[path]))
        return self.target.read(path)

    def stat(self, path: str) -> StoredStat | None:
        """See `Target.stat`."""
        found = self.read(path) if path in self.files else None
        return StoredStat(len(found.data), found.tag) if found else self.target.stat(path)

    def put_file(self, path: str, file: Path, sha256: str) -> None:
        """Plan *file* at *path* unless it is there; one that is there is compared, a large one by its size.

        Raises:
            TamperedError: other bytes are there.
        """
        size, found = file.stat().st_size, self.stat(checked_path(path))
        if found is None:
            self._plan(PlannedWrite(path, size, "new"), file.read_bytes() if size <= _SMALL else None)
            return
        stored = self.read(path) if found.size <= _SMALL else None
        if found.size != size or (stored is not None and sha256_bytes(stored.data) != sha256):
            raise TamperedError(
                f"{path} cannot be published",
                because=f"other bytes are at {self.url(path)}, and published files never change",
                next_step="find out who changed it; move it away to publish the right bytes",
            )

    def replace(self, path: str, data: bytes, *, expected: str | None) -> str:
        """See `Target.replace`."""
        found = self.read(checked_path(path))
        if (found.tag if found else None) != expected:
            raise LostRaceError(
                f"{path} cannot be replaced",
                because="another publisher wrote it meanwhile",
                next_step="run the same command again: it starts from what the other one published",
            )
        self._plan(PlannedWrite(path, len(data), "replaced" if found else "new"), data)
        return sha256_bytes(data)

    def list(self, prefix: str) -> list[str]:
        """See `Target.list`."""
        return sorted(self.sizes(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        """See `Target.sizes`."""
        found, below = self.target.sizes(prefix), prefix.rstrip("/") + "/" if prefix else ""
        self.listed.update(found)
        found |= {write.path: write.size for write in self.writes if write.path.startswith(below)}
        return {path: size for path, size in found.items() if path not in self.removed}

    def remove(self, path: str) -> None:
        """Plan the removal of *path*."""
        self.removed.add(checked_path(path))
        self.files.pop(path, None)
        self._plan(PlannedWrite(path, self.listed.get(path, 0), "removed"), None)

    def url(self, path: str) -> str:
        """See `Target.url`."""
        return self.target.url(path)

    def elsewhere(self, path: str) -> str:
        """See `Target.elsewhere`."""
        return self.target.elsewhere(path)

    def _plan(self, write: PlannedWrite, data: bytes | None) -> None:
        emit(
            "publish.planned", path=write.path, size=write.size, change=write.change, at=self.url(write.path)
        )
        self.writes.append(write)
        if data is not None:
            self.files[write.path] = data
