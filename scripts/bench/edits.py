"""Edits of a copy of the checkout, as the benchmarks and the slow tests make them."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from sparkwright.carries.model import load_carry
from sparkwright.git.repository import open_repository
from sparkwright.git.trees import FileEntry, patch_tree
from sparkwright.merge.prepare import prepare
from sparkwright.pipeline.checkout import open_checkout
from sparkwright.store.paths import open_store
from sparkwright.upstream.network import read_settings
from sparkwright.upstream.releases import Access, open_source

__all__ = ["copy_checkout", "edit_patch", "edit_prose"]

_COPIED = ("upstream.lock", "patchsets", "carries")


def copy_checkout(original: Path, root: Path) -> None:
    """Copy into *root* what a wheel is made from; the checkout itself is never edited."""
    for name in _COPIED:
        source = original / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, root / name)


def never_seen() -> str:
    """Return a text that no earlier run has used: the store would know its results."""
    return str(time.time_ns())


def edit_prose(root: Path, carry: str) -> None:
    """Change the title of *carry*."""
    path = root / "carries" / carry / "carry.toml"
    text = path.read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("title = "))
    path.write_text(text.replace(line, f'title = "Edited: {never_seen()}"'), encoding="utf-8")


def edit_patch(root: Path, name: str, path: str = "", comment: str = "#") -> None:
    """Let the carry called *name* also add a comment to the end of a file, which it need not change already.

    Args:
        root: the copy of the checkout.
        name: the carry.
        path: the file; by default the first that the carry changes.
        comment: what begins a comment there.
    """
    checkout, store = open_checkout(root), open_store()
    repository = open_repository(store.git)
    lock, carry = checkout.lock, load_carry(root / "carries" / name)
    pristine = open_source("index", Access(store, repository, read_settings())).pristine(lock).tree
    change = prepare(
        repository, carry, version=lock.release.version, find_base=lambda _: pristine, offline=True
    )
    if isinstance(change, str):
        raise SystemExit(change)
    revision = carry.revision_for(lock.release.version)
    if revision is None:
        raise SystemExit(f"{name} has no patch")
    path = path or carry.patch(revision).paths[0]
    data = repository.blob(repository.files(change.theirs, [path])[path].blob)
    edited = FileEntry("100644", data + f"\n{comment} edited: {never_seen()}\n".encode())
    tree = patch_tree(repository, change.theirs, {path: edited})
    patch = carry.folder / revision.patch
    patch.write_bytes(repository.diff(pristine, tree, context=0))
    repository.close()
