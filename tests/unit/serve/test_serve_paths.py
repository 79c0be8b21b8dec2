"""Folders of served engines in the store: runs are kept to a number, caches are pruned by age."""

import os
import time

from sparkwright.serve.caches import caches_of, new_run_folder
from sparkwright.store.paths import Store
from sparkwright.store.upkeep import survey


def test_the_newest_runs_are_kept_and_none_that_goes_on(store: Store) -> None:
    first = new_run_folder(store, "r")
    assert first.stat().st_mode & 0o077 == 0
    runs = first.parent
    ended = runs / "20200101T000000.000000Z-r-999999999"
    ended.mkdir()
    (ended / "server.log").write_text("x")
    going_on = runs / f"20200101T000000.000001Z-r-{os.getpid()}"
    going_on.mkdir()
    made = [new_run_folder(store, "r") for _ in range(25)]
    assert not ended.exists()
    assert going_on.exists()
    assert all(folder.exists() for folder in made), "this process goes on"


def test_caches_and_runs_can_be_pruned_one_by_one(store: Store) -> None:
    old = caches_of(store) / "0123456789abcdef"
    (old / "triton").mkdir(parents=True)
    (old / "triton" / "kernel").write_bytes(b"x" * 1000)
    long_ago = time.time() - 1e6
    os.utime(old, (long_ago, long_ago))
    (new_run_folder(store, "r") / "server.log").write_text("log")
    found = {entry.kind: entry for entry in survey(store) if entry.path.is_relative_to(store.home / "serve")}
    assert set(found) == {"compiled", "servers"}
    assert (found["compiled"].path, found["compiled"].size) == (old, 1000)
    assert abs(found["compiled"].used - long_ago) < 5
    assert all(entry.removable for entry in found.values())
