"""RECORD, the list of a wheel's files with their digests (PEP 376, PEP 427)."""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass

from sparkwright.base.errors import WheelError

_FIELDS = 3


@dataclass(frozen=True)
class RecordEntry:
    """One line of RECORD.

    Attributes:
        path: the member's name.
        digest: ``sha256=`` and urlsafe base64 without padding; empty for RECORD itself.
        size: in bytes; `None` for RECORD itself.
    """

    path: str
    digest: str = ""
    size: int | None = None

    @property
    def sha256(self) -> str:
        """The digest as 64 hex digits.

        Raises:
            WheelError: the line has no SHA-256, or it is no base64 of one.
        """
        algorithm, _, text = self.digest.partition("=")
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if algorithm != "sha256" or len(raw) != hashlib.sha256().digest_size:
            raise WheelError(f"RECORD has no SHA-256 of {self.path}", because=f"it has {self.digest!r}")
        return raw.hex()


def entry_of(path: str, content: bytes) -> RecordEntry:
    """Return the line for a member called *path* with that *content*."""
    return entry_from_digest(path, hashlib.sha256(content).digest(), len(content))


def entry_from_digest(path: str, sha256: bytes, size: int) -> RecordEntry:
    """Return the line for a member of *size* bytes whose SHA-256 is the 32 bytes *sha256*."""
    text = base64.urlsafe_b64encode(sha256).rstrip(b"=").decode()
    return RecordEntry(path, f"sha256={text}", size)


def parse_record(data: bytes) -> dict[str, RecordEntry]:
    """Return RECORD's lines by path, in their order.

    Raises:
        WheelError: it is not UTF-8 CSV with three fields a line, or names a path twice.
    """
    entries: dict[str, RecordEntry] = {}
    try:
        for row in csv.reader(io.StringIO(data.decode(), newline="")):
            if not row:
                continue
            if len(row) != _FIELDS or not (row[2] == "" or row[2].isdecimal()):
                raise WheelError("RECORD is malformed", because=f"it has the line {','.join(row)!r}")
            path, digest, size = row
            if path in entries:
                raise WheelError("RECORD is malformed", because=f"it names {path} twice")
            entries[path] = RecordEntry(path, digest, int(size) if size else None)
    except (UnicodeDecodeError, csv.Error) as error:
        raise WheelError("RECORD is malformed", because=str(error)) from error
    return entries


def format_record(entries: Iterable[RecordEntry]) -> bytes:
    """Return *entries* as RECORD's bytes: CSV, one line each, ended by a line feed."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    for entry in entries:
        writer.writerow([entry.path, entry.digest, "" if entry.size is None else entry.size])
    return text.getvalue().encode()
