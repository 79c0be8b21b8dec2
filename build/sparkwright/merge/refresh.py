"""Moving a carry of kind ``own`` onto the pin: by the merge where it is clean, by a person where not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.errors import CarryConflictError, ConfigError, PatchError
from sparkwright.carries.edited import write_tree
from sparkwright.carries.model import Carry
from sparkwright.git.repository import Repository
from sparkwright.git.trees import MergeResult, merge_trees
from sparkwright.merge.prepare import BaseFinder, prepare


def require_editable(carry: Carry, version: str) -> None:
    """Refuse to edit *carry* in vLLM's tree of *version*.

    Raises:
        ConfigError: it is a pull request, which is edited upstream and not here, or it changes the tree of a
            dependency.
    """
    revision = carry.revision_for(version)
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


@dataclass(frozen=True)
class CarryEditor:
    """Carries of kind ``own`` put on the pin for editing.

    Attributes:
        pristine: tree of the pin.
        find_base: gives a revision's base tree.
    """

    repository: Repository
    pristine: str
    version: str
    find_base: BaseFinder

    def merged(self, carry: Carry) -> MergeResult:
        """Return the change of *carry* merged onto the pin; with markers where that conflicts.

        Raises:
            ConfigError: see `require_editable`.
            PatchError: its newest revision does not fit its own base.
        """
        require_editable(carry, self.version)
        (ready,) = prepare(
            self.repository, [carry], version=self.version, find_base=self.find_base, offline=True
        )
        if ready.change is None:
            raise PatchError(f"carry {carry.name} cannot be moved", because=ready.refusal)
        return merge_trees(
            self.repository, base=ready.change.base_commit, ours=self.pristine, theirs=ready.change.theirs
        )

    def moved(self, carry: Carry, folder: Path) -> bytes:
        """Return the change of *carry* as a patch against the pin; empty when that has it already.

        Raises:
            ConfigError, PatchError: see `merged`.
            CarryConflictError: the merge conflicts; the tree with markers is in *folder*.
            ConfigError: it conflicts, and *folder* holds something already, such as work on it.
        """
        merged = self.merged(carry)
        if merged.clean:
            return self.repository.diff(self.pristine, merged.tree, context=0)
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
