"""Whole trees as git packs, to be carried to another repository."""

from __future__ import annotations

from pathlib import Path

from sparkwright.git.refs import check_object_id
from sparkwright.git.repository import Repository


def pack_tree(repository: Repository, tree: str, target: Path) -> None:
    """Write a pack of *tree* and everything below it to *target*."""
    listed = repository.command("rev-list", "--objects", "--no-object-names", check_object_id(tree)).stdout
    target.write_bytes(repository.command("pack-objects", "--stdout", "-q", stdin=listed).stdout)


def unpack_tree(repository: Repository, pack: Path, tree: str) -> None:
    """Take the objects of *pack* into *repository*, and check that *tree* and all below it is there.

    Raises:
        ProcessError: it is no pack, is damaged, or lacks a part of the tree.
    """
    check_object_id(tree)
    repository.command("index-pack", "--stdin", "--strict", stdin=pack.read_bytes())
    repository.command("rev-list", "--objects", "--quiet", tree)
