"""A tree written out for editing, and what was edited in it as a patch."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sparkwright.base.errors import ConfigError, PatchError
from sparkwright.base.events import task
from sparkwright.git import LINK, FileEntry, blob_id, check_out, patch_tree
from sparkwright.store import remove_tree, storing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkwright.git import Repository, TreeEntry

_IGNORED_FOLDERS = {".git", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".venv"}
_IGNORED_SUFFIXES = {".pyc", ".orig", ".rej", ".swp", ".so"}
_MARKERS = (b"<<<<<<< ", b">>>>>>> ")


def write_tree(repository: Repository, tree: str, folder: Path) -> None:
    """Write *tree* into *folder*, for a person to edit.

    Raises:
        ConfigError: the folder exists and is not empty, or is no folder.
        ArchiveError: a symbolic link of the tree leads out of it.
    """
    folder = folder.absolute()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} cannot take a tree", because="it is not a folder")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} cannot take a tree", because="it is not empty", next_step="name another folder"
        )
    with task(f"write {folder}"), storing(f"writing {folder}"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: half a tree, edited, would look as if the rest had been deleted.
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            check_out(repository, tree, part / "tree")
            (part / "tree").rename(folder)
        finally:
            remove_tree(part)


def diff_folder(repository: Repository, tree: str, folder: Path) -> bytes:
    """Return what *folder* changes in *tree*, as a ``-U0 --full-index`` patch; empty when nothing.

    Raises:
        ConfigError: the folder does not exist, or does not look like that tree.
        PatchError: a file still has conflict markers, a symbolic link or a file's mode changed, or something
            is no file.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} could not be read", because="it is not a folder")
    known = repository.files(tree)
    tracked = {parent.as_posix() for path in known for parent in (Path(path), *Path(path).parents)}
    present = set(_walk(folder, tracked))
    if 2 * len(present & known.keys()) < len(known):
        # No real change deletes most of upstream; a mistyped folder does.
        raise ConfigError(
            f"{folder} is not an edited form of the tree",
            because=f"it has {len(present & known.keys())} of its {len(known)} files",
            next_step="'sparkwright carry edit FOLDER' writes the tree to edit",
        )
    changed_modes: list[str] = []
    modes: set[str] = set()
    changes: dict[str, FileEntry | None] = {path: None for path in known if path not in present}
    for path in sorted(present):
        file = folder / path
        entry = known.get(path)
        if _is_link(path, file, entry):
            continue
        data = file.read_bytes()
        new_mode = "100755" if file.stat().st_mode & stat.S_IXUSR else "100644"
        if entry is not None:
            modes.add(new_mode)
            changed_modes += [path] if entry.mode != new_mode else []
        if entry is not None and blob_id(data) == entry.blob:
            continue
        _refuse_markers(path, data)
        changes[path] = FileEntry(entry.mode if entry else new_mode, data)
    if changed_modes and len(modes) > 1:  # some file systems show one mode for all files
        raise PatchError(
            f"{changed_modes[0]} cannot be part of a carry",
            because=f"a carry's patch changes no mode, and {len(changed_modes)} files have another one",
            next_step="give it the mode back that it has upstream",
        )
    if not changes:
        return b""
    edited = patch_tree(repository, tree, changes)
    return repository.diff(tree, edited, context=0)


def _is_link(path: str, file: Path, entry: TreeEntry | None) -> bool:
    """Tell if *file* is a symbolic link as in the tree, which no carry changes; otherwise it is a plain file.

    Raises:
        PatchError: it is neither.
    """
    if file.is_symlink() or (entry is not None and entry.mode == LINK):
        if entry is None or not file.is_symlink() or blob_id(os.fsencode(file.readlink())) != entry.blob:
            raise PatchError(f"{path} cannot be part of a carry", because="it is a symbolic link")
        return True
    if not file.is_file():  # a named pipe would be waited for
        raise PatchError(f"{path} cannot be part of a carry", because="it is no plain file")
    return False


def _walk(folder: Path, tracked: set[str]) -> Iterator[str]:
    """Yield paths of the files below *folder*, without tools' left-overs; tracked folders always count."""
    for parent, folders, names in os.walk(folder):
        here = Path(parent).relative_to(folder)
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        folders[:] = [
            name
            for name in folders
            if name not in links and ((here / name).as_posix() in tracked or not _is_left_over(name))
        ]
        for name in (*names, *links):
            path = (here / name).as_posix()
            if path in tracked or Path(name).suffix not in _IGNORED_SUFFIXES:
                yield path


def _is_left_over(folder_name: str) -> bool:
    return folder_name in _IGNORED_FOLDERS or folder_name.endswith(".egg-info")


def _refuse_markers(path: str, data: bytes) -> None:
    if any(line.startswith(_MARKERS) for line in data.splitlines()):
        raise PatchError(
            f"{path} is not resolved",
            because="it still has conflict markers",
            next_step="resolve the conflict, then run the same command again",
        )
