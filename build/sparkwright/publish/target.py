"""Targets of publishing: one protocol for folders, object stores and servers.

A target has two kinds of files. Wheels, statements and pages never change once they are there. Pointers are
replaced, and only by a publisher that read the present one, so that of two publishers one wins and the other
is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sparkwright.base.errors import PublishError


@dataclass(frozen=True)
class Stored:
    """A small file at a target.

    Attributes:
        data: its bytes.
        tag: name of this content for `Target.replace`: the target's ETag, or the SHA-256 of *data*.
    """

    data: bytes
    tag: str


@dataclass(frozen=True)
class StoredStat:
    """Size and tag of a file at a target.

    Attributes:
        size: in bytes.
    """

    size: int
    tag: str


class Target(Protocol):
    """A place that wheels and channels are published to.

    Paths are relative, with ``/`` between their parts; each method passes them through `checked_path`.
    Every method raises `UploadError` where the target cannot be reached, read or written.
    """

    def read(self, path: str) -> Stored | None:
        """Return the file at *path*, `None` if there is none; for small files, which are read whole."""

    def stat(self, path: str) -> StoredStat | None:
        """Return size and tag of the file at *path*, `None` if there is none."""

    def put_file(self, path: str, file: Path, sha256: str) -> None:
        """Put *file* at *path*, where its content never changes again.

        A file that is there with that digest is left alone; an interrupted transfer is resumed where the
        target can. The file appears under *path* only complete, and is read back.

        Raises:
            TamperedError: other bytes are at *path*, or were read back.
        """

    def replace(self, path: str, data: bytes, *, expected: str | None) -> str:
        """Replace the pointer at *path* by *data* if its tag is *expected*; return the new tag.

        Args:
            path: of the pointer.
            data: its new content.
            expected: the tag under which the publisher read it; `None` if no file may be there.

        Raises:
            LostRaceError: another publisher was faster.
        """

    def list(self, prefix: str) -> list[str]:
        """Return the paths of all files below the folder *prefix* (all files if it is empty), sorted."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the bytes of all files below the folder *prefix* by path, hidden files left out."""

    def remove(self, path: str) -> None:
        """Remove the file at *path*, and hidden notes of it; do nothing if there is none.

        Only for files that no pointer and no page names; see `sparkwright.publish.prune`.
        """

    def url(self, path: str) -> str:
        """Return the address under which clients read *path*."""

    def elsewhere(self, path: str) -> str:
        """Return the absolute address of *path* where it is on another host than pages; else nothing."""


def checked_path(path: str) -> str:
    r"""Return *path* if it is relative, names a file and leads nowhere else.

    Raises:
        PublishError: it is empty or absolute, or has an empty, ``.`` or ``..`` part, a backslash, or a
            control character.
    """
    parts = path.split("/")
    if any(part in {"", ".", ".."} for part in parts) or "\\" in path or not path.isprintable():
        raise PublishError(
            "a path at a target was refused", because=f"{path!r} is not a relative path of a file"
        )
    return path
