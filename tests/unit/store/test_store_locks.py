"""Locks between runs, and disks that are full, read-only or broken."""

import errno
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from killed import stopped
from kit import Recorder, finish, python, small_disk

from sparkwright.base.errors import BusyError, StorageError
from sparkwright.store.disk import hold, storing
from sparkwright.store.paths import Store, default_home, open_store

# Locks -------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from sparkwright.store.disk import hold
with hold(Path(sys.argv[1]), "the thing"):
    print("held", flush=True)
    sys.stdin.readline() if sys.argv[2] == "wait" else time.sleep(float(sys.argv[2]))
    Path(sys.argv[1] + ".done").touch()
"""


def holder(lock: Path, seconds: str) -> subprocess.Popen[str]:
    process = python(HOLD, lock, seconds)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_whoever_comes_second_says_so_waits_and_finds_the_work_done(tmp_path: Path, heard: Recorder) -> None:
    lock = tmp_path / "locks" / "a.lock"
    first = holder(lock, "0.3")
    with hold(lock, "the thing"):
        assert Path(f"{lock}.done").exists()
    finish(first)
    assert heard.of("lock.waiting") == [{"what": "the thing", "path": str(lock)}]


def test_patience_ends_in_an_error_that_names_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    first = holder(lock, "60")
    with (
        pytest.raises(BusyError, match="the thing is in use") as caught,
        hold(lock, "the thing", patience_s=0.1),
    ):
        pass
    assert str(lock) in caught.value.because
    assert caught.value.next_step
    # The kernel gives the lock back when its holder dies, however it dies.
    stopped(first, signal.SIGKILL)
    with hold(lock, "the thing", patience_s=5):
        pass


def test_a_lock_is_free_again_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), hold(tmp_path / "a.lock", "it"):
        raise RuntimeError
    with hold(tmp_path / "a.lock", "it", patience_s=0):
        pass


def test_shared_holders_wait_for_an_exclusive_one_alone(tmp_path: Path) -> None:
    with (
        hold(tmp_path, "it", shared=True),
        hold(tmp_path, "it", patience_s=0, shared=True),
        pytest.raises(BusyError, match="it is in use"),
        hold(tmp_path, "it", patience_s=0),
    ):
        pass
    with (
        hold(tmp_path, "it"),
        pytest.raises(BusyError, match="it is in use"),
        hold(tmp_path, "it", patience_s=0, shared=True),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


# Disks -------------------------------------------------------------------------------------

FILL = """
import sys
from pathlib import Path
from sparkwright.base.errors import StorageError
from sparkwright.store.paths import open_store
store = open_store(Path(sys.argv[1]))
store.put_record("kind", "small", {"old": True})
big = {"data": "x" * (1 << 20)}
try:
    store.put_record("kind", "small", big)
except StorageError as error:
    print("record:", error, "|", error.next_step)
try:
    with store.scratch() as folder:
        (folder / "big").write_bytes(b"x" * (1 << 20))
except StorageError as error:
    print("scratch:", error)
assert list(store.scratch_root.iterdir()) == []
assert store.find_record("kind", "small") == {"old": True}
(folder,) = (store.records / "kind").iterdir()
assert len(list(folder.iterdir())) == 1
"""


def test_a_full_disk_is_one_clear_error_and_the_old_record_stays(tmp_path: Path) -> None:
    prefix = small_disk(tmp_path / "disk", "256k")
    out = finish(python(FILL, tmp_path / "disk" / "home", prefix=prefix)).splitlines()
    assert out[0].startswith("record: recording kind small failed, because no space left on device")
    assert "free some space" in out[0]
    assert out[1].startswith("scratch: writing to the store's disk failed, because no space left on device")


@pytest.mark.parametrize(
    "name",
    ["ENOSPC", "EDQUOT", "EROFS", "ENOTDIR", "EEXIST", "EISDIR", "ENAMETOOLONG", "EACCES", "EPERM", "EIO"],
)
def test_each_fault_of_a_disk_has_a_next_step(name: str) -> None:
    with pytest.raises(StorageError) as caught, storing("writing"):
        raise OSError(getattr(errno, name), "x", "/some/file")
    assert "/some/file" in caught.value.because
    assert caught.value.next_step
    assert caught.value.exit_code == 70


def test_other_errors_are_no_fault_of_the_disk() -> None:
    with pytest.raises(FileNotFoundError), storing("reading"):
        Path("/no/such/file").read_bytes()
    with pytest.raises(ValueError, match="x"), storing("reading"):
        raise ValueError("x")


def test_the_home_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARKWRIGHT_HOME", str(tmp_path / "chosen"))
    assert default_home() == tmp_path / "chosen"
    assert open_store().home == tmp_path / "chosen"
    monkeypatch.setenv("SPARKWRIGHT_HOME", "/proc/x")
    with pytest.raises(StorageError, match="opening the store /proc/x failed"):
        open_store()
    monkeypatch.setenv("SPARKWRIGHT_HOME", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_home() == tmp_path / "cache" / "sparkwright"


def test_threads_exclude_each_other(store: Store) -> None:
    inside, most = [0], [0]

    def work() -> None:
        with store.lock("a", "it"):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.02)
            inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
