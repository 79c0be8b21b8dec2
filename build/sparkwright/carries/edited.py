"""A tree written out for editing, and what was edited in it as a patch."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from email import message_from_bytes
from fnmatch import fnmatchcase
from pathlib import Path

from sparkwright.base.errors import ConfigError, PatchError
from sparkwright.base.events import task, warn
from sparkwright.base.text import few, line_ends
from sparkwright.git.repository import LINK, Repository, TreeEntry
from sparkwright.git.trees import FileEntry, blob_id, check_out, patch_tree
from sparkwright.store.disk import remove_tree, storing

# What tools and editors leave behind, by the patterns of its names.
_LEFT_FOLDERS = (
    ".git", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".ipynb_checkpoints",
    ".venv", "venv", ".tox", ".nox", ".vscode", ".idea", ".zed", ".history", "*.egg-info",
)  # fmt: skip
_LEFT_FILES = (
    "*.pyc", "*.orig", "*.rej", "*.bak", "*.sw[op]", "*.so", "*~", "#*#", ".#*", "._*", ".DS_Store",
    "Thumbs.db", "desktop.ini", ".env", ".env.*", ".envrc",
)  # fmt: skip
_SHOWN = 10
_MARKERS = (b"<<<<<<< ", b">>>>>>> ")


def write_tree(repository: Repository, tree: str, folder: Path) -> None:
    """Write *tree* into *folder*, for a person to edit."""
    folder = folder.absolute()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            f"{folder} cannot take a tree", because="it is not a folder", next_step="name another folder"
        )
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

    Left-overs of tools and editors are not taken, and warned of, as are other line ends.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"{folder} could not be read",
            because="it is not a folder",
            next_step="name the folder that 'sparkwright carry edit' wrote",
        )
    known = repository.files(tree)
    tracked = {parent.as_posix() for path in known for parent in (Path(path), *Path(path).parents)}
    found = dict(_walk(folder, tracked))
    present = {path for path, left in found.items() if not left}
    if 2 * len(present & known.keys()) < len(known):
        # No real change deletes most of upstream; a mistyped folder does.
        raise ConfigError(
            f"{folder} is not an edited form of the tree",
            because=f"it has {len(present & known.keys())} of its {len(known)} files",
            next_step="'sparkwright carry edit FOLDER' writes the tree to edit",
        )
    _require_release(folder, repository, known)
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
        if entry is not None:
            _warn_of_line_ends(path, repository.blob(entry.blob), data)
        changes[path] = FileEntry(entry.mode if entry else new_mode, data)
    if changed_modes and len(modes) > 1:  # some file systems show one mode for all files
        raise PatchError(
            f"{changed_modes[0]} cannot be part of a carry",
            because=f"a carry's patch changes no mode, and {len(changed_modes)} files have another one",
            next_step="give it the mode back that it has upstream",
        )
    _name_left([path for path, left in found.items() if left])
    if not changes:
        return b""
    edited = patch_tree(repository, tree, changes)
    return repository.diff(tree, edited, context=0)


def _require_release(folder: Path, repository: Repository, known: Mapping[str, TreeEntry]) -> None:
    """Refuse a tree of another release: all that upstream changed between them would be taken for edits."""
    stated = folder / "PKG-INFO"
    if stated.name not in known or stated.is_symlink():  # a link is refused as such
        return
    read = (stated.read_bytes() if stated.is_file() else b"", repository.blob(known[stated.name].blob))
    there, wanted = (str(message_from_bytes(data).get("Version", "")).strip() for data in read)
    if there != wanted:
        states = f"it is of release {there}" if there else "its PKG-INFO states no release"
        raise ConfigError(
            f"{folder} is not an edited form of the pinned tree",
            because=f"{states}, and {wanted} is pinned",
            next_step="name the series of its release by --series, or write the tree again: carry edit",
        )


def _is_link(path: str, file: Path, entry: TreeEntry | None) -> bool:
    """Tell if *file* is a symbolic link as in the tree, which no carry changes, or else a plain file."""
    if file.is_symlink() or (entry is not None and entry.mode == LINK):
        if entry is None or not file.is_symlink() or blob_id(os.fsencode(file.readlink())) != entry.blob:
            raise PatchError(f"{path} cannot be part of a carry", because="it is a symbolic link")
        return True
    if not file.is_file():  # a named pipe would be waited for
        raise PatchError(f"{path} cannot be part of a carry", because="it is no plain file")
    return False


def _walk(folder: Path, tracked: set[str]) -> Iterator[tuple[str, bool]]:
    """Yield paths below *folder*, and whether each is a left-over; what is tracked never is, nor entered."""
    for parent, folders, names in os.walk(folder):
        here = Path(parent).relative_to(folder)
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        left = {name for name in folders if _is_left(here / name, tracked, _LEFT_FOLDERS)}
        yield from (((here / name).as_posix() + "/", True) for name in sorted(left - {".git"}))
        folders[:] = [name for name in folders if name not in links and name not in left]
        for name in (*names, *links):
            if name not in left:
                yield (here / name).as_posix(), _is_left(here / name, tracked, _LEFT_FILES)


def _is_left(path: Path, tracked: set[str], patterns: Sequence[str]) -> bool:
    return path.as_posix() not in tracked and any(fnmatchcase(path.name, pattern) for pattern in patterns)


def _name_left(left: Sequence[str]) -> None:
    """Warn of the left-overs *left*, which are no part of a carry."""
    if left:
        warn(f"not taken, as tools and editors leave it behind: {few(sorted(left), _SHOWN)}")


def _warn_of_line_ends(path: str, old: bytes, new: bytes) -> None:
    """Warn where a file got other line ends, which count as a change of each of its lines."""
    before, after = line_ends(old), line_ends(new)
    if before and after and before != after:
        same = old.replace(b"\r\n", b"\n") == new.replace(b"\r\n", b"\n")
        lines = new.count(b"\n")
        alone = "nothing but " if same else ""
        warn(f"{path} has {after} where the tree has {before}: {alone}line ends changed, on {lines} lines")


def _refuse_markers(path: str, data: bytes) -> None:
    if any(line.startswith(_MARKERS) for line in data.splitlines()):
        raise PatchError(
            f"{path} is not resolved",
            because="it still has conflict markers",
            next_step="resolve the conflict, then run the same command again",
        )
