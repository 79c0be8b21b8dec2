"""The store: nothing under its final name before it is whole, whatever kills, fills or races it."""

import errno
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from killed import at_call, in_child
from kit import finish, python

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import DigestError
from sparkwright.store.disk import remove_tree, write_atomically
from sparkwright.store.paths import Store, open_store


def dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


# Files -------------------------------------------------------------------------------------


def test_adopting_moves_verified_bytes_and_makes_them_read_only(store: Store, tmp_path: Path) -> None:
    source, digest = tmp_path / "download", sha256_bytes(b"bytes")
    source.write_bytes(b"bytes")
    assert store.find_file(digest) is None
    path = store.adopt_file(source, digest)
    assert path == store.find_file(digest)
    assert path.read_bytes() == b"bytes"
    assert not source.exists()
    assert stat.S_IMODE(path.stat().st_mode) == 0o444


def test_adopting_other_bytes_is_refused_and_removes_them(store: Store, tmp_path: Path) -> None:
    source, digest = tmp_path / "download", sha256_bytes(b"bytes")
    source.write_bytes(b"other")
    with pytest.raises(DigestError, match="download") as caught:
        store.adopt_file(source, digest)
    assert digest in caught.value.because
    assert sha256_bytes(b"other") in caught.value.because
    assert not source.exists()
    assert store.find_file(digest) is None


# Records -----------------------------------------------------------------------------------


def test_records_come_back(store: Store) -> None:
    assert store.find_record("kind", "key") is None
    store.put_record("kind", "key", {"a": [1, "é"]})
    assert store.find_record("kind", "key") == {"a": [1, "é"]}
    assert store.find_record("other", "key") is None
    store.put_record("kind", "key", {"a": 2})
    assert store.find_record("kind", "key") == {"a": 2}


@pytest.mark.parametrize("damage", [b"", b'{"a": ', b"\xff\xfe\0", b"[1]", b"null", b'"text"'])
def test_a_damaged_record_counts_as_none(store: Store, damage: bytes) -> None:
    store.put_record("kind", "key", {"a": 1})
    (path,) = store.records.rglob("*.json")
    path.write_bytes(damage)
    assert store.find_record("kind", "key") is None
    store.put_record("kind", "key", {"a": 2})
    assert store.find_record("kind", "key") == {"a": 2}


