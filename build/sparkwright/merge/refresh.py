"""Moving a carry of kind ``own`` onto the pin: by the merge where it is clean, by a person where not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.errors import CarryConflictError, ConfigError, PatchError
from sparkwright.carries import Carry
from sparkwright.carries.edited import write_tree
from sparkwright.git import MergeResult, Repository, merge_trees
from sparkwright.merge import BaseFinder
from sparkwright.merge.prepare import prepare


@dataclass(frozen=True)
class RevisionBase:
    """The tree that the next revision of a carry is written against.

    Attributes:
        tree: the pin's tree, with the carries on which the carry's present revision is stacked.
        stacked_on: their names, in order.
    """

    tree: str
    stacked_on: tuple[str, ...]


@dataclass(frozen=True)
class CarryEditor:
    """Carries of kind ``own`` put on the pin for editing.

    Attributes:
        pristine: tree of the pin.
        carries: carries that others may be stacked on.
        find_base: gives a revision's base tree.
    """

    repository: Repository
    pristine: str
    version: str
    carries: Sequence[Carry]
    find_base: BaseFinder

    def base_for(self, carry: Carry) -> RevisionBase:
        """Return the base of the next revision of *carry*.

        Raises:
            ConfigError: it is a pull request, which is edited upstream and not here, or it changes
                the tree of a dependency.
            PatchError: what it is stacked on does not merge onto the pin.
        """
        revision = carry.revision_for(self.version)
        if carry.spec.source is not None:
            raise ConfigError(
                f"carry {carry.name} cannot be edited in vLLM's tree",
                because=f"it changes {carry.spec.source}, as pinned at {revision and revision.source_ref}",
                next_step=f"edit a checkout of {carry.spec.source}, write the patch with "
                "'git diff -U0 --full-index --no-renames', and name its commit as source-ref in "
                f"{carry.folder / 'carry.toml'}",
            )
        if revision is None:
            raise ConfigError(
                f"carry {carry.name} cannot be edited",
                because="it is a pull request, held as it is upstream",
                next_step=f"'sparkwright carry refresh {carry.name}' takes its present head",
            )
        tree = self.pristine
        known = {entry.name: entry for entry in self.carries}
        for name in revision.stacked_on:
            merged = self._merge(known[name], onto=tree) if name in known else None
            if merged is None or not merged.clean:
                raise PatchError(
                    f"carry {carry.name} cannot be put on {self.version}",
                    because=f"{name}, on which it is stacked, "
                    + ("is not in the patchset" if merged is None else "conflicts there"),
                    next_step=f"have {name} in the patchset, and refresh it first",
                )
            tree = merged.tree
        return RevisionBase(tree, revision.stacked_on)

    def merged(self, carry: Carry, base: RevisionBase) -> MergeResult:
        """Return the change of *carry* merged onto its *base*; with markers where that conflicts.

        Raises:
            PatchError: its newest revision does not fit its own base.
        """
        return self._merge(carry, onto=base.tree)

    def _merge(self, carry: Carry, *, onto: str) -> MergeResult:
        (ready,) = prepare(
            self.repository, [carry], version=self.version, find_base=self.find_base,
            offline=True, below=self.carries,
        )  # fmt: skip
        if ready.change is None:
            raise PatchError(f"carry {carry.name} cannot be moved", because=ready.refusal)
        return merge_trees(
            self.repository, base=ready.change.base_commit, ours=onto, theirs=ready.change.theirs
        )

    def moved(self, carry: Carry, base: RevisionBase, folder: Path) -> bytes:
        """Return the change of *carry* as a patch against its *base*; empty when the base has it already.

        Raises:
            PatchError: its newest revision does not fit its own base.
            CarryConflictError: the merge conflicts; the tree with markers is in *folder*.
            ConfigError: it conflicts, and *folder* holds something already, such as work on it.
        """
        merged = self.merged(carry, base)
        if merged.clean:
            return self.repository.diff(base.tree, merged.tree, context=0)
        resume = f"sparkwright carry refresh {carry.name} --from {folder}"
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(
                f"carry {carry.name} is being reworked in {folder}",
                because="that folder holds what an earlier refresh left there, and perhaps your work",
                next_step=f"finish there and run: {resume}; or remove the folder to start over",
            )
        write_tree(self.repository, merged.tree, folder)
        raise CarryConflictError(
            f"carry {carry.name} does not merge onto {self.version} by itself",
            because=f"{', '.join(merged.conflicts)} conflict",
            next_step=f"resolve the markers in {folder}, then: {resume}",
        )
