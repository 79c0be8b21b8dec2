"""Look whether what the store holds is still what it was."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from sparkwright.base.digests import sha256_stream
from sparkwright.base.errors import StorageError
from sparkwright.base.events import emit, task
from sparkwright.store.atomic import storing
from sparkwright.store.paths import Store
from sparkwright.store.removal import remove_tree

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class StoreFault:
    """Something in the store that is not as it should be.

    Attributes:
        companions: what goes with it when it is removed.
    """

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
    """Remove what is damaged; it is fetched or made again when needed.

    Raises:
        StorageError: the disk cannot be written.
    """
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
    """Yield names in ``named/`` that lead to another file than the one whose digest they stand under."""
    for path in sorted(store.named.glob("*/*")):
        prefix = path.parent.name
        owners = list((store.files / prefix[:2]).glob(f"{prefix}*"))
        if not owners:
            yield StoreFault(path, "the file that it names is gone")
        elif not any(_same(path, owner) for owner in owners):
            yield StoreFault(path, "it is not the file that it names")


def _same(path: Path, owner: Path) -> bool:
    """Tell if *path* is a link to *owner*, or (on a disk without links) a copy of it."""
    with contextlib.suppress(OSError):
        if path.samefile(owner):
            return True
        with _opened_unnoticed(path) as stream:
            return sha256_stream(stream) == owner.name
    return False
