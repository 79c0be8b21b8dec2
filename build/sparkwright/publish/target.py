"""Targets of publishing: places that wheels and channels are published to, and read from.

A target has two kinds of files. Wheels, statements and states never change once they are there. Pointers are
replaced, and only by a publisher that read the present one, so that of two publishers one wins and the other
is told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import LostRaceError, PublishError, TamperedError

MOST_BYTES = 64 << 20
"""Bytes of a state or a statement, at most; a state of 100,000 wheels has about as many."""


@dataclass(frozen=True)
class Stored:
    """A small file at a target.

    Attributes:
        tag: name of this content for `Target.replace`: the target's ETag, or the SHA-256 of *data*.
    """

    data: bytes
    tag: str = ""


class Entry(NamedTuple):
    """A file of a listing.

    Attributes:
        size: in bytes.
        modified: when it was written, in seconds since 1970.
    """

    size: int
    modified: float


class Mirror(Protocol):
    """A target, or a copy of one, that can be read.

    Paths are relative, with ``/`` between their parts; each method passes them through `checked_path`.
    """

    def read(self, path: str) -> Stored | None:
        """Return the file at *path*, `None` if there is none; for small files, which are read whole.

        Raises:
            FetchError, UploadError: it cannot be read, or is too large.
        """

    def digest(self, path: str, most: int) -> tuple[str, int] | None:
        """Return SHA-256 and size of the file at *path*, `None` if there is none.

        Reading stops after *most* bytes; a longer file has another digest anyway.

        Raises:
            FetchError, UploadError: see `read`.
        """

    def url(self, path: str) -> str:
        """Return the address under which clients read *path*, for people too: it has no credentials."""


class Target(Protocol):
    """A place that wheels and channels are published to; paths are those of `Mirror`.

    Every method raises `UploadError` where the target cannot be reached, read or written.
    """

    def read(self, path: str) -> Stored | None:
        """See `Mirror.read`."""

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

    def files(self, prefix: str) -> dict[str, Entry]:
        """Return all files below the folder *prefix* (all if it is empty) by path, without hidden ones."""

    def remove(self, path: str) -> None:
        """Remove the file at *path*, which no pointer names; do nothing if there is none."""

    def url(self, path: str) -> str:
        """See `Mirror.url`."""


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


def require_signed(stored: Stored | None, sha256: str, what: str, where: str, next_step: str) -> bytes:
    """Return the content of *stored*, which was read of *where*, if it has the signed digest.

    Raises:
        TamperedError: it has not, or there is none.
    """
    if stored is None:
        raise TamperedError(f"{what} is missing", because=f"{where} does not exist", next_step=next_step)
    if (actual := sha256_bytes(stored.data)) != sha256:
        raise TamperedError(
            f"{what} was changed", because=f"its SHA-256 is {actual}, not {sha256}", next_step=next_step
        )
    return stored.data


def hashed(chunks: Iterator[bytes], most: int) -> tuple[str, int]:
    """Return the SHA-256 and the number of the bytes in *chunks*, of which no more than *most* are needed."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
        if size > most:
            break
    return digest.hexdigest(), size
