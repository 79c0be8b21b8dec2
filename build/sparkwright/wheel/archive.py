"""Reading a zip archive strictly, and writing a new one without inflating what did not change.

A wheel is a zip archive of which nearly every byte stays as it was. So an unchanged member
is copied as the raw bytes it already is, neighbours in one run, and only what changes is
written anew: *stored*, since two zlib libraries deflate the same bytes differently and the
same input has to give the same archive on every machine.

The format is PKWARE's APPNOTE 6.3 without zip64, which no wheel under 4 GiB needs.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkwright.canonical import CHUNK
from sparkwright.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["Archive", "Member", "name_fault", "open_archive"]

LOCAL = struct.Struct("<4s5H3L2H")
CENTRAL = struct.Struct("<4s4B4H3L5H2L")
END = struct.Struct("<4s4H2LH")
LOCAL_SIGNATURE, CENTRAL_SIGNATURE, END_SIGNATURE = b"PK\3\4", b"PK\1\2", b"PK\5\6"
ZIP64_LOCATOR, ZIP64_LOCATOR_SIZE, ZIP64_VERSION, IN_ZIP64 = b"PK\6\7", 20, 45, 0xFFFFFFFF
DESCRIPTOR, DESCRIPTOR_SIGNATURE = struct.Struct("<3L"), b"PK\7\x08"
ENCRYPTED, DESCRIPTOR_FOLLOWS, PATCHED, STRONG, UTF8 = 1 << 0, 1 << 3, 1 << 5, 1 << 6, 1 << 11
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_SNIFF = 1024


@dataclass(frozen=True)
class Member:
    """One file in an archive, and where its bytes are.

    Attributes:
        name: its path inside the archive, with forward slashes.
        flags: general purpose bits, as in the central directory.
        method: 0 (stored) or 8 (deflated).
        time: MS-DOS time of day.
        date: MS-DOS date.
        crc: CRC-32 of its content.
        compressed_size: size of its data in the archive, in bytes.
        size: size of its content, in bytes.
        mode: Unix file type and permissions; 0 where the archive states none.
        start: offset of its local header.
        data: offset of its data.
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
        """The name as its headers spell it."""
        return self.name.encode("utf-8" if self.flags & UTF8 else "cp437")

    @property
    def executable(self) -> bool:
        """Whether its owner may execute it once installed."""
        return bool(self.mode & stat.S_IXUSR)


@dataclass(frozen=True)
class Archive:
    """An open zip archive whose structure has been checked; see `open_archive`.

    Attributes:
        path: the file.
        members: its files by name, in the order of their bytes. Folder entries are left out.
    """

    path: Path
    members: Mapping[str, Member]
    _descriptor: int

    def raw(self, start: int, end: int) -> bytes:
        """The archive's own bytes from offset *start* to *end*.

        Raises:
            ArchiveError: the file ends before that.
        """
        data = os.pread(self._descriptor, end - start, start)
        while len(data) < end - start:
            more = os.pread(self._descriptor, end - start - len(data), start + len(data))
            if not more:
                raise _fault(self.path, "it was cut off while being read")
            data += more
        return data

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content of the member *name* in pieces of a MiB or so, held against its CRC-32 and size.

        Raises:
            ArchiveError: there is no such member, or its data is damaged; the pieces that came
                before that are of no worth.
        """
        member = self.members.get(name)
        if member is None:
            raise _fault(self.path, f"it has no member {name}")
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

    def read(self, name: str) -> bytes:
        """The whole content of the member *name*; see `chunks`."""
        return b"".join(self.chunks(name))

    def compressed(self, member: Member) -> Iterator[bytes]:
        """The data of *member* as it lies in the archive, in pieces of a MiB."""
        end = member.data + member.compressed_size
        for start in range(member.data, end, CHUNK):
            yield self.raw(start, min(start + CHUNK, end))

    def _inflated(self, member: Member) -> Iterator[bytes]:
        if member.method == zipfile.ZIP_STORED:
            yield from self.compressed(member)
            return
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        for piece in self.compressed(member):
            raw = piece
            while raw:
                yield inflater.decompress(raw, CHUNK)
                raw = inflater.unconsumed_tail
        yield inflater.flush()

    def beginning(self, name: str, length: int) -> bytes:
        """The first *length* bytes of the member *name*, unchecked; at most a few hundred."""
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
    end record, and each local header has to agree with the central directory: what other
    tools might read from the file is then what we read.

    Raises:
        ArchiveError: the file is damaged, or uses what a wheel has no use for: zip64,
            encryption, links, doubled or unsafe names.
    """
    try:
        stream = path.open("rb")
    except OSError as error:
        raise ArchiveError(f"{path.name} could not be opened", because=str(error)) from error
    with stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                infos, directory = archive.infolist(), archive.start_dir
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
            raise _fault(path, f"it is not a zip archive that can be read: {error}") from error
        _check_end(path, stream.fileno(), len(infos), directory)
        try:
            members = _members(path, stream.fileno(), infos, directory)
        except UnicodeError as error:
            raise _fault(path, f"a name is not spelt as its flags say: {error}") from error
        yield Archive(path, members, stream.fileno())


