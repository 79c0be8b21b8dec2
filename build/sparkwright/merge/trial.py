"""Conflicts of carries on many trees of upstream's, by merges of their files alone.

A merge is made on flat trees of a dozen entries instead of several thousand. This is exact as long as
upstream still has every one of these files; on a tree where it does not, the whole trees are merged, so that
git can follow a rename. A tree whose files of these equal another's has its outcomes too, without a merge.
What is wrong in a clean merge is not looked for: that is for the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkwright.git import MergeResult, Repository, TreeEntry, merge_trees
from sparkwright.git.trees import serialise
from sparkwright.merge.absorb import CarryChange, reverse_applies
from sparkwright.merge.report import OutcomeKind
from sparkwright.merge.texts import is_text


@dataclass(frozen=True)
class TriedOutcome:
    """The outcome of one change, and the files that conflict."""

    kind: OutcomeKind
    conflicts: tuple[str, ...] = ()


@dataclass
class Trial:
    """The outcomes of changes that are merged in order.

    Attributes:
        changes: the changes to merge in order; a search is about the last one.
        absorbing: whether to tell an absorbed carry from a conflict, which takes two more merges.
        merges: number of merges made so far.
    """

    repository: Repository
    changes: Sequence[CarryChange]
    absorbing: bool = False
    merges: int = 0
    _known: dict[str, tuple[TriedOutcome, ...]] = field(default_factory=dict)
    _flat: list[CarryChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        changed = [self.repository.changed(one.base, one.theirs) for one in self.changes]
        self.paths = sorted({path for found in changed for path in found})
        self.own = frozenset(changed[-1])
        self._expected = {path for found in changed for path, (before, _) in found.items() if before}

    def outcome(self, tree: str) -> OutcomeKind:
        """Return the last change's outcome on *tree*."""
        return self.outcomes(tree)[-1].kind

    def outcomes(self, tree: str) -> tuple[TriedOutcome, ...]:
        """Return the outcomes on *tree*; a change that does not merge is left out for the next ones."""
        entries = self.repository.files(tree, self.paths)
        flat = self._expected <= entries.keys()
        ours = self._flatten(entries) if flat else tree
        if ours not in self._known:
            self._known[ours] = self._merged(ours, self._flat_changes() if flat else self.changes)
        return self._known[ours]

    def _merged(self, ours: str, changes: Sequence[CarryChange]) -> tuple[TriedOutcome, ...]:
        found = []
        for change in changes:
            self.merges += 1
            result = merge_trees(self.repository, base=change.base_commit, ours=ours, theirs=change.theirs)
            found.append(self._outcome(change, ours, result))
            if result.clean:
                ours = result.tree
        return tuple(found)

    def _outcome(self, change: CarryChange, ours: str, result: MergeResult) -> TriedOutcome:
        if result.clean:
            return TriedOutcome(OutcomeKind.ABSORBED if result.tree == ours else OutcomeKind.APPLIED)
        if self.absorbing:
            self.merges += 2
            if reverse_applies(self.repository, change, ours):
                return TriedOutcome(OutcomeKind.ABSORBED)
        paths = tuple(self.paths[int(name)] if name.isdigit() else name for name in result.conflicts)
        texts = all(map(is_text, paths))
        kind = OutcomeKind.CONFLICT_IN_TESTS_OR_DOCS if texts else OutcomeKind.CONFLICT
        return TriedOutcome(kind, paths)

    def _flat_changes(self) -> list[CarryChange]:
        if not self._flat:
            for change in self.changes:
                base, theirs = (
                    self._flatten(self.repository.files(tree, self.paths))
                    for tree in (change.base, change.theirs)
                )
                self._flat.append(CarryChange(self.repository.commit(base, message="base"), base, theirs))
        return self._flat

    def _flatten(self, entries: dict[str, TreeEntry]) -> str:
        """Return the tree of *entries* under numbers: one object, however deep the files lie."""
        node = {str(number): entries[path] for number, path in enumerate(self.paths) if path in entries}
        return self.repository.objects.write("tree", serialise(node))
