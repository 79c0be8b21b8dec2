"""The strict reader refuses what it should, and the writer keeps bytes as they are."""

import io
import os
import struct
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import elfkit
import pytest
import wheelkit
from hypothesis import given
from hypothesis import strategies as st

from sparkwright.base.errors import ArchiveError
from sparkwright.native.elf import read_elf
from sparkwright.native.inspection import Inspector, Surroundings
from sparkwright.store.paths import Store
from sparkwright.wheel.archive import MOST_TEXT, open_archive
from sparkwright.wheel.binaries import resolution_of
from sparkwright.wheel.rewrite import Kept, Range, Stored, layout, write_parts


class Pipe(io.BytesIO):
    """A stream that cannot seek: `zipfile` then writes data descriptors."""

    def tell(self) -> int:
        raise OSError


def zipped(
    files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, stream: io.BytesIO | None = None
) -> bytes:
    stream = io.BytesIO() if stream is None else stream
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


FILES = {
    "a/one.txt": b"one " * 100,
    "a/two.bin": bytes(range(256)) * 9,
    "b.txt": b"",
    "ünïcode.py": b"x = 1\n",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.zip"
    path.write_bytes(zipped(FILES))
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_and_their_beginnings_are_those_of_the_standard_library(tmp_path: Path, method: int) -> None:
    path = tmp_path / "source.zip"
    path.write_bytes(zipped({"a/": b"", **FILES}, method))
    with open_archive(path) as archive:
        assert {name: archive.read(name) for name in archive.members} == FILES
        assert {name: archive.beginning(name, 3) for name in archive.members} == {
            name: data[:3] for name, data in FILES.items()
        }


def test_all_kept_is_one_range_and_the_same_data(source: Path, tmp_path: Path) -> None:
    start = zipfile.ZipFile(source).start_dir
    with open_archive(source) as archive, (tmp_path / "new.zip").open("wb") as stream:
        parts = layout(Kept(archive, member, name) for name, member in archive.members.items())
        assert [(part.start, part.end) for part in parts if isinstance(part, Range)] == [(0, start)]
        digest = write_parts(parts, stream.fileno())
    assert (tmp_path / "new.zip").read_bytes()[:start] == source.read_bytes()[:start]
    assert digest == wheelkit.sha256(tmp_path / "new.zip")


def test_data_descriptors_are_copied_or_folded_into_the_header(tmp_path: Path) -> None:
    source, target = tmp_path / "piped.zip", tmp_path / "new.zip"
    source.write_bytes(zipped(FILES, stream=Pipe()))
    assert all(info.flag_bits & 8 for info in zipfile.ZipFile(source).infolist())
    names = {"a/one.txt": "a/one.txt", "a/two.bin": "renamed.bin", "b.txt": "b.txt"}
    with open_archive(source) as archive, target.open("wb") as stream:
        kept = [Kept(archive, archive.members[old], new) for old, new in names.items()]
        write_parts(layout(kept), stream.fileno())
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None
        assert archive.read("renamed.bin") == FILES["a/two.bin"]
        flags = {info.filename: bool(info.flag_bits & 8) for info in archive.infolist()}
        assert flags == {"a/one.txt": True, "renamed.bin": False, "b.txt": True}
    with open_archive(target) as archive:  # and it is strict enough for ourselves
        assert archive.read("a/one.txt") == FILES["a/one.txt"]


def test_a_descriptor_without_signature_is_understood(tmp_path: Path) -> None:
    data = zipped({"a": b"alpha"}, stream=Pipe())
    at = data.index(b"PK\7\x08")
    end = data.rindex(b"PK\5\6")
    shorter = data[:at] + data[at + 4 : end]
    shorter += data[end : end + 16] + struct.pack(
        "<L", len(shorter) - struct.unpack_from("<L", data, end + 12)[0]
    )
    shorter += data[end + 20 :]
    path = tmp_path / "short.zip"
    path.write_bytes(shorter)
    with open_archive(path) as archive:
        assert archive.read("a") == b"alpha"


def patched(data: bytes, name: bytes, offset: int, value: bytes, *, local: bool = False) -> bytes:
    """*data* with *value* at *offset* of the central (or local) header of the member *name*."""
    at = (data.index(name) - 30) if local else (data.rindex(name) - 46)
    return data[: at + offset] + value + data[at + offset + len(value) :]


def doubled() -> bytes:
    data = zipped({"first": b"1", "other": b"2"})
    return data.replace(b"other", b"first")


def overlapping() -> bytes:
    data = zipped({"aaaa": b"1", "bbbb": b"1"}, zipfile.ZIP_STORED)
    return patched(data, b"bbbb", 42, struct.pack("<L", 0))


def link() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, b"/etc/passwd")
    return stream.getvalue()


