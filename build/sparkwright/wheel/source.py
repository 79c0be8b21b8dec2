"""Upstream's wheel, opened to copy members from or to compare with; RECORD; the beginning of ELF files."""

from __future__ import annotations

import base64
import binascii
import contextlib
import csv
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sparkwright.base.errors import WheelError
from sparkwright.wheel.archive import Archive, open_archive
from sparkwright.wheel.names import WheelName, parse_name

_SIGNATURES = ("RECORD.jws", "RECORD.p7s")


@dataclass(frozen=True)
class StockWheel:
    """An open wheel whose RECORD lists exactly its members; see `open_source`.

    Attributes:
        listed: its RECORD by path.
    """

    archive: Archive
    name: WheelName
    listed: Mapping[str, RecordEntry]

    @property
    def info(self) -> str:
        """Its metadata folder, with a slash at the end."""
        return self.name.dist_info + "/"

    def is_binary(self, member: str) -> bool:
        """Tell if *member* is an ELF file, by its content."""
        return is_elf(self.archive.beginning(member, len(ELF_MAGIC)))

    def binaries(self) -> tuple[str, ...]:
        """Return the members that are ELF files, sorted."""
        return self._binaries

    @cached_property
    def _binaries(self) -> tuple[str, ...]:
        return tuple(sorted(name for name in self.archive.members if self.is_binary(name)))


@contextlib.contextmanager
def open_source(path: Path) -> Iterator[StockWheel]:
    """Open the wheel at *path* for the length of the block.

    Raises:
        ArchiveError: it is damaged or an unsafe archive; see `open_archive`.
        WheelError: its name or its RECORD is malformed, or it is signed and so may not change.
    """
    name = parse_name(path.name)
    with open_archive(path) as archive:
        listed = parse_record(archive.read(f"{name.dist_info}/RECORD"))
        if odd := sorted(set(listed) ^ set(archive.members)):
            raise WheelError(
                f"{path.name} is malformed",
                because=f"its members and its RECORD disagree about {', '.join(odd[:5])}",
            )
        if signed := [file for file in _SIGNATURES if f"{name.dist_info}/{file}" in listed]:
            raise WheelError(f"{path.name} cannot be changed", because=f"{signed[0]} signs its content")
        yield StockWheel(archive, name, listed)


# RECORD (PEP 376, PEP 427) ------------------------------------------------------------------------

_FIELDS = 3


@dataclass(frozen=True)
class RecordEntry:
    """One line of RECORD.

    Attributes:
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


# ELF files (System V ABI, chapter 4) --------------------------------------------------------------

ELF_MAGIC = b"\x7fELF"
HEADER_SIZE = 20
_MACHINE = slice(18, 20)
_LITTLE, _BIG = 1, 2
_MACHINES = {62: "x86_64", 183: "aarch64"}


def is_elf(beginning: bytes) -> bool:
    """Tell if a file with this *beginning* is an ELF file."""
    return beginning.startswith(ELF_MAGIC)


def machine_of(beginning: bytes) -> str:
    """Return the machine that an ELF file is for, by its first 20 bytes.

    Returns:
        ``aarch64``, ``x86_64``, ``unknown (N)`` for another ``e_machine``, or ``damaged``.
    """
    if len(beginning) < HEADER_SIZE or beginning[5] not in {_LITTLE, _BIG}:
        return "damaged"
    number = int.from_bytes(beginning[_MACHINE], "little" if beginning[5] == _LITTLE else "big")
    return _MACHINES.get(number, f"unknown ({number})")
