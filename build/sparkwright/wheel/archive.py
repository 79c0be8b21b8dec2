"""Read a zip archive strictly; `rewrite` writes a new one without inflating unchanged members.

Nearly every byte of a new wheel is one of upstream's. So the compressed bytes of an unchanged member
are copied, neighbours in one run, and only changed members are written: *stored*, since two zlib
libraries deflate the same bytes differently and the same input has to give the same archive on every
machine.

The format is PKWARE's APPNOTE 6.3 without zip64, which no wheel under 4 GiB needs. Headers are parsed
here and not by `zipfile`, whose parsing depends on Python's version: 3.12 and later take a member's
name from an extra field, 3.11 does not.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sparkwright.base.digests import CHUNK
from sparkwright.base.errors import ArchiveError
from sparkwright.base.wheel_members import MOST_TEXT, name_fault

LOCAL = struct.Struct("<4s5H3L2H")
CENTRAL = struct.Struct("<4s4B4H3L5H2L")
END = struct.Struct("<4s4H2LH")
LOCAL_SIGNATURE, CENTRAL_SIGNATURE, END_SIGNATURE = b"PK\3\4", b"PK\1\2", b"PK\5\6"
ZIP64_LOCATOR, ZIP64_LOCATOR_SIZE, ZIP64_VERSION = b"PK\6\7", 20, 45
_MOST_COMMENT = 0xFFFF
DESCRIPTOR, DESCRIPTOR_SIGNATURE = struct.Struct("<3L"), b"PK\7\x08"
ENCRYPTED, DESCRIPTOR_FOLLOWS, PATCHED, STRONG, UTF8 = 1 << 0, 1 << 3, 1 << 5, 1 << 6, 1 << 11
_KNOWN_FLAGS = 0b110 | DESCRIPTOR_FOLLOWS | UTF8  # the first two only record the level of deflation
_FOLDER_OR_LABEL = 0x18  # attributes of MS-DOS: a folder or a volume label, no file
_NO_FILE_MODE = 0o7002  # setuid, setgid, sticky, and writable by all
_EMPTY = (b"", b"\3\0")  # no content, as it is and deflated
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_SNIFF = 1024


@dataclass(frozen=True)
class WheelMember:
    """One file in an archive, and the offsets of its bytes.

    Attributes:
        name: its path inside the archive, with forward slashes.
        flags: general purpose bits, as in the central directory.
        method: 0 (stored) or 8 (deflated).
        time: MS-DOS time of day.
        mode: Unix file type and permissions; 0 where the archive states none.
        end: offset behind its data, and behind its data descriptor where it has one.
    """

    name: str
    flags: int
    method: int
    time: int
    date: int
    crc: int
    compressed_size: int
    size: int
    mode: int
    start: int
    data: int
    end: int

    @property
    def raw_name(self) -> bytes:
        """The name as the headers spell it."""
        return self.name.encode("utf-8" if self.flags & UTF8 else "cp437")

    @property
    def executable(self) -> bool:
        """Tell if its owner may execute it once installed."""
        return bool(self.mode & stat.S_IXUSR)


@dataclass(frozen=True)
class Archive:
    """An open zip archive whose structure has been checked; see `open_archive`.

    Attributes:
        members: its files by name, in the order of their bytes.
    """

    path: Path
    members: Mapping[str, WheelMember]
    _descriptor: int
    folders: tuple[str, ...] = field(default=(), kw_only=True)

    def raw(self, start: int, end: int) -> bytes:
        """Return the bytes of the archive file from offset *start* to *end*."""
        data = os.pread(self._descriptor, end - start, start)
        while len(data) < end - start:
            more = os.pread(self._descriptor, end - start - len(data), start + len(data))
            if not more:
                raise _fault(self.path, "it was cut off while being read")
            data += more
        return data

    def _lacking(self, name: str) -> ArchiveError:
        """Return the error for a member that is not there; a renamed wheel has its metadata elsewhere."""
        folders = sorted({member.partition("/")[0] for member in self.members if ".dist-info/" in member})
        if ".dist-info/" not in name or not folders or name.partition("/")[0] in folders:
            return _fault(self.path, f"it has no member {name}")
        return ArchiveError(
            f"{self.path.name} cannot be used",
            because=f"it was renamed: its metadata is in {folders[0]}, not in {name.partition('/')[0]}",
            next_step=f"rename it back: its name began with {folders[0].removesuffix('.dist-info')}-",
        )

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content of the member *name* in pieces of about a MiB; check its CRC-32 and size.

        Raises:
            ArchiveError: there is no such member, or its data is damaged; discard the pieces
                that were yielded before.
        """
        member = self.members.get(name)
        if member is None:
            raise self._lacking(name)
        crc = size = 0
        try:
            for piece in self._inflated(member):
                crc, size = zlib.crc32(piece, crc), size + len(piece)
                if size > member.size:
                    break
                yield piece
        except zlib.error as error:
            raise _fault(self.path, f"the data of {name} is damaged: {error}") from error
        if (crc, size) != (member.crc, member.size):
            raise _fault(self.path, f"the content of {name} does not match its CRC-32 or size")

    def read(self, name: str, most: int = MOST_TEXT) -> bytes:
        """Return the whole content of the member *name*, of at most *most* bytes; see `chunks`."""
        if name in self.members and (size := self.members[name].size) > most:
            raise _fault(self.path, f"{name} has {size} bytes, more than the {most} that it may have")
        return b"".join(self.chunks(name))

    def compressed(self, member: WheelMember) -> Iterator[bytes]:
        """Yield the data of *member* as stored in the archive, in pieces of a MiB."""
        end = member.data + member.compressed_size
        for start in range(member.data, end, CHUNK):
            yield self.raw(start, min(start + CHUNK, end))

    def _inflated(self, member: WheelMember) -> Iterator[bytes]:
        if member.method == zipfile.ZIP_STORED:
            yield from self.compressed(member)
            return
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        for piece in self.compressed(member):
            raw = piece
            while raw:
                yield inflater.decompress(raw, CHUNK)
                raw = inflater.unconsumed_tail
            if inflater.unused_data:
                raise _fault(self.path, f"bytes behind the deflated data of {member.name} belong to nothing")
        yield inflater.flush()
        if not inflater.eof:
            raise _fault(self.path, f"the deflated data of {member.name} has no end")

    def beginning(self, name: str, length: int) -> bytes:
        """Return the first *length* bytes of the member *name*, unchecked; at most a few hundred."""
        member = self.members[name]
        raw = self.raw(member.data, member.data + min(member.compressed_size, _SNIFF))
        if member.method == zipfile.ZIP_STORED:
            return raw[:length]
        try:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, length)
        except zlib.error as error:
            raise _fault(self.path, f"the data of {name} is damaged: {error}") from error


