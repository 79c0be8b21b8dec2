"""Files that never change, on targets where reading one back is a download.

A file is read back once, after its upload. A note beside a large one keeps the digest with the size and the
ETag that the server gave it, so that the next run skips a file of 300 MB for two small requests. Without a
note, or with one of another size or ETag, the file is read back again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from sparkwright.base.config import Model, decode_json
from sparkwright.base.digests import sha256_file
from sparkwright.base.errors import TamperedError
from sparkwright.publish.target import Stored, StoredStat

_NOTED_BYTES = 1 << 20  # a smaller file is read in the time that its note takes
_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".whl": "application/octet-stream",
    ".metadata": "text/plain; charset=utf-8",
}
_JSON_PAGE = "application/vnd.pypi.simple.v1+json"


class VerifiedNote(Model, frozen=True):
    """The result of reading a file back.

    Attributes:
        sha256: of its bytes, 64 hex digits.
        size: in bytes.
        tag: its ETag at that time.
    """

    sha256: str
    size: int
    tag: str


class RemoteFiles(Protocol):
    """The operations that `put_verified` needs of a target."""

    def read(self, path: str) -> Stored | None:
        """See `Target.read`."""

    def fingerprint(self, path: str) -> StoredStat | None:
        """Return size and the server's own ETag of the file at *path*, `None` if there is none."""

    def digest(self, path: str) -> str:
        """Return the SHA-256 of the file at *path*, read from the server."""

    def upload(self, path: str, file: Path, sha256: str) -> None:
        """Put *file* at *path*, complete or not at all, and read it back.

        Raises:
            TamperedError: other bytes were read back, or another publisher put other bytes there first.
        """

    def overwrite(self, path: str, data: bytes) -> None:
        """Write *data* to *path*, whatever is there."""


def put_verified(target: RemoteFiles, path: str, file: Path, sha256: str) -> None:
    """Put *file* at *path* of *target* unless it is there; see `Target.put_file`.

    Raises:
        TamperedError: *file* has another digest, other bytes are at *path*, or were read back.
    """
    found = target.fingerprint(path)
    if found is None:
        if (actual := sha256_file(file)) != sha256:
            raise other_bytes(str(file), actual, sha256)
        target.upload(path, file, sha256)
        found = target.fingerprint(path)
    elif (known := noted_digest(target, path, found)) is not None:
        require_digest(path, known, sha256)
        return
    else:
        require_digest(path, target.digest(path), sha256)
    if found is not None and found.size >= _NOTED_BYTES:
        note = VerifiedNote(sha256=sha256, size=found.size, tag=found.tag)
        target.overwrite(note_path(path), msgspec.json.encode(note))


def noted_digest(target: RemoteFiles, path: str, found: StoredStat) -> str | None:
    """Return the noted SHA-256 of *path*, `None` if the note is missing or is of another size or ETag."""
    if found.size < _NOTED_BYTES or not found.tag:
        return None
    stored = target.read(note_path(path))
    if stored is None:
        return None
    try:
        note = decode_json(stored.data, VerifiedNote)
    except msgspec.MsgspecError:
        return None
    return note.sha256 if (note.size, note.tag) == (found.size, found.tag) else None


def require_digest(what: str, actual: str, sha256: str) -> None:
    """Refuse *what* if its digest is not the promised one.

    Raises:
        TamperedError: it is not.
    """
    if actual != sha256:
        raise other_bytes(what, actual, sha256)


def other_bytes(what: str, actual: str, sha256: str) -> TamperedError:
    """Return the error for *what*, whose digest is *actual* and not *sha256*."""
    return TamperedError(
        f"{what} was not published",
        because=f"its SHA-256 is {actual}, not {sha256}, and published files never change",
        next_step="find out who changed it; move it away to publish the right bytes",
    )


def content_type(path: str) -> str:
    """Return the media type that pip and uv need for *path*."""
    name = path.rpartition("/")[2]
    if name == "index.json" and "simple" in path.split("/"):
        return _JSON_PAGE
    return _CONTENT_TYPES.get("." + name.rpartition(".")[2], "application/octet-stream")


def is_hidden(path: str) -> bool:
    """Return if a part of *path* begins with a dot: notes, locks and staged uploads do."""
    return any(part.startswith(".") for part in path.split("/"))


def beside(path: str, suffix: str) -> str:
    """Return the hidden path next to *path* that ends in *suffix*."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.{suffix}"


def note_path(path: str) -> str:
    """Return the hidden path of the note of *path*."""
    return beside(path, "verified")
