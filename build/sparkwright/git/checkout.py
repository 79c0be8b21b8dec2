"""A tree of the store as read-only files on disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sparkwright.base.errors import ArchiveError
from sparkwright.git.links import outward_link
from sparkwright.git.refs import check_object_id
from sparkwright.git.repository import Repository

_SYMLINK = "120000 "


def check_out(repository: Repository, tree: str, folder: Path, *, under: str = "") -> None:
    """Write the files of *tree* into the empty *folder*.

    Args:
        repository: where the tree is.
        tree: its id.
        folder: where to; it is made when missing.
        under: only this folder of the tree, kept at its place; all by default.

    Raises:
        ArchiveError: a symbolic link in the tree leads out of it.
    """
    check_object_id(tree)
    _refuse_outward_links(repository, tree)
    folder.mkdir(parents=True, exist_ok=True)
    index = folder.with_name(folder.name + ".index")
    env = {"GIT_INDEX_FILE": str(index), "GIT_WORK_TREE": str(folder)}
    try:
        if under:
            repository.command("read-tree", f"--prefix={under}/", f"{tree}:{under}", env=env)
        else:
            repository.command("read-tree", tree, env=env)
        repository.command("checkout-index", "--all", "--force", f"--prefix={folder}/", env=env)
    finally:
        index.unlink(missing_ok=True)


def _refuse_outward_links(repository: Repository, tree: str) -> None:
    """Refuse links that lead out of a tree that came by git: nothing else checks these."""
    listed = repository.command("ls-tree", "-r", "-z", tree).stdout.decode(errors="surrogateescape")
    links = {}
    for line in listed.split("\0"):
        entry, _, path = line.partition("\t")
        if entry.startswith(_SYMLINK):
            links[path] = repository.blob(entry.split()[2]).decode(errors="surrogateescape")
    if (outward := outward_link(links)) is not None:
        raise ArchiveError(
            f"the tree {tree[:12]} cannot be written to a folder",
            because=f"its link {outward!r} leads to {links[outward]!r}, outside",
            next_step="find out which commit or carry brought that link, and leave that out",
        )


def make_read_only(folder: Path) -> None:
    """Take the right to write away from *folder* and everything in it."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            path = os.path.join(parent, name)  # noqa: PTH118 - thousands of files
            mode = os.lstat(path).st_mode
            if stat.S_ISREG(mode):
                os.chmod(path, mode & 0o555)  # noqa: PTH101
        os.chmod(parent, 0o555)  # noqa: PTH101, S103
