"""A folder as a target: immutable files, conditional pointers, and paths that lead nowhere else."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import LostRaceError, PublishError, StorageError, UploadError
from sparkwright.publish.target import FolderTarget, Stored, checked_path


@pytest.fixture
def target(tmp_path: Path) -> FolderTarget:
    return FolderTarget(tmp_path / "target")


def test_of_two_writers_at_once_one_wins(target: FolderTarget) -> None:
    tag, second = target.replace("p", b"0", expected=None), ThreadPoolExecutor(1)
    written: list[Future[str]] = []

    class Overtaken(FolderTarget):
        def read(self, path: str) -> Stored | None:
            """Let the other one write, if it may, between what is compared and what is written."""
            found = super().read(path)
            written.append(second.submit(target.replace, "p", b"2", expected=tag))
            wait(written, timeout=0.2)
            return found

    with second:
        assert Overtaken(target.folder).replace("p", b"1", expected=tag) == sha256_bytes(b"1")
        with pytest.raises(LostRaceError):
            written[0].result()
    assert (target.folder / "p").read_bytes() == b"1"


def test_a_folder_in_the_place_of_a_file_is_one_clear_error(target: FolderTarget) -> None:
    (target.folder / "p").mkdir(parents=True)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(StorageError, match="is a directory"):
        target.read("p")
    assert len(list(Path("/proc/self/fd").iterdir())) == before, "and it is closed"
    (target.folder / "f").write_bytes(b"x")
    with pytest.raises(StorageError, match=r"file exists|not a directory"):
        target.replace("f/p", b"1", expected=None)


@pytest.mark.parametrize("link", ["wheels", "wheels/aa", "wheels/aa/d"])
def test_a_link_in_the_place_of_a_folder_is_not_followed(target, tmp_path, link):
    """Whoever may write to the target would have its publisher write, or remove, files elsewhere."""
    path, file, elsewhere = "wheels/aa/d/f", tmp_path / "f", tmp_path / "elsewhere"
    file.write_bytes(b"x")
    target.put_file(path, file, sha256_bytes(b"x"))
    elsewhere.mkdir()
    shutil.move(target.folder / link, elsewhere)
    (target.folder / link).symlink_to(elsewhere / Path(link).name)
    changes = (
        lambda: target.put_file("wheels/aa/d/g", file, sha256_bytes(b"x")),
        lambda: target.put_file(path, file, sha256_bytes(b"x")),
        lambda: target.replace(path, b"y", expected=sha256_bytes(b"x")),
        lambda: target.remove(path),
    )
    for change in changes:
        with pytest.raises(UploadError, match="is a link"):
            change()
    with pytest.raises(UploadError, match="no plain file of that folder"):
        target.read(path)
    assert [found.read_bytes() for found in elsewhere.rglob("*") if found.is_file()] == [b"x"]


def test_the_folder_of_a_target_may_be_a_link(target: FolderTarget, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    target.folder.symlink_to(tmp_path / "disk")
    target.replace("a/p", b"1", expected=None)
    assert (tmp_path / "disk/a/p").read_bytes() == b"1"


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_plain_file_is_not_waited_for(target: FolderTarget, tmp_path: Path, kind: str) -> None:
    target.folder.mkdir()
    (tmp_path / "f").write_bytes(b"x")
    path = target.folder / "p"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    for use in (target.read, lambda path: target.put_file(path, tmp_path / "f", sha256_bytes(b"x"))):
        with pytest.raises(UploadError, match="no plain file"):
            use("p")


@pytest.mark.parametrize(
    "path", ["", "/a", "../a", "a/../b", "a//b", "a/", ".", "a/./b", "a\\b", "a\nb", "a\0b"]
)
def test_a_path_that_leads_elsewhere_is_refused(target: FolderTarget, path: str) -> None:
    for use in (checked_path, target.read, target.url):
        with pytest.raises(PublishError):
            use(path)