def zip64() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive, archive.open("big", "w", force_zip64=True) as member:
        member.write(b"x")
    return stream.getvalue()


FIRST = wheelkit.RawMember.of("first", b"1" * 100)


def spoilt(archive_comment: bytes = b"", **fields: Any) -> bytes:
    """An archive of two members, of which the first has other *fields*."""
    return wheelkit.raw_zip([replace(FIRST, **fields), wheelkit.RawMember.of("other", b"2")], archive_comment)


RENAMED = wheelkit.unicode_path(FIRST, "zz_evil.pth")
FOLDER = replace(FIRST, name=b"first/", mode=0o40755, dos=0x10)
# What `spoilt` is given, one thing wrong each, and the reason of the refusal.
STRUCTURES: dict[str, tuple[dict[str, Any], str]] = {
    "a comment": ({"archive_comment": b"PK" * 700}, "it has a comment"),
    "a member's comment": ({"comment": b"hello"}, "first has an extra field"),
    "a new name in both extra fields": (
        {"extra": RENAMED, "local_extra": RENAMED}, "first has an extra field",
    ),
    "a new name in the central extra field": ({"extra": RENAMED}, "first has an extra field"),
    "a new name in the local extra field": ({"local_extra": RENAMED}, "first has an extra field"),
    "a time in an extra field": ({"extra": b"UT\5\0\1abcd"}, "first has an extra field"),
    "a rest of an extra field": ({"extra": b"x"}, "first has an extra field"),
    "bytes between members": ({"gap": b"x"}, "bytes before other"),
    "a folder with content": ({**vars(FOLDER)}, "the folder first/ has content"),
    "a folder with hidden content": ({**vars(FOLDER), "size": 0, "crc": 0}, "the folder first/ has content"),
    "a file that is a folder elsewhere": ({"dos": 0x10}, "neither a file nor a folder"),
    "setuid": ({"mode": 0o104755}, "first has the mode"),
    "writable by all": ({"mode": 0o100666}, "first has the mode"),
    "a device": ({"mode": 0o020644}, "neither a file nor a folder"),
    "headers that are masked": ({"flags": 1 << 13}, "first has flags"),
    "a folder that states content": (
        {**vars(FOLDER), "data": b"", "method": 0, "size": 5, "crc": 0}, "the folder first/ has content",
    ),
    "a folder that is a link": ({**vars(FOLDER), "mode": 0o120777}, "neither a file nor a folder"),
}  # fmt: skip


@pytest.mark.parametrize("structure", STRUCTURES)
def test_what_no_wheel_needs_is_refused(structure: str, tmp_path: Path) -> None:
    fields, because = STRUCTURES[structure]
    path = tmp_path / "odd.zip"
    path.write_bytes(spoilt(**fields))
    assert len(zipfile.ZipFile(path).infolist()) > 0, "the standard library takes it"
    with pytest.raises(ArchiveError) as caught, open_archive(path):
        pass
    assert because in caught.value.because


def test_its_healthy_twins_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "plain.zip"
    empty = replace(FOLDER, data=b"", size=0, crc=0, method=0)
    for mode in (0o100644, 0o100755, 0o100664, 0):
        path.write_bytes(wheelkit.raw_zip([replace(FIRST, mode=mode), replace(empty, name=b"empty/")]))
        with open_archive(path) as archive:
            assert archive.read("first") == b"1" * 100
            assert archive.folders == ("empty/",)


def endless() -> bytes:
    deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflater.compress(b"1" * 100) + deflater.flush(zlib.Z_SYNC_FLUSH)


def damaged(data: bytes, offset: int) -> bytes:
    return data[:offset] + bytes([data[offset] ^ 0xFF]) + data[offset + 1 :]


def understated() -> bytes:
    data, size = zipped({"first": b"0" * 100_000}), struct.pack("<L", 10)
    return patched(patched(data, b"first", 24, size), b"first", 22, size, local=True)


def whole_piece() -> bytes:
    """A deflate stream of 16 stored blocks and exactly a MiB, as which it is read."""
    blocks = [struct.pack("<BHH", 0, 65531, 65531 ^ 0xFFFF) + bytes(65531)] * 16
    return b"".join([*blocks[:15], b"\1" + blocks[15][1:]])


# Archives that open, with a member that cannot be read.
UNREADABLE = {
    **{f"{len(end)} bytes behind its end": spoilt(data=FIRST.data + end)
       for end in (b"x", b"evil" * 1500, bytes(3 << 20))},
    "bytes behind an end that ends a piece": spoilt(data=whole_piece() + b"x", size=16 * 65531),
    "no end": spoilt(data=endless()),
    "damaged": damaged(zipped({"first": b"data" * 50}, zipfile.ZIP_STORED), 45),
    "damaged and deflated": damaged(zipped({"first": b"data" * 50}), 41),
    "more than it states": understated(),
}  # fmt: skip


