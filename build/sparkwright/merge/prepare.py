"""From a carry to something that can be merged: a base commit and a changed tree.

A carry of kind ``own`` is its patch on the release that it was written for; a pull request is its pinned
head and the commit where it left upstream's branch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sparkwright.base.errors import (
    BusyError,
    CarryConflictError,
    ConfigError,
    FetchError,
    PatchError,
    ProcessError,
    SparkwrightError,
    StorageError,
    ToolError,
)
from sparkwright.base.events import warn
from sparkwright.carries.edited import write_tree
from sparkwright.carries.model import Carry, PullRequest, Revision
from sparkwright.carries.patch import Patch
from sparkwright.git.remotes import check_object_id, fetch, list_remote
from sparkwright.git.repository import Repository
from sparkwright.git.trees import FileEntry, MergeResult, merge_trees, patch_tree
from sparkwright.merge.absorb import CarryChange

BaseFinder = Callable[[Revision], str]
"""Gives the id of the pristine tree that a revision was written against."""

# These are not about one carry: the next one would meet them too.
_FATAL = (BusyError, ProcessError, StorageError, ToolError)


def prepare(
    repository: Repository, carry: Carry, *, version: str, find_base: BaseFinder, offline: bool
) -> CarryChange | str:
    """Return the change of *carry*, or the reason that it cannot be merged.

    *find_base* gives the pristine tree of a revision's own release; *offline* takes pull requests as the
    store has them.
    """
    if carry.spec.pull is not None:
        return attempt(partial(pull_change, repository, carry.spec.pull, offline=offline))
    return attempt(partial(_own_change, repository, carry, version=version, find_base=find_base))


def attempt(change: Callable[[], CarryChange]) -> CarryChange | str:
    """Return the result of *change*; an error in the carry becomes a reason, any other is raised."""
    try:
        return change()
    except _FATAL:
        raise
    except SparkwrightError as error:
        return f"{error}. {error.next_step}".rstrip(". ")


def _own_change(repository: Repository, carry: Carry, *, version: str, find_base: BaseFinder) -> CarryChange:
    revision = carry.revision_for(version)
    if revision is None:
        raise PatchError(f"carry {carry.name} has no revision")
    return patched(repository, find_base(revision), carry.patch(revision))


def patched(repository: Repository, base: str, patch: Patch) -> CarryChange:
    """Return the change that *patch* makes to the tree *base*."""
    entries = repository.files(base, patch.paths)

    def read(path: str) -> bytes | None:
        return repository.blob(entries[path].blob) if path in entries else None

    base_commit = repository.commit(base, message="base")
    # A patch changes no mode: it names that of the file it was written for, and only a new file gets it.
    files = {
        path: None if new is None else FileEntry(entries[path].mode if path in entries else new[0], new[1])
        for path, new in patch.apply(read).items()
    }
    return CarryChange(base_commit, base, patch_tree(repository, base, files))


def pull_change(repository: Repository, pull: PullRequest, *, offline: bool = False) -> CarryChange:
    """Return the pinned change of a pull request; its objects are fetched by id when they are not here."""
    head, base = check_object_id(pull.head), check_object_id(pull.base)
    here = repository.has(head) and repository.has(base)
    if offline:
        if not here:
            raise FetchError(
                f"pull request {pull.number} is not in the store",
                because="the network is off",
                next_step="run once without --offline",
            )
    else:
        try:
            refuse_moved_head(repository, pull)
            if not here:
                fetch(repository, pull.repository, [f"refs/pull/{pull.number}/head", base])
        except FetchError as error:
            if not here:
                raise
            warn(f"the head of pull request {pull.number} was not checked: {error}")
    return CarryChange(base, repository.tree_of(base), repository.tree_of(head))


def refuse_moved_head(repository: Repository, pull: PullRequest) -> None:
    """Check that the pull request's head still is the pinned commit."""
    ref = f"refs/pull/{pull.number}/head"
    found = list_remote(repository, pull.repository, [ref]).get(ref)
    if found is None:
        raise FetchError(f"{pull.repository} has no pull request {pull.number}")
    if found.commit != pull.head:
        raise PatchError(
            f"the head of pull request {pull.number} moved",
            because=f"it was pinned at {pull.head[:12]} and now is {found.commit[:12]}",
            next_step="read the new commits, then pin its present head with 'sparkwright carry refresh'",
        )


# Moving a carry to a newer pin --------------------------------------------------------------------


def require_editable(carry: Carry, version: str) -> None:
    """Refuse to edit *carry* in vLLM's tree of *version*."""
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
    """Carries of kind ``own`` put on the pin for editing."""

    repository: Repository
    pristine: str
    version: str
    find_base: BaseFinder

    def merged(self, carry: Carry) -> MergeResult:
        """Return the change of *carry* merged onto the pin; with markers where that conflicts."""
        require_editable(carry, self.version)
        change = prepare(self.repository, carry, version=self.version, find_base=self.find_base, offline=True)
        if isinstance(change, str):
            raise PatchError(f"carry {carry.name} cannot be moved", because=change)
        return merge_trees(self.repository, base=change.base_commit, ours=self.pristine, theirs=change.theirs)

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
