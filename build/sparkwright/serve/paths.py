"""Folders of servers in the store: caches, and one folder for each run."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path

from sparkwright.store import Store, remove_tree

CACHES = "serve/caches"
RUNS = "serve/runs"
_KEPT = 20


def caches_of(store: Store) -> Path:
    """Return the folder of all servers' caches."""
    return store.home / CACHES


def new_run_folder(store: Store, recipe: str) -> Path:
    """Make and return the folder of a run: its log, events and evidence. Only its owner can read it.

    The newest runs are kept, and older ones that have ended are removed.
    """
    runs = store.home / RUNS
    runs.mkdir(parents=True, exist_ok=True)
    # Named by time, so that names sort by age; a run that goes on holds its name by its process.
    for old in sorted(runs.iterdir())[: -_KEPT + 1]:
        if not _runs(old.name):
            remove_tree(old)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    folder = runs / f"{stamp}-{recipe}-{os.getpid()}"
    folder.mkdir(mode=0o700)
    return folder


def _runs(name: str) -> bool:
    with contextlib.suppress(ValueError):
        import psutil

        return psutil.pid_exists(int(name.rpartition("-")[2]))
    return False