def test_an_atomic_write_leaves_no_other_file_and_one_fixed_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_an_atomic_write_that_fails_leaves_the_old_bytes(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="broken"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
def test_a_write_that_is_killed_at_any_step_leaves_the_old_bytes(tmp_path: Path, step: str) -> None:
    (tmp_path / "file").write_bytes(b"old")
    killed = in_child(lambda: write_atomically(tmp_path / "file", b"new"), at_call([step], 1))
    assert killed == -signal.SIGKILL
    assert (tmp_path / "file").read_bytes() == b"old"
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("step", ["chmod", "replace"])
def test_an_adoption_that_is_killed_at_any_step_is_done_or_can_go_on(tmp_path: Path, step: str) -> None:
    source, digest = tmp_path / "download", sha256_bytes(b"bytes")
    source.write_bytes(b"bytes")
    store = open_store(tmp_path / "home")
    killed = in_child(lambda: store.adopt_file(source, digest), at_call([step], 1))
    assert killed == -signal.SIGKILL
    found = store.find_file(digest)
    assert source.exists() == (found is None)
    if found is None:
        assert source.stat().st_mode & 0o200  # a download can be resumed
        found = store.adopt_file(source, digest)
    assert found.read_bytes() == b"bytes"


# Scratch -----------------------------------------------------------------------------------


def test_scratch_is_gone_after_the_block_whatever_happens(store: Store) -> None:
    with store.scratch() as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").touch()
        (folder / "sub").chmod(0o555)
        assert folder.parent == store.scratch_root
    assert not folder.exists()
    with pytest.raises(RuntimeError), store.scratch() as folder:
        raise RuntimeError
    assert not folder.exists()


def test_the_sweep_removes_what_nobody_holds_whatever_its_name(tmp_path: Path) -> None:
    store = open_store(tmp_path / "home")
    # Process ids mean nothing: in another container that shares the store, this one may be anybody's.
    dead = store.scratch_root / f"{os.getppid()}-abc"
    nobody = store.scratch_root / "left-over"
    stray, link = store.scratch_root / "file", store.scratch_root / "link"
    alive = store.scratch_root / f"{dead_process()}-abc"
    for folder in (dead, nobody, alive):
        (folder / "sub").mkdir(parents=True)
    stray.touch()
    link.symlink_to(tmp_path)
    held = os.open(alive, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with store.scratch() as mine:
        assert open_store(tmp_path / "home").home == store.home
        assert sorted(store.scratch_root.iterdir()) == sorted([mine, alive])
        assert (alive / "sub").is_dir()
    os.close(held)
    open_store(tmp_path / "home")
    assert list(store.scratch_root.iterdir()) == []
    assert tmp_path.is_dir()


def test_what_a_killed_write_left_is_swept_and_what_a_living_one_holds_is_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    dead, alive, other = tmp_path / ".file.dead", tmp_path / ".file.alive", tmp_path / ".other.dead"
    for left in (dead, alive, other):
        left.touch()
    with alive.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        write_atomically(path, b"bytes")
    assert sorted(tmp_path.iterdir()) == sorted([path, alive, other])


def test_a_sweep_between_making_and_locking_costs_only_another_try(store, monkeypatch):
    """The one moment in which a sweep may take a living owner's file or folder."""
    swept = []
    lock = fcntl.flock

    def sweep_first(handle: object, operation: int) -> None:
        if len(swept) < 2:
            path = Path(f"/proc/self/fd/{handle}").readlink()
            swept.append(path)
            remove_tree(path)
        lock(handle, operation)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    with store.scratch() as folder:
        (folder / "file").touch()
        assert len(swept) == 2
    assert list(store.scratch_root.iterdir()) == []
    swept.clear()
    write_atomically(store.home / "file", b"bytes")
    assert len(swept) == 2
    assert (store.home / "file").read_bytes() == b"bytes"


@pytest.mark.parametrize("kind", [stat.S_IFSOCK, stat.S_IFIFO])
def test_the_sweep_removes_sockets_and_pipes_of_a_killed_server(tmp_path: Path, kind: int) -> None:
    store = open_store(tmp_path / "home")
    dead = store.scratch_root / f"{dead_process()}-abc"
    (dead / "deep").mkdir(parents=True)
    for folder in (dead, dead / "deep", store.scratch_root):
        os.mknod(folder / "left-over", kind | 0o600)
    assert open_store(tmp_path / "home").home == store.home
    assert not list(store.scratch_root.iterdir())


# Folders -----------------------------------------------------------------------------------


def test_publishing_a_folder_keeps_the_first(store: Store) -> None:
    target = store.trees / "tree"
    for text in ("first", "second"):
        with store.scratch() as scratch:
            fresh = scratch / "fresh"
            fresh.mkdir()
            (fresh / "file").write_text(text)
            assert store.publish_folder(fresh, target) == target
    assert (target / "file").read_text() == "first"


REMOVE = """
import os, sys
from pathlib import Path
from sparkwright.store.disk import remove_tree
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
remove_tree(Path(sys.argv[1]))
"""


def test_a_read_only_tree_is_removed_and_nothing_that_it_links_to_is_touched() -> None:
    """As a user without root's powers, to whom modes mean something."""
    place = Path(tempfile.mkdtemp(prefix="sparkwright-test-"))
    try:
        outside, tree = place / "outside", place / "tree"
        (tree / "a" / "b").mkdir(parents=True)
        (tree / "a" / "b" / "file").write_text("x")
        outside.write_text("mine")
        (tree / "a" / "link").symlink_to(outside)
        (tree / "a" / "folder").symlink_to(place)
        (tree / "a" / "dangling").symlink_to("nowhere")
        if os.getuid() == 0:
            for path in (place, *place.rglob("*")):
                os.chown(path, 65534, 65534, follow_symlinks=False)
        place.chmod(0o755)
        outside.chmod(0o440)
        for folder in (tree / "a" / "b", tree / "a", tree):
            folder.chmod(0o000 if folder.name == "b" else 0o555)
        finish(python(REMOVE, tree))
        assert not tree.exists()
        assert stat.S_IMODE(outside.stat().st_mode) == 0o440
        assert stat.S_IMODE(place.stat().st_mode) == 0o755
    finally:
        shutil.rmtree(place)


def test_removing_what_is_missing_a_file_or_a_link_is_fine(tmp_path: Path) -> None:
    remove_tree(tmp_path / "missing")
    target = tmp_path / "target"
    target.mkdir(mode=0o750)
    (target / "kept").touch()
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "file").touch()
    for name in ("link", "dangling", "file"):
        remove_tree(tmp_path / name)
        assert not (tmp_path / name).is_symlink()
        assert not (tmp_path / name).exists()
    assert (target / "kept").exists()
    assert stat.S_IMODE(target.stat().st_mode) == 0o750


def test_runs_that_sweep_at_once_all_open_the_store(tmp_path: Path) -> None:
    store = open_store(tmp_path / "home")
    dead = store.scratch_root / f"{dead_process()}-abc"
    for number in range(300):
        (dead / f"{number}" / "deep").mkdir(parents=True)
        (dead / f"{number}" / "file").touch()
    script = (
        "import sys; from pathlib import Path; from sparkwright.store.paths import open_store\n"
        "open_store(Path(sys.argv[1]))"
    )
    for process in [python(script, store.home) for _ in range(4)]:
        finish(process)
    assert not dead.exists()
