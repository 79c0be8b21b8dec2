"""Carries that change a dependency's source: merged into that source's tree, as others into vLLM's.

Sources come from archives, wheels and git remotes alike, and old ones are not kept. So a revision's
base is not a tree of its own here: it is the pinned tree with the very blobs that the patch names,
which most often are the pinned ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from sparkwright.base.errors import PatchError
from sparkwright.carries import Carry
from sparkwright.git import Repository, TreeEntry
from sparkwright.merge.absorb import CarryChange
from sparkwright.merge.landing import land
from sparkwright.merge.prepare import attempt, patched
from sparkwright.merge.report import Outcome, OutcomeKind
from sparkwright.store import Store


def apply_to_source(
    repository: Repository,
    tree: str,
    carries: Sequence[Carry],
    *,
    version: str,
    store: Store | None = None,
) -> tuple[str, tuple[Outcome, ...]]:
    """Merge *carries* of one dependency's source into its *tree*, in order.

    What they require of others, and whether they are superseded, is for `merge_patchset` to say.

    Args:
        repository: the store's repository; it holds the tree.
        tree: id of the source's tree.
        carries: carries with that source.
        version: the upstream version whose lock pins it.
        store: remembers findings on clean merges.

    Returns:
        The id of the tree with all carries in it that merge, and each one's outcome.

    Raises:
        ProcessError: git itself failed; a conflict is an outcome, not an error.
    """
    outcomes: list[Outcome] = []
    for carry in carries:
        ready = attempt(carry, partial(source_change, repository, carry, tree, version=version))
        if ready.change is None:
            outcome = Outcome(carry=carry.name, kind=OutcomeKind.REFUSED, tree=tree, detail=ready.refusal)
        else:
            outcome = land(repository, carry, ready.change, tree, store=store)
        outcome = replace(outcome, source=carry.spec.source or "")
        outcomes.append(outcome)
        tree = outcome.tree
    return tree, tuple(outcomes)


def source_change(repository: Repository, carry: Carry, tree: str, *, version: str) -> CarryChange:
    """Return the change of *carry*, on the base that its revision for *version* was written against.

    Raises:
        PatchError: a blob of that base is not in the store, or the patch does not fit it.
    """
    revision = carry.revision_for(version)
    if revision is None:
        raise PatchError(f"carry {carry.name} has no revision")
    patch = carry.patch(revision)
    present = repository.files(tree, patch.paths)
    base: dict[str, TreeEntry | None] = {}
    for file in patch.files:
        entry = present.get(file.path)
        if file.old is None:
            base[file.path] = None
        elif entry is None or entry.blob != file.old:
            if not repository.has(file.old):
                raise PatchError(
                    f"the base of {carry.name} is not in the store",
                    because=f"it was written against {carry.spec.source} at {revision.source_ref}, "
                    f"and {file.path} is another one in the pinned tree",
                    next_step="write a revision of it against the pinned source",
                )
            base[file.path] = TreeEntry(file.mode, file.old)
    if base:
        tree = repository.objects.edit(tree, base) or repository.objects.write("tree", b"")
    return patched(repository, tree, patch)
