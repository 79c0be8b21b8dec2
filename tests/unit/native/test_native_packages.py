"""Wheels become folders: safely, once, and with no more transferred than is wanted."""

import dataclasses
import io
import os
import stat
import zipfile
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from http_index import Fault
from native_kit import PROGRAM, Member, make_wheel, offer, tree_of
from upstream_kit import offline

from sparkwright.base.errors import ArchiveError, DigestError, FetchError, NotInStoreError
from sparkwright.native.packages import find_package, unpack_package

pytest_plugins = ["package_access"]

NAME = "thing-1.0-py3-none-any.whl"
FILES = {
    "lib/big": Member(os.urandom(1 << 18)),
    "inc/a.h": "// a\n",
    "inc/deep/b.h": "// b\n",
    "bin/tool": Member(b"tool", PROGRAM),
    "other/big": Member(os.urandom(1 << 18)),
}
WANTED = {path: content for path, content in FILES.items() if path.startswith(("inc/", "bin/"))}


def partial(index, **changes):
    """The wheel of `FILES`, of which two folders are wanted."""
    package = offer(index, NAME, make_wheel(FILES), folders=("inc", "bin/tool"), tree=tree_of(WANTED))
    return msgspec.structs.replace(package, **changes)


def listing(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def expected(files):
    return {path: getattr(content, "data", None) or content.encode() for path, content in files.items()}


def leftovers(access):
    return [*access.store.scratch_root.iterdir(), *access.store.toolchains.glob("packages/*")]


def test_everything_is_unpacked_where_nothing_is_named(access, index):
    package = offer(index, NAME, make_wheel(FILES))
    assert find_package(access.store, package) is None
    folder = unpack_package(access, package)
    assert listing(folder) == expected(FILES)
    assert find_package(access.store, package) == folder
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}
    assert modes == {"big": 0o444, "a.h": 0o444, "b.h": 0o444, "tool": 0o555}


def test_only_the_named_folders_are_unpacked(access, index):
    package = offer(index, NAME, make_wheel(FILES), folders=("inc", "bin/tool"))
    assert listing(unpack_package(access, package)) == expected(WANTED)
    # A folder's name is not the beginning of another's.
    short = offer(index, NAME, make_wheel(FILES), folders=("in", "bin/too"))
    assert listing(unpack_package(access, short)) == {}


def test_only_what_is_wanted_is_transferred(access, index, heard):
    package = partial(index)
    assert listing(unpack_package(access, package)) == expected(WANTED)
    assert access.store.find_file(package.sha256) is None
    (told,) = [data for data in heard.of("task.finished") if "fetch parts" in data["name"]]
    assert told["done"] < package.size / 4
    assert len(index.downloads) == 2  # the end with the list, and the members
    assert all(ranged for ranged in index.downloads)


def test_a_list_of_members_that_is_long_or_short(access, index):
    many = {f"inc/{number:05d}.h": f"{number}\n" for number in range(2000)}
    package = offer(
        index,
        NAME,
        make_wheel({"big": Member(os.urandom(1 << 17)), **many}),
        folders=("inc",),
        tree=tree_of(many),
    )
    assert listing(unpack_package(access, package)) == expected(many)
    assert len(index.downloads) == 3  # the end, what of the list was before it, the members
    small = offer(
        index, "few-1.0-py3-none-any.whl", make_wheel({"a": "a"}), folders=("a",), tree=tree_of({"a": "a"})
    )
    assert listing(unpack_package(access, small)) == {"a": b"a"}


def test_a_server_that_sends_whole_files_only(access, index, heard):
    package = partial(index)
    index.faults = [Fault(ignore_range=True)]
    assert listing(unpack_package(access, package)) == expected(WANTED)
    assert [data["what"] for data in heard.of("fetch.whole")] == [NAME]
    assert access.store.find_file(package.sha256)


