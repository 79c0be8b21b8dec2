"""The contents of the store: one entry for each thing that could be removed by itself."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sparkwright.store.paths import Store
from sparkwright.store.usage import last_used

LOGS = "logs"
"""The kind of what is outside the store: event logs and tracebacks of the checkout."""

# Files are kept by digest alone; a record that names one tells its kind.
_KIND_OF_RECORD = {"unit": "objects", "extension": "extensions", "link": "extensions", "wheel": "wheels"}
_DIGEST = re.compile(rb'"([0-9a-f]{64})"')
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
        kind: what it is: ``downloads``, ``objects``, ``trees`` and so on.
        size: in bytes, with all below it and all companions.
        used: when it was last used, in seconds since the epoch.
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
        *_files_below(store.partial, "downloads"),
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
    kinds = _kinds_of_files(store)
    for path, state in _walk(store.files):
        named = store.named / path.name[:16]
        companions = (named,) if named.is_dir() else ()
        kind = kinds.get(path.name, "downloads")
        yield StoreEntry(kind, path, state.st_size, last_used(state), companions=companions)


def _kinds_of_files(store: Store) -> dict[str, str]:
    kinds = {}
    for record, kind in _KIND_OF_RECORD.items():
        for path, _ in _walk(store.records / record):
            with contextlib.suppress(FileNotFoundError):
                kinds.update(dict.fromkeys(map(bytes.decode, _DIGEST.findall(path.read_bytes())), kind))
    return kinds


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
