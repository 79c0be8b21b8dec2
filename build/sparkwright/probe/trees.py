"""Trees on disk for probes to import from: read-only, kept in the store, checked before and after."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from sparkwright.canonical import digest_of
from sparkwright.events import task, warn
from sparkwright.git import check_out, make_read_only
from sparkwright.store import remove_tree

if TYPE_CHECKING:
    from pathlib import Path

    from sparkwright.git import Repository
    from sparkwright.store import Store

__all__ = ["fingerprint", "tree_folder"]

_KIND = "tree-fingerprint"


def tree_folder(store: Store, repository: Repository, tree: str, *, under: str) -> Path:
    """A folder with the files of *tree* below *under*; made once, remade when it was touched."""
    key = f"{tree}-{under}"
    folder = store.trees / key
    with store.lock(f"tree-{key}", f"the checked-out tree {tree[:12]}"):
        recorded = store.find_record(_KIND, key)
        if folder.is_dir():
            if recorded is not None and recorded.get("fingerprint") == fingerprint(folder):
                return folder
            warn(f"the checked-out tree {tree[:12]} was changed; making it anew")
            remove_tree(folder)
        with task(f"check out {tree[:12]}"), store.scratch() as scratch:
            fresh = scratch / "tree"
            check_out(repository, tree, fresh, under=under)
            make_read_only(fresh)
            # Recorded first: killed in between, the folder is missing and not under suspicion.
            store.put_record(_KIND, key, {"fingerprint": fingerprint(fresh)})
            fresh.chmod(0o755)  # renaming a folder needs the right to write to it
            store.publish_folder(fresh, folder)
            folder.chmod(0o555)
    return folder


def fingerprint(folder: Path) -> str:
    """Digest of the path and mode, and for all but folders the size and time of change, below *folder*."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        place = os.path.relpath(parent, folder)
        for name in sorted([*names, *folders]):
            state = os.lstat(os.path.join(parent, name))  # noqa: PTH118 - thousands of files
            size, changed = (0, 0) if stat.S_ISDIR(state.st_mode) else (state.st_size, state.st_mtime_ns)
            found.append([place, name, size, state.st_mode, changed])
    return digest_of(found)
