"""Looking after the store: what it holds, whether it is sound, and what may go."""

import errno
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import click
import pytest
from killed import stopped
from kit import Recorder, finish, python, seed_environment

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import LostFileError, StorageError
from sparkwright.cli.output import events_kept
from sparkwright.probe.environment import bytecode_folder
from sparkwright.store.disk import NOTED_EVERY_S, last_used, note_use, oldest_run
from sparkwright.store.paths import Store
from sparkwright.store.upkeep import Pruned, prune, remove_faults, survey, totals, unsound, verify

DAY = 86400.0


def put(store: Store, data: bytes, *, days: float = 0) -> Path:
    """A file of the store, last used so many days ago."""
    with store.scratch() as scratch:
        (scratch / "x").write_bytes(data)
        path = store.adopt_file(scratch / "x", sha256_bytes(data))
    return aged(path, days)


def aged(path: Path, days: float) -> Path:
    moment = time.time() - days * DAY
    os.utime(path, (moment, moment))
    return path


def paths(entries: tuple[object, ...]) -> set[Path]:
    return {entry.path for entry in entries}  # type: ignore[attr-defined]


def pruned(store: Store, days: float | None = None, size: int | None = None, **options: object) -> Pruned:
    logs = options.pop("logs", ())
    return prune(store, survey(store, logs), days=days, size=size, **options)  # type: ignore[arg-type]


# When something was last used --------------------------------------------------------------


def test_a_use_is_noted_once_an_hour_and_a_files_time_of_change_stays(store: Store) -> None:
    path = put(store, b"data", days=3)
    changed = path.stat().st_mtime_ns
    before = time.time()
    assert store.find_file(path.name) == path
    assert before - 1 <= last_used(path.stat()) <= time.time()
    assert path.stat().st_mtime_ns == changed
    recently = time.time() - NOTED_EVERY_S / 2
    os.utime(path, (recently, recently))
    store.find_file(path.name)
    assert last_used(path.stat()) == pytest.approx(recently)


def test_records_folders_and_names_note_their_use_too(store: Store) -> None:
    store.put_record("kind", "key", {})
    record = aged(store.record_path("kind", "key"), 3)
    file = put(store, b"data")
    named = aged(store.named_file(file.name, "name.whl"), 3)
    store.trees.joinpath("tree").mkdir()
    folder = aged(store.trees / "tree", 3)
    note_use(folder)
    store.find_record("kind", "key")
    store.named_file(file.name, "name.whl")
    note_use(store.home / "missing")
    for path in (record, named, file, folder):
        assert last_used(path.stat()) > time.time() - 60


