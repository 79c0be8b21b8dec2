"""Look after the store: what it holds, what may go, and whether it is still what it was.

Pruning is safe while builds run. Each run is seen in the store from its start to its end, and notes what it
uses; so whatever was used since the oldest run began is left alone. No run starts between that look and the
last removal. What a run has not found yet it makes or fetches again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from sparkwright.base.digests import sha256_stream
from sparkwright.base.errors import StorageError
from sparkwright.base.events import emit, task
from sparkwright.store.disk import (
    NOTED_EVERY_S,
    ActiveRun,
    last_used,
    no_new_runs,
    oldest_run,
    remove_tree,
    storing,
)
from sparkwright.store.paths import Store

LOGS = "logs"
"""The kind of what is outside the store: event logs and tracebacks of the checkout."""

# What an index said of a release when it was first asked is what later answers are held against.
_KEPT_RECORDS = frozenset({"release-sdist"})
# It goes with its tree: a tree without it counts as tampered with.
_OF_TREES = "tree-fingerprint"
# Not worth a line: empty files, and links into files/.
_UNLISTED = frozenset({"locks", "runs", "named", "bytecode", "files", "records"})
# What is made of packages shares their files, and these count where they stand first.
_FOLDERS = {
    "trees": "trees",
    "toolchains/packages": "toolchains",
    "toolchains/made": "toolchains",
    "environments": "environments",
    "models": "models",
    "serve/caches": "compiled",
    "serve/runs": "servers",
}


@dataclass(frozen=True)
class StoreEntry:
    """A file or folder of the store, or a log of the checkout.

    Attributes:
        kind: what it is: ``files``, ``trees`` and so on.
        size: in bytes, with all below it and all companions.
        removable: whether it can go and come back by itself; git's objects cannot one by one.
        companions: what is of no use without it.
    """

    kind: str
    path: Path
    size: int
    used: float
    removable: bool = True
    companions: tuple[Path, ...] = ()


@dataclass(frozen=True)
class KindTotal:
    """The size of one kind; ``used`` is the last use of any of it."""

    kind: str
    count: int
    size: int
    used: float


def survey(store: Store, logs: Iterable[Path] = ()) -> list[StoreEntry]:
    """Return everything in *store*, and the event logs in the folders *logs*."""
    left = list(_left_by_git(store))
    return [
        *_files(store),
        *_records(store),
        *_folders(store),
        *_files_below(store.partial, "partial"),
        *left,
        *_rest(store, {entry.path for entry in left}),
        *(entry for folder in logs for entry in _files_below(folder, LOGS)),
    ]


def totals(entries: Iterable[StoreEntry]) -> list[KindTotal]:
    """Return *entries* by kind, the largest first."""
    kinds: dict[str, list[StoreEntry]] = {}
    for entry in entries:
        kinds.setdefault(entry.kind, []).append(entry)
    found = [
        KindTotal(kind, len(these), sum(entry.size for entry in these), max(entry.used for entry in these))
        for kind, these in kinds.items()
    ]
    return sorted(found, key=lambda total: (-total.size, total.kind))


def _files(store: Store) -> Iterator[StoreEntry]:
    for path, state in _walk(store.files):
        named = store.named / path.name[:16]
        companions = (named,) if named.is_dir() else ()
        yield StoreEntry("files", path, state.st_size, last_used(state), companions=companions)


def _records(store: Store) -> Iterator[StoreEntry]:
    for path, state in _walk(store.records):
        kind = path.relative_to(store.records).parts[0]
        if kind == _OF_TREES:
            continue
        yield StoreEntry("records", path, state.st_size, last_used(state), kind not in _KEPT_RECORDS)


def _folders(store: Store) -> Iterator[StoreEntry]:
    counted: set[tuple[int, int]] = set()
    for place, kind in _FOLDERS.items():
        for path in _children(store.home / place):
            if not path.is_dir() or path.is_symlink():
                continue
            companions = _companions(store, kind, path)
            with contextlib.suppress(FileNotFoundError):
                size = sum(_new_bytes(each, counted) for each in (path, *companions))
                yield StoreEntry(kind, path, size, last_used(path.stat()), companions=companions)


def _companions(store: Store, kind: str, path: Path) -> tuple[Path, ...]:
    if kind == "trees":
        return store.bytecode_of(path), store.record_path(_OF_TREES, path.name)
    if kind == "environments":
        return (path.with_name(f"{path.name}.txt"),)  # its requirements
    return ()


def _new_bytes(place: Path, counted: set[tuple[int, int]]) -> int:
    """Return bytes at or below *place* but for files with several names that were *counted* under another."""
    size = 0
    for _, state in _walk(place):
        inode = (state.st_dev, state.st_ino)
        if state.st_nlink == 1 or inode not in counted:
            size += state.st_size
            counted.add(inode)
    return size


def _files_below(folder: Path, kind: str) -> Iterator[StoreEntry]:
    for path, state in _walk(folder):
        yield StoreEntry(kind, path, state.st_size, last_used(state))


def _left_by_git(store: Store) -> Iterator[StoreEntry]:
    """List what git leaves of writes that were killed: packs, indexes and objects under temporary names."""
    for pattern in ("pack/tmp_*", "pack/.tmp-*", "??/tmp_obj_*", "obj*", "tmp_objdir-*"):
        for path in sorted((store.git / "objects").glob(pattern)):
            with contextlib.suppress(FileNotFoundError):
                size = sum(state.st_size for _, state in _walk(path))
                yield StoreEntry("git-left-overs", path, size, last_used(path.stat()))


def _rest(store: Store, counted: Collection[Path]) -> Iterator[StoreEntry]:
    """Yield what cannot be removed one by one: the repository, scratch in use, whatever else there is."""
    known = {*_UNLISTED, *(place.partition("/")[0] for place in _FOLDERS), store.partial.name}
    for path in _children(store.home):
        if path.name in known or path.suffix == ".lock":
            continue
        states = [state for file, state in _walk(path) if not {file, file.parent} & set(counted)]
        if states:
            kind = path.name if path.is_dir() else "other"
            used = max(last_used(state) for state in states)
            yield StoreEntry(kind, path, sum(state.st_size for state in states), used, removable=False)


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _walk(place: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every plain file at or below *place* with its state; what goes meanwhile is left out."""
    if place.is_file() and not place.is_symlink():
        with contextlib.suppress(FileNotFoundError):
            yield place, place.stat()
        return
    for parent, folders, names in os.walk(place):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(parent, name)  # noqa: PTH118 - tens of thousands
            with contextlib.suppress(FileNotFoundError):
                state = os.lstat(path)
                if stat.S_ISREG(state.st_mode):
                    yield Path(path), state


