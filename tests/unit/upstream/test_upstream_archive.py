"""The sdist reader against archives that are crafted to do harm."""

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from sparkwright.base.errors import ArchiveError
from sparkwright.upstream import archive
from sparkwright.upstream.archive import ArchiveEntry, read_sdist


def file(name, data=b"x", mode=0o644, **fields):
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), mode
    for key, value in fields.items():
        setattr(member, key, value)
    return member, data


def special(name, kind, target=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


def link(name, target):
    return special(name, tarfile.SYMTYPE, target)


def folder(name):
    return special(name, tarfile.DIRTYPE)


def tar_bytes(members, **options):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", **options) as tar:
        for member, data in members:
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture
def write(tmp_path):
    def write(*members, **options) -> Path:
        path = tmp_path / "vllm-1.0.tar.gz"
        path.write_bytes(gzip.compress(tar_bytes(members, **options), compresslevel=1))
        return path

    return write


def test_reads_files_with_the_top_folder_stripped(write):
    path = write(
        folder("vllm-1.0"),
        folder("vllm-1.0/empty"),
        file("vllm-1.0/setup.py", b"setup", 0o664),
        file("vllm-1.0/tools/run.sh", b"#!/bin/sh", 0o775),
        file("vllm-1.0/tools/grüße.txt", b""),
        file("vllm-1.0/" + "long/" * 60 + "name.py", b"long"),
        link("vllm-1.0/docs/setup", "../setup.py"),
        file("vllm-1.0/.gitignore", b"*.pyc"),
        file("vllm-1.0/.github/ci.yml", b"on: push"),
        format=tarfile.PAX_FORMAT,
    )
    assert list(read_sdist(path)) == [
        ArchiveEntry("setup.py", "100644", b"setup"),
        ArchiveEntry("tools/run.sh", "100755", b"#!/bin/sh"),
        ArchiveEntry("tools/grüße.txt", "100644", b""),
        ArchiveEntry("long/" * 60 + "name.py", "100644", b"long"),
        ArchiveEntry("docs/setup", "120000", b"../setup.py"),
        ArchiveEntry(".gitignore", "100644", b"*.pyc"),
        ArchiveEntry(".github/ci.yml", "100644", b"on: push"),
    ]


GOOD = file("v/good.py")
HARMFUL = {
    "absolute": ([file("/etc/passwd")], "not safe"),
    "parent": ([file("v/../../x")], "not safe"),
    "parent-alone": ([file("../x")], "not safe"),
    "dot": ([file("v/./x")], "not safe"),
    "doubled-slash": ([file("v//x")], "not safe"),
    "backslash": ([file("v/a\\..\\b")], "backslash"),
    "newline": ([file("v/a\nb")], "control character"),
    "nul": ([file("v/x", pax_headers={"path": "v/a\0b"})], "control character"),
    "not-utf8": ([file("v/\udce9")], "UTF-8"),
    "git-folder": ([file("v/.git/hooks/post-checkout")], "'.git'"),
    "git-folder-in-capitals": ([file("v/sub/.GIT/config")], "'.git'"),
    "git-folder-with-a-mark-that-hfs-leaves-out": ([file("v/.g\u200cit/config")], "'.git'"),
    "git-folder-by-its-short-name": ([file("v/git~1/config")], "'.git'"),
    "git-folder-with-what-ntfs-leaves-out": ([file("v/.git. ./config")], "'.git'"),
    "git-folder-as-a-stream": ([file("v/.git::$INDEX_ALLOCATION/config")], "'.git'"),
    "path-too-long": ([file("v/" + "n" * 1100)], "longer than"),
    "link-absolute": ([link("v/a", "/etc/passwd")], "outside its tree"),
    "link-upwards": ([link("v/d/a", "../../x")], "outside its tree"),
    "link-into-git": ([link("v/a", ".git/config")], "outside its tree"),
    "link-empty": ([link("v/a", "")], "outside its tree"),
    "link-chain-outwards": (
        [link("v/d/l1", ".."), link("v/d/l2", "l1/.."), link("v/d/evil.py", "l2/etc/passwd")],
        "outside its tree",
    ),
    "hard-link": ([special("v/a", tarfile.LNKTYPE, "v/good.py")], "no file, folder or symbolic link"),
    "fifo": ([special("v/f", tarfile.FIFOTYPE)], "no file, folder or symbolic link"),
    "character-device": ([special("v/f", tarfile.CHRTYPE)], "no file, folder or symbolic link"),
    "block-device": ([special("v/f", tarfile.BLKTYPE)], "no file, folder or symbolic link"),
    "twice": ([file("v/good.py", b"other")], "twice"),
    "file-over-folder": ([file("v/d/x"), file("v/d")], "twice"),
    "below-a-file": ([file("v/good.py/x")], "both a file and a folder"),
    "below-a-link": ([link("v/l", "d"), file("v/l/x")], "both a file and a folder"),
    "folder-over-file": ([folder("v/good.py")], "both a file and a folder"),
    "second-top-folder": ([file("w/x")], "not below its top folder"),
    "file-beside-top-folder": ([file("x")], "not below its top folder"),
    "file-as-top-folder": ([file("v")], "where its top folder should be"),
}


@pytest.mark.parametrize(("members", "why"), HARMFUL.values(), ids=HARMFUL.keys())
def test_refuses_what_could_do_harm(write, members, why):
    with pytest.raises(ArchiveError) as caught:
        list(read_sdist(write(GOOD, *members, format=tarfile.PAX_FORMAT)))
    assert why in caught.value.because


@pytest.mark.parametrize(
    ("limit", "value", "why"),
    [
        ("MAX_MEMBERS", 2, "more than 2 members"),
        ("MAX_FILE_BYTES", 50_000, "more than 50000"),
        ("MAX_TOTAL_BYTES", 100_000, "its files have more than 100000"),
    ],
)
def test_refuses_absurd_sizes(write, monkeypatch, limit, value, why):
    path = write(*(file(f"v/{number}", bytes(60_000)) for number in range(3)))
    assert len(list(read_sdist(path))) == 3
    monkeypatch.setattr(archive, limit, value)
    with pytest.raises(ArchiveError) as caught:
        list(read_sdist(path))
    assert why in caught.value.because


def test_links_that_stay_inside_through_one_another_are_fine(write):
    members = [
        link("v/d/l1", ".."),
        link("v/d/l2", "l1/d/file"),
        link("v/loop", "loop"),
        link("v/l3", "d/l1"),
    ]
    assert len(list(read_sdist(write(file("v/d/file"), *members)))) == 5


@pytest.mark.parametrize("name", [".gitignore", ".github", "git", "git~2", "a.git", ".git-blame-ignore-revs"])
def test_names_that_only_resemble_git_are_fine(write, name):
    assert [entry.path for entry in read_sdist(write(file(f"v/{name}")))] == [name]


@pytest.mark.parametrize(
    "headers",
    [
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "x"},
        {"GNU.sparse.map": "a,b"},
        {"GNU.sparse.size": "-"},
        {"size": "x"},
    ],
)
def test_headers_that_cannot_be_understood_are_damage(write, headers):
    path = write(GOOD, file("v/odd", b"x" * 600, pax_headers=headers), format=tarfile.PAX_FORMAT)
    with pytest.raises(ArchiveError):
        list(read_sdist(path))


