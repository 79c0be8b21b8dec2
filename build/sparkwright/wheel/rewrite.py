"""Write an archive of kept members and new ones, hashing while writing; deflate binaries once.

Two zlib libraries deflate the same bytes differently. So the deflated bytes are an input of a wheel,
kept beside the binary, and are not made by the assembler: the same plan still gives the same bytes
everywhere.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zipfile
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from sparkwright.base.digests import CHUNK, digest_of, sha256_file
from sparkwright.base.errors import ArchiveError
from sparkwright.base.wheel_members import name_fault
from sparkwright.store.paths import Store
from sparkwright.wheel.archive import (
    CENTRAL,
    CENTRAL_SIGNATURE,
    DESCRIPTOR_FOLLOWS,
    END,
    END_SIGNATURE,
    LOCAL,
    LOCAL_SIGNATURE,
    UTF8,
    Archive,
    WheelMember,
)

_UNIX, _VERSION = 3, 20
_EPOCH_DATE = (0 << 9) | (1 << 5) | 1  # 1980-01-01, the first date of MS-DOS
_MAX_COUNT, _MAX_OFFSET = 0xFFFF, 0xFFFFFFFF
_BACKLOG = 16


@dataclass(frozen=True)
class Kept:
    """A member copied from *archive*, compressed data and time stamp included.

    Attributes:
        archive: the source; it must stay open until the parts are written.
    """

    archive: Archive
    member: WheelMember
    name: str


@dataclass(frozen=True)
class Stored:
    """A new member, uncompressed, dated 1980-01-01."""

    name: str
    content: bytes
    executable: bool = False


@dataclass(frozen=True)
class Packed:
    """A new member of data that is deflated already, dated 1980-01-01.

    Attributes:
        data: its content as a raw deflate stream (RFC 1951).
        executable: whether its mode is 0755 rather than 0644.
    """

    name: str
    data: bytes
    crc: int
    size: int
    executable: bool = False


@dataclass(frozen=True)
class Range:
    """The bytes of *archive* from *start* to *end*."""

    archive: Archive
    start: int
    end: int


def layout(entries: Iterable[Kept | Packed | Stored]) -> list[Range | bytes]:
    """Return the bytes of an archive that holds *entries* in that order, as parts to be written in turn.

    Neighbours that were neighbours in their old archive become one range.
    """
    parts: list[Range | bytes] = []
    directory: list[bytes] = []
    names: set[str] = set()
    position = 0
    for entry in entries:
        if because := name_fault(entry.name) or (
            f"{entry.name} appears twice" if entry.name in names else ""
        ):
            raise ArchiveError("the archive cannot be written", because=because)
        names.add(entry.name)
        member, pieces = _place(entry, position)
        directory.append(_central(member))
        for piece in pieces:
            position += _length(piece)
            _append(parts, piece)
    listing = b"".join(directory)
    if len(directory) >= _MAX_COUNT or position + len(listing) >= _MAX_OFFSET:
        raise ArchiveError("the archive cannot be written", because="it would need zip64")
    count = len(directory)
    parts += [listing, END.pack(END_SIGNATURE, 0, 0, count, count, len(listing), position, 0)]
    return parts


def _length(part: Range | bytes) -> int:
    return part.end - part.start if isinstance(part, Range) else len(part)


def _append(parts: list[Range | bytes], piece: Range | bytes) -> None:
    last = parts[-1] if parts else None
    if (
        isinstance(piece, Range)
        and isinstance(last, Range)
        and last.archive is piece.archive
        and last.end == piece.start
    ):
        parts[-1] = Range(last.archive, last.start, piece.end)
    else:
        parts.append(piece)


def _place(entry: Kept | Packed | Stored, position: int) -> tuple[WheelMember, tuple[Range | bytes, ...]]:
    """Return *entry* as a member at offset *position*, and the pieces that make it up."""
    if isinstance(entry, Kept) and entry.name == entry.member.name:
        old = entry.member
        return _moved(old, old.name, position, old.flags), (Range(entry.archive, old.start, old.end),)
    if isinstance(entry, Kept):
        # A new name needs a new local header; it states the sizes, so no descriptor follows.
        old = entry.member
        flags = old.flags & ~DESCRIPTOR_FOLLOWS & ~UTF8 | _utf8_flag(entry.name)
        member = _moved(old, entry.name, position, flags)
        data = Range(entry.archive, old.data, old.data + old.compressed_size)
        return member, (_local(member), data)
    if isinstance(entry, Packed):
        content, method, crc, size = entry.data, zipfile.ZIP_DEFLATED, entry.crc, entry.size
    else:
        content, method = entry.content, zipfile.ZIP_STORED
        crc, size = zlib.crc32(content), len(content)
    member = WheelMember(
        name=entry.name, flags=_utf8_flag(entry.name), method=method, time=0, date=_EPOCH_DATE,
        crc=crc, compressed_size=len(content), size=size,
        mode=0o100755 if entry.executable else 0o100644, start=position, data=0, end=0,
    )  # fmt: skip
    return member, (_local(member), content)


def _utf8_flag(name: str) -> int:
    return 0 if name.isascii() else UTF8


def _moved(old: WheelMember, name: str, position: int, flags: int) -> WheelMember:
    return replace(old, name=name, flags=flags, start=position, data=0, end=0)


def _local(member: WheelMember) -> bytes:
    name = member.raw_name
    return LOCAL.pack(
        LOCAL_SIGNATURE, _VERSION, member.flags, member.method, member.time, member.date,
        member.crc, member.compressed_size, member.size, len(name), 0,
    ) + name  # fmt: skip


def _central(member: WheelMember) -> bytes:
    name = member.raw_name
    try:
        return CENTRAL.pack(
            CENTRAL_SIGNATURE, _VERSION, _UNIX, _VERSION, 0, member.flags, member.method, member.time,
            member.date, member.crc, member.compressed_size, member.size, len(name), 0, 0, 0, 0,
            member.mode << 16, member.start,
        ) + name  # fmt: skip
    except struct.error as error:
        raise ArchiveError("the archive cannot be written", because="it would need zip64") from error


def write_parts(parts: Sequence[Range | bytes], descriptor: int) -> str:
    """Write *parts* to the open file *descriptor*.

    Hashing takes longer than writing and releases the interpreter lock, so a second thread hashes
    the bytes that were written.

    Returns:
        SHA-256 of everything written, 64 hex digits.
    """
    digest = hashlib.sha256()
    waiting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(1, "sha256") as hasher:
        for chunk in _chunks(parts):
            waiting.append(hasher.submit(digest.update, chunk))
            _write_all(descriptor, chunk)
            if len(waiting) > _BACKLOG:
                waiting.popleft().result()
        while waiting:
            waiting.popleft().result()
    return digest.hexdigest()


def _chunks(parts: Sequence[Range | bytes]) -> Iterator[bytes]:
    for part in parts:
        if isinstance(part, bytes):
            yield part
        else:
            for start in range(part.start, part.end, CHUNK):
                yield part.archive.raw(start, min(start + CHUNK, part.end))


def _write_all(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])


# Deflated binaries --------------------------------------------------------------------------------

_LEVEL = 6


def deflate(source: Path, target: Path) -> None:
    """Write the content of *source* to *target* as a raw deflate stream (RFC 1951), at about 20 MB/s."""
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    with source.open("rb") as reading, target.open("wb") as writing:
        while chunk := reading.read(CHUNK):
            writing.write(deflater.compress(chunk))
        writing.write(deflater.flush())


def deflated_in(store: Store, sha256: str) -> Path:
    """Return the path in *store* of the file with that digest as a raw deflate stream, made once."""
    key = digest_of([_LEVEL, sha256])
    record = store.find_record("deflated", key) or {}
    if found := store.find_intact(str(record.get("sha256", ""))):
        return found
    with store.scratch() as scratch:
        target = scratch / "deflated"
        deflate(store.file_path(sha256), target)
        digest = sha256_file(target)
        path = store.adopt_file(target, digest, verified=True)
    store.put_record("deflated", key, {"sha256": digest})
    return path


def holds(deflated: bytes, content: bytes) -> bool:
    """Tell if the raw deflate stream *deflated* inflates to exactly *content*."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        inflated = inflater.decompress(deflated, len(content) + 1)
    except zlib.error:
        return False
    return inflated == content and inflater.eof and not inflater.unused_data
