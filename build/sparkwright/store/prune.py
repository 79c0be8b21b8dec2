"""Make room in the store: the least recently used goes first, and nothing that a run is using.

Safe while builds run. Each run is seen in the store from its start to its end, and notes what it uses;
so whatever was used since the oldest run began is left alone. No run starts between that look and
the last removal. What a run has not found yet it makes or fetches again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.events import emit
from sparkwright.store.atomic import storing
from sparkwright.store.paths import Store
from sparkwright.store.survey import LOGS, StoreEntry
from sparkwright.store.usage import NOTED_EVERY_S, ActiveRun, last_used, no_new_runs, oldest_run

_DAY_S = 86400.0


@dataclass(frozen=True)
class PruneLimits:
    """The limits of what may stay.

    Attributes:
        days: what was used within so many days; `None` for everything.
        size: the most recently used things of so many bytes together; `None` for everything.
    """

    days: float | None = None
    size: int | None = None


@dataclass(frozen=True)
class Pruned:
    """The result of `prune`, or of its rehearsal.

    Attributes:
        in_use: what would be gone too if no run had used it since it began.
        kept: bytes that are left, of things that can and that cannot be removed.
    """

    removed: tuple[StoreEntry, ...]
    in_use: tuple[StoreEntry, ...]
    kept: int


def prune(
    store: Store,
    entries: Sequence[StoreEntry],
    limits: PruneLimits,
    *,
    run: ActiveRun | None = None,
    dry: bool = False,
) -> Pruned:
    """Remove those of *entries* that are beyond *limits*, the least recently used first.

    Args:
        store: what to make room in.
        entries: what it holds, from `survey`; logs among them count for `PruneLimits.days` only.
        limits: what may stay.
        run: the run that does this, which blocks nothing.
        dry: only list the entries that would be removed.

    Raises:
        StorageError: the disk cannot be written.
    """
    chosen = _choose(entries, limits)
    with contextlib.ExitStack() as after, storing("pruning the store"):
        trash = None if dry else after.enter_context(store.scratch())
        with no_new_runs(store.runs):
            bound = _bound(store, run)
            going = [entry for entry in chosen if entry.used < bound(entry)]
            removed = [entry for entry in going if trash is None or _remove(entry, trash)]
    in_use = [entry for entry in chosen if entry not in set(removed)]
    kept = _size(entries) - _size(removed)
    return Pruned(tuple(removed), tuple(in_use), kept)


def prune_logs(places: Iterable[Path], days: float) -> None:
    """Remove the files in the folders *places* that were not written to for so many *days*."""
    for place in places:
        for path in place.iterdir() if place.is_dir() else (place,):
            with contextlib.suppress(OSError):  # another run's clean-up, or a disk that is read-only
                if path.is_file() and path.stat().st_mtime < time.time() - days * _DAY_S:
                    path.unlink()


def _choose(entries: Iterable[StoreEntry], limits: PruneLimits) -> list[StoreEntry]:
    """Return what is beyond *limits*, the least recently used first."""
    oldest_first = sorted((entry for entry in entries if entry.removable), key=lambda entry: entry.used)
    too_much = 0 if limits.size is None else _size(entries) - limits.size
    too_old = float("-inf") if limits.days is None else time.time() - limits.days * _DAY_S
    chosen = []
    for entry in oldest_first:
        counts = entry.kind != LOGS
        if entry.used < too_old or (counts and too_much > 0):
            chosen.append(entry)
            too_much -= entry.size if counts else 0
    return chosen


def _size(entries: Iterable[StoreEntry]) -> int:
    return sum(entry.size for entry in entries if entry.kind != LOGS)


def _bound(store: Store, run: ActiveRun | None) -> Callable[[StoreEntry], float]:
    """Return the time from which on an entry counts as in use."""
    others = oldest_run(store.runs, but=run)
    # A use is noted once an hour, so one that was noted before a run began may be that run's.
    bound = float("inf") if others is None else others - NOTED_EVERY_S
    # A log is written to, which needs no noting; ours is as old as we are.
    logs = min(time.time() if run is None else run.started, bound)
    return lambda entry: logs if entry.kind == LOGS else bound


def _remove(entry: StoreEntry, trash: Path) -> bool:
    """Remove *entry* unless it was used or went since it was listed; whether it was removed."""
    with contextlib.suppress(FileNotFoundError):
        if last_used(entry.path.stat()) != entry.used:
            return False
        emit("store.removed", what=entry.kind, path=str(entry.path), size=entry.size)
        for path in (entry.path, *entry.companions):
            _put_away(path, trash)
        return True
    return False


def _put_away(path: Path, trash: Path) -> None:
    """Take *path* away at once: a folder is renamed, and emptied after the lock is released."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    path.chmod(0o755)  # renaming a folder needs the right to write to it
    path.rename(trash / os.urandom(8).hex())