@contextlib.contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open the zip archive at *path* for the length of the block, after checking its structure.

    Every byte of the file has to belong to exactly one member, the central directory or the
    end record, and each local header has to agree with the central directory: every tool then
    reads the same from the file.

    Raises:
        ArchiveError: the file is damaged, or uses a feature that no wheel needs: zip64,
            encryption, links, comments, extra fields, folders with content, doubled or unsafe names.
    """
    try:
        stream = path.open("rb")
    except OSError as error:
        raise ArchiveError(f"{path.name} could not be opened", because=str(error)) from error
    with stream:
        descriptor = stream.fileno()
        try:
            entries, directory = _directory(path, descriptor)
            found = _located(path, descriptor, entries, directory)
        except (UnicodeError, struct.error) as error:
            raise _fault(path, f"one of its headers is malformed: {error}") from error
        members = {name: member for name, member in found.items() if not name.endswith("/")}
        folders = tuple(name for name in found if name.endswith("/"))
        yield Archive(path, members, descriptor, folders=folders)


def _fault(path: Path, because: str) -> ArchiveError:
    return ArchiveError(
        f"{path.name} cannot be used", because=because,
        next_step="get the file again; if it stays so, it was not made by a wheel builder",
    )  # fmt: skip


def _directory(path: Path, descriptor: int) -> tuple[list[WheelMember], int]:
    """Return the entries of the central directory, yet without the offsets of data, and its offset."""
    size = os.fstat(descriptor).st_size
    end = size - END.size
    record = os.pread(descriptor, END.size, max(0, end))
    if not record.startswith(END_SIGNATURE):
        tail = os.pread(descriptor, size, max(0, end - _MOST_COMMENT))
        if END_SIGNATURE in tail:
            raise _fault(path, "it has a comment, or bytes behind its central directory")
        raise _fault(path, "it is not a zip archive, or it is cut off")
    _, disk, first_disk, here, total, length, offset, comment = END.unpack(record)
    if os.pread(descriptor, 4, max(0, end - ZIP64_LOCATOR_SIZE)) == ZIP64_LOCATOR:
        raise _fault(path, "it is a zip64 archive, which no wheel under 4 GiB needs to be")
    if comment or offset + length != end:
        raise _fault(path, "it holds bytes before its first member or around its central directory")
    entries, used = [], 0
    listing = os.pread(descriptor, length, offset)
    while used < len(listing):
        entry, taken = _entry(path, listing, used)
        entries.append(entry)
        used += taken
    if disk or first_disk or here != total or total != len(entries):
        raise _fault(path, "its end record does not count its members")
    return entries, offset


def _entry(path: Path, listing: bytes, at: int) -> tuple[WheelMember, int]:
    """Return the entry at offset *at* of the central directory *listing*, and its size."""
    (
        signature, _, _, extract, _, flags, method, time, date, crc, packed, size,
        name_length, extra, comment, disk, _, attributes, start,
    ) = CENTRAL.unpack_from(listing, at)  # fmt: skip
    raw_name = listing[at + CENTRAL.size : at + CENTRAL.size + name_length]
    name = raw_name.decode("utf-8" if flags & UTF8 else "cp437")
    if signature != CENTRAL_SIGNATURE or len(raw_name) < name_length or disk:
        raise _fault(path, "its central directory is malformed")
    member = WheelMember(name, flags, method, time, date, crc, packed, size, attributes >> 16, start, 0, 0)
    faults = {
        f"{name} is encrypted or a patch": flags & (ENCRYPTED | STRONG | PATCHED),
        f"{name} has flags that no wheel needs: {flags:#x}": flags & ~_KNOWN_FLAGS,
        f"{name} is compressed by method {method}": method not in _METHODS,
        f"{name} is a zip64 member, which no wheel needs": extract >= ZIP64_VERSION,
        f"{name} has an extra field or a comment": extra or comment,
        f"{name} is neither a file nor a folder": not _is_plain(member, attributes & 0xFFFF),
        f"{name} has the mode {member.mode:o}": member.mode & _NO_FILE_MODE and not name.endswith("/"),
    }
    if because := name_fault(name) or next((fault for fault, found in faults.items() if found), ""):
        raise _fault(path, because)
    return member, CENTRAL.size + name_length


def _is_plain(member: WheelMember, dos_attributes: int) -> bool:
    """Tell if *member* is a file, or a folder where its name says so, by each field that states it."""
    kind = stat.S_IFMT(member.mode)
    if member.name.endswith("/"):
        return kind in {0, stat.S_IFDIR}
    return kind in {0, stat.S_IFREG} and not dos_attributes & _FOLDER_OR_LABEL


def _located(
    path: Path, descriptor: int, entries: list[WheelMember], directory: int
) -> dict[str, WheelMember]:
    """Return the *entries* by name, in the order of their bytes, with the offsets of their data."""
    members: dict[str, WheelMember] = {}
    position = 0
    for entry in sorted(entries, key=lambda entry: entry.start):
        if entry.name in members:
            raise _fault(path, f"the name {entry.name!r} appears twice")
        if entry.start != position:
            raise _fault(path, f"the bytes before {entry.name} belong to no member, or to two")
        member = _locate(path, descriptor, entry)
        position = member.end
        members[member.name] = member
    if position != directory:
        raise _fault(path, "bytes before its central directory belong to no member")
    return members


def _locate(path: Path, descriptor: int, entry: WheelMember) -> WheelMember:
    """Return *entry* with the offset of its data; refuse a local header that differs from the directory."""
    expected = entry.raw_name
    header = os.pread(descriptor, LOCAL.size + len(expected), entry.start)
    if not header.startswith(LOCAL_SIGNATURE):
        raise _fault(path, f"{entry.name} has no local header")
    _, extract, *same, crc, packed, size, name_length, extra = LOCAL.unpack_from(header)
    stated = (crc, packed, size)
    true = (entry.crc, entry.compressed_size, entry.size)
    agreed = stated == true or (
        entry.flags & DESCRIPTOR_FOLLOWS and all(a in {0, b} for a, b in zip(stated, true, strict=True))
    )
    same_name = name_length == len(expected) and header[LOCAL.size :] == expected
    if not (same_name and agreed and same == [entry.flags, entry.method, entry.time, entry.date]):
        raise _fault(path, f"the two headers of {entry.name} disagree")
    if extra or extract >= ZIP64_VERSION:
        raise _fault(path, f"{entry.name} has an extra field, or is a zip64 member, which no wheel needs")
    data = entry.start + LOCAL.size + name_length
    member = replace(entry, data=data, end=data + entry.compressed_size)
    if entry.flags & DESCRIPTOR_FOLLOWS:
        member = _with_descriptor(path, descriptor, member)
    if member.name.endswith("/") and (
        member.size or os.pread(descriptor, min(member.compressed_size, _SNIFF), data) not in _EMPTY
    ):
        raise _fault(path, f"the folder {member.name} has content")
    return member


def _with_descriptor(path: Path, descriptor: int, member: WheelMember) -> WheelMember:
    """Return *member* with the end of its data descriptor, whose signature is optional, as its end."""
    true = DESCRIPTOR.pack(member.crc, member.compressed_size, member.size)
    for expected in (DESCRIPTOR_SIGNATURE + true, true):
        if os.pread(descriptor, len(expected), member.end) == expected:
            return replace(member, end=member.end + len(expected))
    raise _fault(path, f"the data descriptor of {member.name} disagrees with its header")