def test_a_header_that_asks_for_everything_is_refused(write, monkeypatch):
    path = write(file("v/x", pax_headers={"comment": "c" * 300_000}), format=tarfile.PAX_FORMAT)
    assert len(list(read_sdist(path))) == 1
    monkeypatch.setattr(archive, "MAX_FILE_BYTES", 200_000)
    with pytest.raises(ArchiveError, match="refused"):
        list(read_sdist(path))


def test_what_is_unpacked_counts_though_no_file_has_it(write, monkeypatch):
    path = write(*(folder(f"v/{number}") for number in range(200)))
    assert list(read_sdist(path)) == []
    monkeypatch.setattr(archive, "MAX_TOTAL_BYTES", 100_000)
    with pytest.raises(ArchiveError, match="unpacks to more than 100000"):
        list(read_sdist(path))


def test_sparse_files_are_refused(tmp_path):
    member, _ = file("v/sparse", b"")
    member.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"00000000000\0" * 2
    header[483:495] = b"77777777777\0"  # 8 GiB, of which nothing is stored
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = tmp_path / "v-1.0.tar.gz"
    path.write_bytes(gzip.compress(bytes(header) + bytes(1024)))
    with pytest.raises(ArchiveError, match="refused"):
        list(read_sdist(path))


def test_sparse_files_in_disguise_are_refused(write):
    """The newer form has the type of a plain file, and says in its headers that it is none."""
    holes = {"GNU.sparse.map": "0,1", "GNU.sparse.size": "8589934592", "GNU.sparse.name": "v/sparse"}
    path = write(GOOD, file("v/sparse", pax_headers=holes), format=tarfile.PAX_FORMAT)
    with pytest.raises(ArchiveError) as caught:
        list(read_sdist(path))
    assert "no file, folder or symbolic link" in caught.value.because


HEALTHY = tar_bytes([file("v/a", b"a" * 3000), file("v/b", b"b" * 3000)])


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(HEALTHY)[:-300],
        gzip.compress(HEALTHY)[:-4] + b"\0\0\0\0",
        gzip.compress(HEALTHY[: 512 + 3000]),
        gzip.compress(HEALTHY[: 512 + 3072]),
        gzip.compress(HEALTHY[: 512 + 3072] + b"rubbish" * 100),
        gzip.compress(HEALTHY[:512] + b"\xff" * 512),
        HEALTHY,
        b"",
        gzip.compress(b""),
    ],
    ids=[
        "cut-gzip", "wrong-checksum", "cut-in-a-file", "cut-between-files", "rubbish-between-files",
        "rubbish-as-data", "no-gzip", "empty", "empty-gzip",
    ],
)  # fmt: skip
def test_damage_is_reported(tmp_path, data):
    path = tmp_path / "vllm-1.0.tar.gz"
    path.write_bytes(gzip.compress(HEALTHY))
    assert len(list(read_sdist(path))) == 2
    path.write_bytes(data)
    with pytest.raises(ArchiveError, match=r"vllm-1.0.tar.gz is damaged"):
        list(read_sdist(path))


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(ArchiveError, match="could not be read"):
        list(read_sdist(tmp_path / "absent.tar.gz"))
