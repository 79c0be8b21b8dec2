"""Put files of tasks into the store that machines share, and take files of results from there."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import sha256_bytes, sha256_file
from sparkwright.distributed.tasks import StoredFile
from sparkwright.store import Store, storing

REQUEST = "request.json"
"""The file with what a task asks for."""


def share_json(store: Store, value: Any) -> StoredFile:
    """Put *value*, what a task asks for, where machines share the store; return it as `REQUEST`."""
    data = msgspec.json.encode(to_builtins(value))
    with store.scratch() as scratch:
        (scratch / REQUEST).write_bytes(data)
        store.adopt_file(scratch / REQUEST, sha256_bytes(data), verified=True)
    return shared(store, REQUEST, sha256_bytes(data), len(data))


def share_file(store: Store, path: Path, name: str = "") -> StoredFile:
    """Put the file at *path*, called *name* by the task, where machines share the store."""
    sha256, size = sha256_file(path), path.stat().st_size
    if store.find_file(sha256, size=size, remote=False) is None:
        with store.scratch() as scratch, storing(f"storing {path.name}"):
            copy = scratch / "file"
            shutil.copyfile(path, copy)
            store.adopt_file(copy, sha256)
    return shared(store, name or path.name, sha256, size)


def shared(store: Store, name: str, sha256: str, size: int) -> StoredFile:
    """Share a file that *store* has, and return it under the *name* that a task has for it."""
    store.share(sha256)
    return StoredFile(path=name, sha256=sha256, size=size)


def bring_files(store: Store, files: Iterable[StoredFile], folder: Path) -> bool:
    """Write *files* of the store below *folder*; return false, and write none, if one is not there.

    A path that names no file below *folder* counts as not there.
    """
    wanted = tuple(files)
    for one in wanted:
        path = PurePosixPath(one.path)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in one.path:
            return False
        if store.find_file(one.sha256, size=one.size, fresh=True) is None:
            return False
    for one in wanted:
        store.copy_out(one.sha256, folder / one.path)
    return True
