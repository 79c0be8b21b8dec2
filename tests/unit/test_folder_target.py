"""A folder as a target: immutable files, conditional pointers, and paths that lead nowhere else."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sparkwright.base.errors import LostRaceError, PublishError, UploadError
from sparkwright.publish.folder_target import FolderTarget
from sparkwright.publish.target import checked_path


@pytest.fixture
def target(tmp_path: Path) -> FolderTarget:
    return FolderTarget(tmp_path / "target")


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