@pytest.mark.parametrize("drop", [0, 10, 70_000])
def test_a_transfer_that_breaks_off_goes_on(access, index, drop):
    access = dataclasses.replace(access, settings=dataclasses.replace(access.settings, attempts=3))
    large = {"inc/large.h": Member(os.urandom(1 << 18))}
    package = offer(
        index, NAME, make_wheel({**FILES, **large}), folders=("inc/large.h",), tree=tree_of(large)
    )
    index.faults = [Fault(), Fault(drop_after=drop), Fault(drop_after=drop)]
    assert listing(unpack_package(access, package)) == expected(large)


def test_a_transfer_that_never_gets_on_is_given_up(access, index):
    package = partial(index)
    index.faults = [Fault(drop_after=0)] * 9
    with pytest.raises(FetchError, match="could not be fetched"):
        unpack_package(access, package)
    assert leftovers(access) == []


@pytest.mark.parametrize(
    "fault", [Fault(flip=True), Fault(shift_range=1)], ids=["other bytes", "another range"]
)
def test_parts_that_are_not_what_the_lock_names(access, index, fault):
    package = partial(index)
    index.faults = [Fault(), fault]
    with pytest.raises((DigestError, FetchError, ArchiveError)):
        unpack_package(access, package)
    assert leftovers(access) == []


def test_another_file_of_that_name(access, index):
    package = partial(index)
    with pytest.raises(DigestError, match="does not unpack to"):
        unpack_package(access, msgspec.structs.replace(package, tree="0" * 40))
    with pytest.raises(DigestError, match="is not the file that the lock names"):
        unpack_package(access, msgspec.structs.replace(package, size=package.size + 1))
    with pytest.raises(DigestError, match="on the index is not the file"):
        unpack_package(access, msgspec.structs.replace(package, sha256="0" * 64))
    assert leftovers(access) == []
    assert listing(unpack_package(access, package)) == expected(WANTED)


UNSAFE = {
    "up": {"../evil": "x"},
    "up inside": {"a/../../evil": "x"},
    "absolute": {"/evil": "x"},
    "backslash": {"a\\b": "x"},
    "git": {"a/.GIT/hooks": "x"},
    "empty part": {"a//b": "x"},
    "control": {"a\nb": "x"},
    "link": {"a": Member(b"/etc/passwd", stat.S_IFLNK | 0o777)},
    "file and folder": {"a": "x", "a/b": "x"},
}


@pytest.mark.parametrize("files", UNSAFE.values(), ids=UNSAFE.keys())
def test_a_member_that_would_leave_its_folder_is_refused(access, index, files):
    package = offer(index, NAME, make_wheel({"good": "x", **files}))
    with pytest.raises(ArchiveError, match="was refused"):
        unpack_package(access, package)
    assert leftovers(access) == []
    assert not list(access.store.home.rglob("evil"))


def test_a_path_that_is_there_twice_is_refused(access, index):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a", "one")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a", "two")
    with pytest.raises(ArchiveError, match="there twice"):
        unpack_package(access, offer(index, NAME, stream.getvalue()))


def flipped(data):
    """*data* with one byte of the first member's content changed."""
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


@pytest.mark.parametrize("spoil", [lambda data: data[:-30], lambda data: b"not a zip", flipped])
def test_a_damaged_wheel_is_refused(access, index, spoil):
    data = spoil(make_wheel({"a": "x" * 5000}))
    for changes in ({}, {"folders": ("a",), "tree": tree_of({"a": "x" * 5000})}):
        with pytest.raises((ArchiveError, DigestError)):
            unpack_package(access, offer(index, NAME, data, **changes))
    assert leftovers(access) == []


def test_without_a_network(access, index):
    package, whole = partial(index), offer(index, "whole-1-py3-none-any.whl", make_wheel({"a": "a"}))
    for each in (package, whole):
        with pytest.raises(NotInStoreError):
            unpack_package(offline(access), each)
        folder = unpack_package(access, each)
        assert unpack_package(offline(access), each) == folder


def test_two_runs_at_once_fetch_once(access, index):
    package = partial(index)
    index.faults = [Fault(pause_s=0.05)]
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(lambda _: unpack_package(access, package), range(2))
    assert one == two
    assert len(index.downloads) == 2  # as one run alone
