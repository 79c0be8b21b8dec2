"""Removing folders, whatever their modes, and never anything behind a link."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path


def remove_tree(folder: Path) -> None:
    """Remove *folder* and all in it, read-only folders included.

    A missing one is fine, also when another process removes it at the same time. A file, link, socket or
    pipe of that name is removed too; nothing is ever reached through a link.
    """
    if not folder.is_dir() or folder.is_symlink():
        folder.unlink(missing_ok=True)
        return
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        _make_folders_writable(folder)
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)  # says why it cannot be removed


def _make_folders_writable(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        folder.chmod(0o700)
        for parent, names, _ in os.walk(folder):
            for name in names:
                path = Path(parent, name)
                if not path.is_symlink():
                    path.chmod(0o700)