@pytest.mark.parametrize("fault", UNREADABLE)
def test_a_member_that_is_not_what_it_states_is_refused(fault: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.zip"
    path.write_bytes(UNREADABLE[fault])
    if "behind its" in fault:
        assert zipfile.ZipFile(path).read("first") == b"1" * 100, "the standard library takes it"
    with open_archive(path) as archive:
        with pytest.raises(ArchiveError, match=r"odd\.zip"):
            archive.read("first")
        pieces: list[bytes] = []
        with pytest.raises(ArchiveError, match=r"odd\.zip"):
            pieces.extend(archive.chunks("first"))
        assert sum(map(len, pieces)) <= archive.members["first"].size, "no more is inflated"


def test_a_file_that_is_cut_off_while_it_is_read_is_refused(source: Path) -> None:
    with open_archive(source) as archive:
        os.truncate(source, 40)
        with pytest.raises(ArchiveError, match="cut off"):
            archive.read("a/two.bin")


def test_a_deflate_stream_that_is_none_has_no_beginning(tmp_path: Path) -> None:
    path = tmp_path / "odd.zip"
    path.write_bytes(spoilt(data=b"\xff" * 100))
    with open_archive(path) as archive, pytest.raises(ArchiveError, match=r"odd\.zip"):
        archive.beginning("first", 3)


def test_a_large_member_is_read_in_pieces_only(tmp_path: Path) -> None:
    data, crc = wheelkit.zeros(MOST_TEXT + (1 << 20))
    path = tmp_path / "large.zip"
    path.write_bytes(spoilt(data=data, crc=crc, size=MOST_TEXT + (1 << 20)))
    with open_archive(path) as archive:
        with pytest.raises(ArchiveError, match=r"large\.zip"):
            archive.read("first")
        assert max(map(len, archive.chunks("first"))) <= 1 << 20
        assert len(archive.read("first", most=MOST_TEXT + (1 << 20))) == MOST_TEXT + (1 << 20)


GOOD = zipped({"good": b"data" * 50})
PIPED = zipped({"good": b"data" * 50}, stream=Pipe())
LISTED = GOOD.index(b"PK\1\2")


def ended(at: int, value: int, before: bytes = b"", data: bytes = GOOD) -> bytes:
    """*data* with *value* in its end record, *at* so many bytes, and with bytes *before* that."""
    size = 4 if at in {12, 16} else 2
    end = len(data) - 22 + at
    return data[:-22] + before + data[-22:end] + value.to_bytes(size, "little") + data[end + size :]


FAULTS = {
    "not an archive": (b"hello", "not a zip archive"),
    "cut off": (GOOD[:-30], "not a zip archive"),
    "doubled name": (doubled(), "twice"),
    "absolute": (zipped({"/etc/x": b""}), "absolute"),
    "drive": (zipped({"C:/x": b""}), "absolute"),
    "parent": (zipped({"a/../../x": b""}), "outside"),
    "empty part": (zipped({"a//x": b""}), "empty part"),
    "backslash": (zipped({"a\\x": b""}), "backslash"),
    "control character": (zipped({"a\nb": b""}), "control"),
    "encrypted": (patched(GOOD, b"good", 8, b"\1\0"), "encrypted"),
    "method": (patched(GOOD, b"good", 10, b"\x0c\0"), "method 12"),
    # Writers before Python 3.11.4 state an older version for such a member.
    "zip64": (patched(zip64(), b"big", 6, b"\x2d"), "zip64"),
    "zip64 version": (patched(GOOD, b"good", 6, b"\x2d"), "zip64"),
    "link": (link(), "neither a file nor a folder"),
    "prefixed": (b"#!/bin/sh\n" + GOOD, "bytes before"),
    "trailing": (GOOD + b"more", "central directory"),
    "overlap": (overlapping(), "to two"),
    "local name": (patched(GOOD, b"good", 30, b"evil", local=True), "headers of good disagree"),
    "local size": (patched(GOOD, b"good", 22, b"\1", local=True), "headers of good disagree"),
    "a descriptor": (damaged(PIPED, PIPED.index(b"PK\7\x08") + 4), "the data descriptor of good"),
    "local signature": (patched(GOOD, b"good", 0, b"XXXX", local=True), "no local header"),
    "local time": (patched(GOOD, b"good", 10, b"\1\1", local=True), "headers of good disagree"),
    "local name's length": (patched(GOOD, b"good", 26, b"\5", local=True), "headers of good disagree"),
    "local zip64 version": (patched(GOOD, b"good", 4, b"\x2d", local=True), "zip64"),
    "zip64 locator": (ended(10, 1, bytes(56) + b"PK\6\7" + bytes(16)), "zip64"),
    "a comment that is not there": (ended(20, 5), "around its central directory"),
    "a disk": (ended(4, 1), "count"),
    "a disk of the list": (ended(6, 1), "count"),
    "count on this disk": (ended(8, 2), "count"),
    "count": (ended(10, 2), "count"),
    "count of both": (ended(10, 2, data=ended(8, 2)), "count"),
    "list's signature": (patched(GOOD, b"good", 0, b"XXXX"), "malformed"),
    "list's name's length": (patched(GOOD, b"good", 28, b"\xff"), "malformed"),
    "a member's disk": (patched(GOOD, b"good", 34, b"\1"), "malformed"),
    "no whole entry": (ended(12, len(GOOD) - 22 - LISTED + 10, b"PK\1\2" + bytes(6)), "malformed"),
    "no UTF-8": (patched(GOOD.replace(b"good", b"g\xff\xffd"), b"g\xff\xffd", 8, b"\0\x08"), "malformed"),
    "bytes before the list": (
        ended(16, LISTED + 1, data=GOOD[:LISTED] + b"x" + GOOD[LISTED:]),
        "before its central directory",
    ),
    "cut off and too short": (b"PK\5\6", "malformed"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_unsafe_or_damaged_archive_is_refused(fault: str, tmp_path: Path) -> None:
    data, because = FAULTS[fault]
    path = tmp_path / "bad.zip"
    path.write_bytes(data)
    with pytest.raises(ArchiveError) as caught, open_archive(path):
        pass
    assert because in caught.value.because


@pytest.mark.parametrize("names", [["a", "a"], ["../a"]])
def test_the_writer_refuses_doubled_and_unsafe_names(names: list[str]) -> None:
    with pytest.raises(ArchiveError, match="cannot be written"):
        layout(Stored(name, b"") for name in names)


def test_the_writer_refuses_what_would_need_zip64() -> None:
    with pytest.raises(ArchiveError) as caught:
        layout(Stored(f"n{number}", b"") for number in range(0xFFFF))
    assert "zip64" in caught.value.because


@given(
    st.dictionaries(
        st.text("abcd-_.é", min_size=1, max_size=12).filter(lambda name: name not in {".", ".."}),
        st.binary(max_size=200), max_size=12,
    ),
    st.data(),
)  # fmt: skip
def test_any_selection_reads_back(tmp_path_factory, files, data):
    folder = tmp_path_factory.mktemp("any")
    source, target = folder / "source.zip", folder / "target.zip"
    source.write_bytes(zipped(files))
    kept = {name for name in files if data.draw(st.booleans())}
    with open_archive(source) as archive, target.open("wb") as stream:
        parts = layout(
            Kept(archive, member, name) if name in kept else Stored(name, files[name][::-1])
            for name, member in archive.members.items()
        )
        write_parts(parts, stream.fileno())
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None
        expected = {name: content if name in kept else content[::-1] for name, content in files.items()}
        assert {name: archive.read(name) for name in archive.namelist()} == expected


# What is known of a binary is found once for a store, and again where anything that decides it differs


SHA256 = "a" * 64


@pytest.fixture
def inspector(store: Store) -> Inspector:
    def none() -> Path:
        raise AssertionError("no device code is asked for")

    return Inspector(store, none)


def test_symbols_are_resolved_once_among_the_same_libraries(tmp_path: Path, inspector: Inspector) -> None:
    lib = elfkit.shared(
        tmp_path / "lib" / "libtorch.so", "int add(void) { return 1; }", "-Wl,-soname,libtorch.so"
    )
    code = "int add(void); int f(void) { return add(); }"
    elf = read_elf(elfkit.shared(tmp_path / "x.so", code, "-Wl,--no-as-needed", lib))
    there = Surroundings.of([lib.parent], key="there")
    gone = Surroundings.of([])

    def unresolved(surroundings: Surroundings, sha256: str = SHA256) -> tuple[str, ...]:
        return resolution_of(elf, sha256, surroundings, "none", inspector).unresolved

    assert unresolved(there) == ()
    assert unresolved(replace(gone, key="there")) == (), "remembered"
    assert unresolved(replace(gone, key="gone")) == ("add",), "other libraries"
    assert unresolved(replace(gone, key="there"), "b" * 64) == ("add",), "another binary"
    assert unresolved(gone) == ("add",)
    assert unresolved(replace(there, key="")) == (), "without a key nothing is remembered"
