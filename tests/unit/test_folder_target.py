"""A folder as a target: immutable files, conditional pointers, and paths that lead nowhere else."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from sparkwright.base.errors import LostRaceError, PublishError, TamperedError, UploadError
from sparkwright.publish.folder_target import FolderTarget
from sparkwright.publish.target import checked_path


@pytest.fixture
def target(tmp_path: Path) -> FolderTarget:
    return FolderTarget(tmp_path / "target")


def put(target: FolderTarget, path: str, data: bytes, folder: Path, *, sha256: str = "") -> None:
    file = folder / "file"
    file.write_bytes(data)
    target.put_file(path, file, sha256 or hashlib.sha256(data).hexdigest())


def test_a_file_is_put_once_and_never_changes(target: FolderTarget, tmp_path: Path) -> None:
    put(target, "a/b+c.whl", b"one", tmp_path)
    put(target, "a/b+c.whl", b"one", tmp_path)
    with pytest.raises(TamperedError, match="published files never change"):
        put(target, "a/b+c.whl", b"two", tmp_path)
    assert (found := target.read("a/b+c.whl")) is not None
    assert found.data == b"one"
    assert sorted(target.sizes("")) == ["a/b+c.whl"]
    assert target.url("a/b+c.whl") == (target.folder / "a/b+c.whl").as_uri()


def test_other_bytes_than_promised_do_not_appear(target: FolderTarget, tmp_path: Path) -> None:
    with pytest.raises(TamperedError):
        put(target, "a", b"one", tmp_path, sha256="0" * 64)
    assert target.read("a") is None
    assert sorted(target.sizes("")) == []


def test_a_pointer_is_replaced_only_by_those_who_read_it(target: FolderTarget) -> None:
    first = target.replace("p", b"1", expected=None)
    with pytest.raises(LostRaceError):
        target.replace("p", b"2", expected=None)
    second = target.replace("p", b"2", expected=first)
    with pytest.raises(LostRaceError):
        target.replace("p", b"3", expected=first)
    assert (found := target.read("p")) is not None
    assert (found.data, found.tag) == (b"2", second)
    with pytest.raises(LostRaceError):
        target.replace("q", b"1", expected=second)


def test_of_many_writers_at_once_one_wins_each_time(target: FolderTarget) -> None:
    tag = target.replace("p", b"0", expected=None)
    won: list[bytes] = []

    def write(data: bytes) -> None:
        try:
            target.replace("p", data, expected=tag)
            won.append(data)
        except LostRaceError:
            pass

    threads = [threading.Thread(target=write, args=(b"%d" % number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert (found := target.read("p")) is not None
    assert found.data == won[0]


def test_what_is_not_there_is_none(target: FolderTarget) -> None:
    assert target.read("a") is None
    assert target.read("a") is None
    assert sorted(target.sizes("a")) == []
    assert not target.folder.exists()


def test_a_folder_in_the_place_of_a_file_is_one_clear_error(target: FolderTarget) -> None:
    (target.folder / "p").mkdir(parents=True)
    with pytest.raises(UploadError):
        target.read("p")
    (target.folder / "f").write_bytes(b"x")
    with pytest.raises(UploadError):
        target.replace("f/p", b"1", expected=None)


@pytest.mark.parametrize(
    "path", ["", "/a", "../a", "a/../b", "a//b", "a/", ".", "a/./b", "a\\b", "a\nb", "a\0b"]
)
def test_a_path_that_leads_elsewhere_is_refused(target: FolderTarget, path: str) -> None:
    for use in (checked_path, target.read, target.url):
        with pytest.raises(PublishError):
            use(path)
