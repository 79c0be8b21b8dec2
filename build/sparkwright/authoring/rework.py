"""Moving a carry of our own onto the pin: by the merge where it is clean, by a person where not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkwright.authoring.edited import write_tree
from sparkwright.errors import CarryConflictError, PatchError
from sparkwright.git import merge_trees
from sparkwright.merge.prepare import prepare

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sparkwright.carry import Carry
    from sparkwright.git import Repository
    from sparkwright.merge import BaseFinder

__all__ = ["rework"]


def rework(
    repository: Repository,
    carry: Carry,
    carries: Sequence[Carry],
    *,
    pristine: str,
    version: str,
    find_base: BaseFinder,
    folder: Path,
) -> bytes:
    """The change of *carry*, merged onto *pristine* alone, as a patch against it.

    Args:
        repository: the store's repository.
        carry: what to move.
        carries: the carries that it may be stacked on, itself included.
        pristine: tree of the pin.
        version: the pin's version.
        find_base: gives a revision's base tree.
        folder: where to leave the conflicted tree for a person.

    Raises:
        PatchError: its newest revision does not fit its own base.
        CarryConflictError: the merge conflicts; the tree with markers is in *folder*.
    """
    prepared = prepare(repository, carries, version=version, find_base=find_base, offline=True)
    ready = next(entry for entry in prepared if entry.carry.name == carry.name)
    if ready.change is None:
        raise PatchError(f"carry {carry.name} cannot be moved", because=ready.refusal)
    merged = merge_trees(repository, base=ready.change.base_commit, ours=pristine, theirs=ready.change.theirs)
    if not merged.clean:
        write_tree(repository, merged.tree, folder)
        raise CarryConflictError(
            f"carry {carry.name} does not merge onto {version} by itself",
            because=f"{', '.join(merged.conflicts)} conflict",
            next_step=f"resolve the markers in {folder}, then: "
            f"sparkwright carry refresh {carry.name} --from {folder}",
        )
    return repository.diff(pristine, merged.tree, context=0)