def _fault(path: Path, because: str) -> ArchiveError:
    return ArchiveError(
        f"{path.name} cannot be used", because=because,
        next_step="get the file again; if it stays so, it was not made by a wheel builder",
    )  # fmt: skip


def _check_end(path: Path, descriptor: int, count: int, directory: int) -> None:
    """Hold the end record against what `zipfile` made of it, which forgives a lot."""
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, min(size, END.size + 0xFFFF), max(0, size - END.size - 0xFFFF))
    at = tail.rfind(END_SIGNATURE)
    end = size - len(tail) + at
    _, disk, first_disk, here, total, length, offset, comment = END.unpack_from(tail, at)
    if os.pread(descriptor, 4, max(0, end - ZIP64_LOCATOR_SIZE)) == ZIP64_LOCATOR or offset == IN_ZIP64:
        raise _fault(path, "it is a zip64 archive, which no wheel under 4 GiB needs to be")
    if disk or first_disk or here != total or total != count:
        raise _fault(path, "its end record does not count its members")
    if offset != directory or directory + length != end or end + END.size + comment != size:
        raise _fault(path, "it holds bytes before its first member or around its central directory")


def _members(path: Path, descriptor: int, infos: list[zipfile.ZipInfo], directory: int) -> dict[str, Member]:
    members: dict[str, Member] = {}
    names: set[str] = set()
    position = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if because := _entry_fault(info, names):
            raise _fault(path, because)
        names.add(info.filename)
        if info.header_offset != position:
            raise _fault(path, f"the bytes before {info.filename} belong to no member, or to two")
        member = _locate(path, descriptor, info, directory)
        position = member.end
        if not info.is_dir():
            members[member.name] = member
    if position != directory:
        raise _fault(path, "bytes before its central directory belong to no member")
    return members


def name_fault(name: str) -> str:
    """Why *name* is unsafe as a member's name, or the empty string."""
    if "\\" in name:
        return f"the name {name!r} holds a backslash"
    if name.startswith("/") or name[1:2] == ":":
        return f"the name {name!r} is absolute"
    if any(part in {"", ".", ".."} for part in name.removesuffix("/").split("/")):
        return f"the name {name!r} reaches outside its folder or has an empty part"
    if not name.isprintable():
        return f"the name {name!r} holds control characters"
    return ""


def _entry_fault(info: zipfile.ZipInfo, names: set[str]) -> str:
    """Why the member that *info* describes is refused, or the empty string."""
    if because := name_fault(info.filename):
        return because
    kind = stat.S_IFMT(info.external_attr >> 16)
    allowed = {0, stat.S_IFDIR} if info.is_dir() else {0, stat.S_IFREG}
    faults = {
        f"the name {info.orig_filename!r} holds a null byte": info.orig_filename != info.filename,
        f"the name {info.filename!r} appears twice": info.filename in names,
        f"{info.filename} is encrypted or a patch": info.flag_bits & (ENCRYPTED | STRONG | PATCHED),
        f"{info.filename} is compressed by method {info.compress_type}": info.compress_type not in _METHODS,
        f"{info.filename} is a zip64 member, which no wheel needs": info.extract_version >= ZIP64_VERSION,
        f"{info.filename} is neither a file nor a folder": kind not in allowed,
    }
    return next((fault for fault, found in faults.items() if found), "")


def _locate(path: Path, descriptor: int, info: zipfile.ZipInfo, directory: int) -> Member:
    """Where *info*'s bytes are, once its local header agrees with the central directory."""
    header = os.pread(descriptor, LOCAL.size + 4 * len(info.filename), info.header_offset)
    if len(header) < LOCAL.size or not header.startswith(LOCAL_SIGNATURE):
        raise _fault(path, f"{info.filename} has no local header")
    _, _, flags, method, time, date, crc, packed, size, name_length, extra = LOCAL.unpack_from(header)
    raw_name = header[LOCAL.size : LOCAL.size + name_length]
    member = Member(
        info.filename, info.flag_bits, info.compress_type, time, date, info.CRC, info.compress_size,
        info.file_size, info.external_attr >> 16, info.header_offset,
        data := info.header_offset + LOCAL.size + name_length + extra, data + info.compress_size,
    )  # fmt: skip
    stated = (crc, packed, size)
    true = (member.crc, member.compressed_size, member.size)
    agreed = stated == true or (
        flags & DESCRIPTOR_FOLLOWS and all(a in {0, b} for a, b in zip(stated, true, strict=True))
    )
    if raw_name != member.raw_name or method != member.method or flags != member.flags or not agreed:
        raise _fault(path, f"the two headers of {info.filename} disagree")
    if flags & DESCRIPTOR_FOLLOWS:
        member = _with_descriptor(path, descriptor, member)
    if member.end > directory:
        raise _fault(path, f"the data of {info.filename} is cut off")
    return member


def _with_descriptor(path: Path, descriptor: int, member: Member) -> Member:
    """*member* with the end of its data descriptor, whose signature is optional, as its end."""
    true = DESCRIPTOR.pack(member.crc, member.compressed_size, member.size)
    for expected in (DESCRIPTOR_SIGNATURE + true, true):
        if os.pread(descriptor, len(expected), member.end) == expected:
            return replace(member, end=member.end + len(expected))
    raise _fault(path, f"the data descriptor of {member.name} disagrees with its header")