# What may go -----------------------------------------------------------------------------------------


_DAY_S = 86400.0


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
    *,
    days: float | None = None,
    size: int | None = None,
    run: ActiveRun | None = None,
    dry: bool = False,
) -> Pruned:
    """Remove what was not used for so many *days*, and the least recently used beyond *size* bytes together.

    `None` is no limit. Logs among *entries* count for *days* only; *run* does this, and blocks nothing.
    """
    chosen = _choose(entries, days, size)
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


def _choose(entries: Iterable[StoreEntry], days: float | None, size: int | None) -> list[StoreEntry]:
    """Return what is beyond the limits, the least recently used first."""
    oldest_first = sorted((entry for entry in entries if entry.removable), key=lambda entry: entry.used)
    too_much = 0 if size is None else _size(entries) - size
    too_old = float("-inf") if days is None else time.time() - days * _DAY_S
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


# Whether it is sound ---------------------------------------------------------------------------------


_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class StoreFault:
    """Something in the store that is not as it should be."""

    path: Path
    why: str
    companions: tuple[Path, ...] = ()


def verify(store: Store) -> list[StoreFault]:
    """Return everything in *store* that is damaged.

    That is: files whose bytes are not those of their digest, records that cannot be read, and names that
    lead to no such file. Reading them does not count as a use.
    """
    paths = [path for path in sorted(store.files.glob("*/*")) if not path.is_symlink()]
    total = sum(path.stat().st_size for path in paths)
    with (
        task("verify the store", total=total, unit="B") as progress,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        found = []
        for size, fault in pool.map(partial(_file_fault, store), paths):
            progress.advance(size)
            found += [fault] if fault else []
    return [*found, *_record_faults(store), *_name_faults(store)]


def remove_faults(faults: Sequence[StoreFault]) -> None:
    """Remove what is damaged; it is fetched or made again when needed."""
    with storing("removing what is damaged"):
        for fault in faults:
            emit("store.removed", what="damaged", path=str(fault.path), because=fault.why)
            for path in (fault.path, *fault.companions):
                remove_tree(path)


def unsound(faults: Sequence[StoreFault]) -> StorageError | None:
    """Return the error that tells *faults*; `None` where there are none."""
    if not faults:
        return None
    return StorageError(
        f"the store has {len(faults)} damaged {'entry' if len(faults) == 1 else 'entries'}",
        because="; ".join(f"{fault.path.name[:16]}: {fault.why}" for fault in faults[:5]),
        next_step="drop them with 'sparkwright store verify --remove': what is needed is made again",
    )


def _file_fault(store: Store, path: Path) -> tuple[int, StoreFault | None]:
    """Return how many bytes were read, and what is wrong."""
    named = (store.named / path.name[:16],)
    if not _DIGEST.fullmatch(path.name) or path != store.file_path(path.name):
        return 0, StoreFault(path, "its name is no digest, or not the one that its folder is for")
    try:
        with _opened_unnoticed(path) as stream:
            actual = sha256_stream(stream)
            size = stream.tell()
    except FileNotFoundError:
        return 0, None  # pruned meanwhile
    except OSError as error:
        return 0, StoreFault(path, f"it cannot be read: {error.strerror}", named)
    return size, None if actual == path.name else StoreFault(path, f"its SHA-256 is {actual}", named)


@contextlib.contextmanager
def _opened_unnoticed(path: Path) -> Iterator[BinaryIO]:
    """Give the file at *path*, read without a trace in its time of access where we may do that."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME)
    except PermissionError:  # it is another user's
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        yield stream


def _record_faults(store: Store) -> Iterator[StoreFault]:
    for path in sorted(store.records.glob("*/*/*.json")):
        try:
            with _opened_unnoticed(path) as stream:
                found = json.loads(stream.read())
        except FileNotFoundError:
            continue
        except ValueError as error:
            yield StoreFault(path, f"it is no JSON: {error}")
        except OSError as error:
            yield StoreFault(path, f"it cannot be read: {error.strerror}")
        else:
            if not isinstance(found, dict):
                yield StoreFault(path, "it is no JSON object")


def _name_faults(store: Store) -> Iterator[StoreFault]:
    """Yield the names in ``named/`` whose file no longer exists.

    A name that points to a wrong file is not yielded: `named_file` replaces it when it is next used.
    """
    for path in sorted(store.named.glob("*/*")):
        prefix = path.parent.name
        if not any((store.files / prefix[:2]).glob(f"{prefix}*")):
            yield StoreFault(path, "the file that it names is gone")