def test_what_comes_in_counts_as_used_whatever_its_times_say(store: Store, tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    path = store.adopt_file(aged(tmp_path / "old", 400), sha256_bytes(b"old"), verified=True)
    assert last_used(path.stat()) > time.time() - 60


RUN = """
import sys
from pathlib import Path
from sparkwright.store.paths import Store
store = Store(Path(sys.argv[1]))
with store.running():
    for digest in sys.argv[2:]:
        assert store.find_file(digest)
    print("running", flush=True)
    sys.stdin.readline()
    for digest in sys.argv[2:]:
        store.copy_out(digest, Path(sys.argv[1]) / "out")
"""


def start_run(store: Store, *digests: str) -> subprocess.Popen[str]:
    process = python(RUN, store.home, *digests, stdin=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    return process


def end_run(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    finish(process)


def test_runs_are_seen_until_they_end_however_they_end(store: Store) -> None:
    before = time.time()
    assert oldest_run(store.runs) is None
    with store.running() as mine:
        assert oldest_run(store.runs, but=mine) is None
        other = start_run(store)
        began = oldest_run(store.runs, but=mine)
        assert began is not None
        assert before - 1 <= mine.started <= began
        assert oldest_run(store.runs) == mine.started
        stopped(other, signal.SIGKILL)
        assert oldest_run(store.runs, but=mine) is None
        assert list(store.runs.iterdir()) == [mine.path]
    assert list(store.runs.iterdir()) == []


# What there is -----------------------------------------------------------------------------


def test_the_survey_tells_what_each_file_is(store: Store, tmp_path: Path) -> None:
    wheel = put(store, b"wheel")
    store.put_record("wheel", "key", {"sha256": wheel.name, "filename": "x.whl"})
    store.named_file(wheel.name, "x.whl")
    (store.partial / ("0" * 64)).write_bytes(b"part")
    tree = store.trees / "abc-vllm"
    tree.mkdir()
    (tree / "file.py").write_bytes(b"12345")
    bytecode = store.bytecode_of(tree) / "file.pyc"
    bytecode.parent.mkdir(parents=True)
    bytecode.write_bytes(b"678")
    store.put_record("tree-fingerprint", tree.name, {})
    seed_environment(store, "x")
    for place in ("packages", "made"):
        (store.toolchains / place / "key").mkdir(parents=True)
    (store.toolchains / "packages" / "key" / "nvcc").write_bytes(b"nvcc")
    (store.toolchains / "made" / "key" / "nvcc").hardlink_to(store.toolchains / "packages" / "key" / "nvcc")
    (store.toolchains / "made" / "key" / "more").write_bytes(b"12")
    (store.git / "objects").mkdir(parents=True)
    (store.git / "objects" / "x").write_bytes(b"object")
    store.home.joinpath("git.lock").touch()
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "1.jsonl").write_bytes(b"{}")
    (tmp_path / "crash.txt").write_bytes(b"!")
    entries = survey(store, [tmp_path / "events", tmp_path / "crash.txt", tmp_path / "missing"])
    found = {total.kind: (total.count, total.size) for total in totals(entries)}
    fingerprint = store.record_path("tree-fingerprint", tree.name).stat().st_size
    records = sum(
        path.stat().st_size for path in store.records.rglob("*.json") if "tree-fingerprint" not in str(path)
    )
    assert found.pop("environments")[0] == 1
    assert found == {
        "files": (1, len(b"wheel")),
        "partial": (1, len(b"part")),
        "trees": (1, 8 + fingerprint),
        "toolchains": (2, 6),
        "records": (1, records),
        "git": (1, 6),
        "logs": (2, 3),
    }
    assert [entry.kind for entry in entries if not entry.removable] == ["git"]


# What may go -------------------------------------------------------------------------------


def test_what_was_not_used_for_long_goes_and_the_rest_stays(store: Store, tmp_path: Path) -> None:
    old, young = put(store, b"old", days=9), put(store, b"young", days=7)
    named = store.named_file(old.name, "old.whl")
    aged(old, 9)
    store.put_record("kind", "old", {})
    store.put_record("kind", "young", {})
    store.put_record("release-sdist", "first seen", {})
    record = aged(store.record_path("kind", "old"), 9)
    kept_record = aged(store.record_path("release-sdist", "first seen"), 900)
    (tmp_path / "events").mkdir()
    for name, days in (("old", 9), ("young", 7)):
        (tmp_path / "events" / name).touch()
        aged(tmp_path / "events" / name, days)
    done = pruned(store, 8, logs=[tmp_path / "events"])
    assert paths(done.removed) == {old, record, tmp_path / "events" / "old"}
    assert done.in_use == ()
    assert not any(path.exists() for path in (*paths(done.removed), named, named.parent))
    assert young.exists()
    assert store.find_record("kind", "young") == {}
    assert kept_record.exists()
    assert (tmp_path / "events" / "young").exists()
    assert done.kept == sum(entry.size for entry in survey(store))


def test_the_least_recently_used_go_until_the_size_is_right(store: Store) -> None:
    files = [put(store, bytes([number]) * 100, days=10 - number) for number in range(5)]
    assert pruned(store, size=500).removed == ()
    store.find_file(files[0].name)  # now the most recently used
    done = pruned(store, size=250)
    assert [entry.path for entry in done.removed] == files[1:4]
    assert done.kept == 200
    assert files[0].exists()
    assert files[4].exists()
    assert paths(pruned(store, size=0).removed) == {files[0], files[4]}
    assert survey(store) == []


def test_a_dry_run_removes_nothing_and_tells_the_same(store: Store) -> None:
    path = put(store, b"old", days=9)
    dry = pruned(store, 8, dry=True)
    assert path.exists()
    assert list(store.scratch_root.iterdir()) == []
    assert pruned(store, 8) == dry
    assert not path.exists()


def test_folders_go_whole_with_what_belongs_to_them(store: Store, heard: Recorder) -> None:
    tree = store.trees / "abc-vllm"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "file.py").touch()
    (store.bytecode_of(tree) / "sub").mkdir(parents=True)
    store.put_record("tree-fingerprint", tree.name, {})
    environment = seed_environment(store, "x").parents[1]
    listed = environment.with_name(f"{environment.name}.txt")
    listed.touch()
    aged(environment, 9)
    for folder in (tree / "sub", tree):
        folder.chmod(0o555)
    aged(tree, 9)
    done = pruned(store, 8)
    assert paths(done.removed) == {tree, environment}
    assert not any(path.exists() for path in (tree, environment, listed, store.bytecode_of(tree)))
    assert store.find_record("tree-fingerprint", tree.name) is None
    assert bytecode_folder(store).is_dir()
    assert list(store.scratch_root.iterdir()) == []
    assert {event["path"] for event in heard.of("store.removed")} == {str(tree), str(environment)}


def test_what_a_run_found_stays_for_as_long_as_it_runs(store: Store) -> None:
    used, unused = put(store, b"used", days=9), put(store, b"unused", days=9)
    with store.running() as mine:
        run = start_run(store, used.name)
        done = pruned(store, size=0, run=mine)
        assert paths(done.removed) == {unused}
        assert paths(done.in_use) == {used}
        assert used.exists()
        end_run(run)  # it could use what it had found
        assert paths(pruned(store, size=0, run=mine).removed) >= {used}


def test_what_a_run_found_without_noting_it_stays_too(store: Store) -> None:
    """A use within the hour before is not noted again."""
    noted = put(store, b"noted", days=(NOTED_EVERY_S - 60) / DAY)
    before = put(store, b"before", days=(NOTED_EVERY_S + 3600) / DAY)
    run = start_run(store, noted.name)
    assert last_used(noted.stat()) < time.time() - 600
    done = pruned(store, size=0)
    assert paths(done.removed) == {before}
    assert paths(done.in_use) == {noted}
    end_run(run)


WAIT = """
import sys
from pathlib import Path
from sparkwright.base.events import subscribe
from sparkwright.store.paths import Store
with subscribe(lambda event: print(event.kind, flush=True)), Store(Path(sys.argv[1])).running():
    print("running", flush=True)
"""


def test_no_run_starts_while_things_are_removed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it could find what is removed a moment later."""
    path = put(store, b"data", days=9)
    said = []

    def start_a_run(*_: object, **__: object) -> None:
        process = python(WAIT, store.home)
        assert process.stdout is not None
        said.append((process, process.stdout.readline(), oldest_run(store.runs)))

    monkeypatch.setattr("sparkwright.store.upkeep.emit", start_a_run)
    assert paths(pruned(store, size=0).removed) == {path}
    ((process, first, seen),) = said
    assert (first, seen) == ("lock.waiting\n", None)
    assert finish(process) == "running\n"


@pytest.mark.parametrize("looked", [False, True], ids=["before the look", "after it"])
def test_a_folder_that_is_claimed_stays_or_is_seen_to_be_gone(store, monkeypatch, *, looked):
    folder = store.trees / "abc-vllm"
    folder.mkdir()
    aged(folder, 9)
    claimed: list[bool] = []
    claiming = threading.Thread(target=lambda: claimed.append(store.claim(folder)))

    def claim_now(*_: object, **__: object) -> None:
        claiming.start()
        claiming.join(0.2)
        assert not claimed, "it was claimed while it was being removed"

    entries = survey(store, ())
    with store.running():
        if looked:
            monkeypatch.setattr("sparkwright.store.upkeep.emit", claim_now)
        else:
            claiming.start()
            claiming.join()
        prune(store, entries, days=1)
    claiming.join()
    assert claimed == [not looked]
    assert folder.is_dir() is not looked


def test_what_is_used_after_the_look_stays(store: Store) -> None:
    one, two = put(store, b"one", days=9), put(store, b"two", days=9)
    entries = survey(store)
    store.find_file(one.name)
    done = prune(store, entries, days=8)
    assert paths(done.removed) == {two}
    assert paths(done.in_use) == {one}
    two.unlink(missing_ok=True)
    assert prune(store, entries, days=8).removed == ()


def test_a_file_that_goes_before_it_is_used_is_one_clear_error(store: Store, tmp_path: Path) -> None:
    path = put(store, b"data")
    path.unlink()
    for place in (store.copy_out, store.link):
        with pytest.raises(LostFileError, match="cannot be taken from the store") as caught:
            place(path.name, tmp_path / "out" / "x")
        assert "run the same command again" in caught.value.next_step
    assert list((tmp_path / "out").iterdir()) == []


# Whether it is sound -----------------------------------------------------------------------


def faults(store: Store) -> dict[Path, str]:
    return {fault.path: fault.why for fault in verify(store)}


def spoil(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def test_damage_is_found_and_removed_and_sound_things_stay(store: Store) -> None:
    sound, empty, flipped, stray = (put(store, data) for data in (b"sound", b"half", b"flip", b"stray"))
    store.named_file(sound.name, "sound.whl")
    named = store.named_file(flipped.name, "flipped.whl")
    assert faults(store) == {}
    spoil(empty, b"")
    spoil(flipped, b"flop")
    stray = stray.rename(stray.with_name("stray"))
    records = {key: store.record_path("kind", key) for key in ("good", "cut", "text", "list")}
    for key in records:
        store.put_record("kind", key, {"a": 1})
    records["cut"].write_bytes(b'{"a":')
    records["text"].write_bytes(b"\xff\xfe")
    records["list"].write_bytes(b"[]")
    lost = put(store, b"lost")
    name = store.named_file(lost.name, "lost.whl")
    lost.unlink()
    found = faults(store)
    assert found.keys() == {empty, flipped, stray, records["cut"], records["text"], records["list"], name}
    assert found[flipped] == f"its SHA-256 is {sha256_bytes(b'flop')}"
    assert "gone" in found[name]
    error = unsound(verify(store))
    assert error is not None
    assert ("7 damaged entries" in error.what, error.exit_code) == (True, 70)
    remove_faults(verify(store))
    assert faults(store) == {}
    assert unsound([]) is None
    assert not any(path.exists() for path in (*found, named))
    assert sound.exists()
    assert store.find_record("kind", "good") == {"a": 1}


def test_a_store_that_cannot_be_written_is_one_error(store: Store, tmp_path: Path) -> None:
    with store.running():
        pass
    shutil.rmtree(store.runs)
    store.runs.touch()
    with pytest.raises(StorageError, match=f"using the store {store.home} failed"), store.running():
        pass
    with (
        click.Context(click.Command("serve"), info_name="serve"),
        pytest.raises(StorageError, match="'serve' failed"),
        events_kept(tmp_path / "run"),
    ):
        raise OSError(errno.ENOSPC, "full")
    assert not list((tmp_path / "run").glob("crash-*"))
