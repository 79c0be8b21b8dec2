"""Put trees, files and inputs of tasks into the store that machines share, and take files from there."""

from __future__ import annotations

import shutil
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import sha256_bytes, sha256_file
from sparkwright.base.events import task
from sparkwright.cluster.messages import PackedTree, StoredFile
from sparkwright.git import pack_tree
from sparkwright.store import storing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from sparkwright.cluster.messages import TaskInputs
    from sparkwright.git import Repository
    from sparkwright.store import Store

_PACK = "tree-pack"


def share_inputs(store: Store, inputs: TaskInputs, files: Iterable[StoredFile] = ()) -> tuple[str, int]:
    """Put *inputs*, the packs of their trees and *files* where machines share the store.

    Returns:
        SHA-256 and bytes of the inputs.
    """
    data = msgspec.json.encode(to_builtins(inputs))
    digest = sha256_bytes(data)
    with store.scratch() as scratch:
        path = scratch / "inputs"
        path.write_bytes(data)
        store.adopt_file(path, digest, verified=True)
    for sha256 in (*(packed.sha256 for packed in inputs.trees), *(one.sha256 for one in files), digest):
        store.share(sha256)
    if store.remote is not None:
        with task("share the sources"):
            store.remote.finish(store, limit_s=float("inf"))
    return digest, len(data)


def packed_tree(store: Store, repository: Repository, tree: str, *, beside: str = "") -> PackedTree:
    """Return the pack of *tree* in the store, without what the tree *beside* holds; made once."""
    recorded = store.find_record(_PACK, f"{tree}{beside}") or {}
    known = recorded.get("sha256")
    if isinstance(known, str) and (path := store.find_file(known, remote=False)):
        return PackedTree(tree=tree, sha256=known, size=path.stat().st_size)
    with task("pack the sources"), store.scratch() as scratch:
        path = scratch / "pack"
        pack_tree(repository, tree, path, beside=beside)
        sha256, size = sha256_file(path), path.stat().st_size
        store.adopt_file(path, sha256, verified=True)
    store.put_record(_PACK, f"{tree}{beside}", {"sha256": sha256})
    return PackedTree(tree=tree, sha256=sha256, size=size)


def packed_trees(store: Store, repository: Repository, trees: Sequence[str]) -> tuple[PackedTree, ...]:
    """Return packs of *trees*: the first one's is whole, the others lack what that holds."""
    first, *others = dict.fromkeys(trees)
    return (
        packed_tree(store, repository, first),
        *(packed_tree(store, repository, tree, beside=first) for tree in others),
    )


def keep_files(store: Store, folder: Path, paths: Iterable[Path] | None = None) -> tuple[StoredFile, ...]:
    """Return the files below *folder*, or those of *paths* there, copied into the store."""
    found = sorted(path for path in folder.rglob("*") if path.is_file()) if paths is None else paths
    kept = []
    for path in found:
        sha256, size = sha256_file(path), path.stat().st_size
        if store.find_file(sha256, size=size, remote=False) is None:
            with store.scratch() as scratch, storing(f"storing {path.name}"):
                copy = scratch / "file"
                shutil.copyfile(path, copy)
                store.adopt_file(copy, sha256)
        kept.append(StoredFile(path=path.relative_to(folder).as_posix(), sha256=sha256, size=size))
    return tuple(kept)


def bring_files(store: Store, files: Iterable[StoredFile], folder: Path) -> bool:
    """Write *files* of the store below *folder*; return false, and write none, if one is not there.

    A path that would lead out of *folder* counts as not there.
    """
    wanted = tuple(files)
    for one in wanted:
        path = PurePosixPath(one.path)
        if path.is_absolute() or ".." in path.parts or store.find_file(one.sha256, size=one.size) is None:
            return False
    for one in wanted:
        store.copy_out(one.sha256, folder / one.path)
    return True
