"""Targets of publishing: one protocol for folders, object stores and servers.

A target has two kinds of files. Wheels, statements and pages never change once they are there. Pointers are
replaced, and only by a publisher that read the present one, so that of two publishers one wins and the other
is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import LostRaceError, PublishError, TamperedError

MOST_BYTES = 64 << 20
"""Bytes of a page or a statement, at most; a page with 100,000 wheels has about as many."""
_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".whl": "application/octet-stream",
    ".metadata": "text/plain; charset=utf-8",
}
_JSON_PAGE = "application/vnd.pypi.simple.v1+json"


@dataclass(frozen=True)
class Stored:
    """A small file at a target.

    Attributes:
        data: its bytes.
        tag: name of this content for `Target.replace`: the target's ETag, or the SHA-256 of *data*.
    """

    data: bytes
    tag: str


class Target(Protocol):
    """A place that wheels and channels are published to.

    Paths are relative, with ``/`` between their parts; each method passes them through `checked_path`.
    Every method raises `UploadError` where the target cannot be reached, read or written.
    """

    def read(self, path: str) -> Stored | None:
        """Return the file at *path*, `None` if there is none; for small files, which are read whole."""

    def put_file(self, path: str, file: Path, sha256: str) -> None:
        """Put *file* at *path*, where its content never changes again.

        A file that is there with that digest is left alone. The file appears under *path* only complete, and
        is read back.

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

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the bytes of all files below the folder *prefix* (of all if it is empty) by path.

        Hidden files are left out.
        """

    def remove(self, path: str) -> None:
        """Remove the file at *path*; do nothing if there is none.

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


def lost_race(path: str, where: str) -> LostRaceError:
    """Return the error of a publisher that did not replace *path* in *where*, as another one did."""
    return LostRaceError(
        f"{path} was not replaced",
        because=f"another publisher wrote it first, to {where}",
        next_step="run the same command again: it starts from what the other one published",
    )


def require_digest(what: str, actual: str, sha256: str) -> None:
    """Refuse *what* if its digest is not the promised one.

    Raises:
        TamperedError: it is not.
    """
    if actual != sha256:
        raise TamperedError(
            f"{what} was not published",
            because=f"its SHA-256 is {actual}, not {sha256}, and published files never change",
            next_step="find out who changed it; move it away to publish the right bytes",
        )


def require_signed(data: bytes | None, sha256: str, what: str, where: str, next_step: str) -> bytes:
    """Return *data*, which was read of *where*, if it has the signed digest.

    Raises:
        TamperedError: it has not, or there is none.
    """
    if data is None:
        raise TamperedError(f"{what} is missing", because=f"{where} does not exist", next_step=next_step)
    if (actual := sha256_bytes(data)) != sha256:
        raise TamperedError(
            f"{what} was changed", because=f"its SHA-256 is {actual}, not {sha256}", next_step=next_step
        )
    return data


def content_type(path: str) -> str:
    """Return the media type that pip and uv need for *path*."""
    name = path.rpartition("/")[2]
    if name == "index.json" and "simple" in path.split("/"):
        return _JSON_PAGE
    return _CONTENT_TYPES.get("." + name.rpartition(".")[2], "application/octet-stream")


def is_hidden(path: str) -> bool:
    """Return if a part of *path* begins with a dot, as locks do."""
    return any(part.startswith(".") for part in path.split("/"))
