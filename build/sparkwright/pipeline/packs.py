"""A tree of git that goes to other machines: as a pack in the store, which a task unpacks before all else."""

from __future__ import annotations

from pathlib import Path

from sparkwright.base.errors import ClusterError, ProcessError
from sparkwright.base.events import task
from sparkwright.distributed import StoredFile
from sparkwright.distributed.inputs import share_file, shared
from sparkwright.git import Repository, check_object_id, pack_tree, unpack_tree
from sparkwright.store import Store

_KIND = "tree-pack"
_FOLDER = "packs"


def packed(store: Store, repository: Repository, tree: str) -> StoredFile:
    """Return a pack of *tree* for a task."""
    name = f"{_FOLDER}/{tree}"
    known = (store.find_record(_KIND, tree) or {}).get("sha256")
    if isinstance(known, str) and (path := store.find_file(known, remote=False)):
        return shared(store, name, known, path.stat().st_size)
    with task("pack the sources"), store.scratch() as scratch:
        pack_tree(repository, tree, scratch / "pack")
        made = share_file(store, scratch / "pack", name)
    store.put_record(_KIND, tree, {"sha256": made.sha256})
    return made


def unpack_all(repository: Repository) -> None:
    """Take the tree of a task, whose working folder this process is in, into *repository*, if it has one.

    Raises:
        ClusterError: a pack is damaged.
        RefError: a pack is not named after a tree.
    """
    for path in Path(_FOLDER).glob("*"):
        tree = check_object_id(path.name)
        if repository.has(tree):
            continue
        try:
            unpack_tree(repository, path, tree)
        except (ProcessError, OSError) as error:
            because = error.because if isinstance(error, ProcessError) else str(error)
            raise ClusterError("the pack of a tree is damaged", because=because) from error
