"""The upstream commit that changed a carry's outcome, found by merges alone.

A search walks upstream's first-parent commits between two targets. A merge can only turn out otherwise where
the commit changes one of the carry's files, so those are searched first; the pair that is found is merged
once more by the engine itself, and where a commit beside the path list made the difference (a rename that
git follows), all commits of the interval are searched.

For speed a merge is made on the carry's files alone: flat trees of a dozen entries instead of several
thousand. This is exact as long as upstream still has every one of these files; on a commit where it
does not, the whole trees are merged, so that git can follow a rename.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from sparkwright.git import as_argument, merge_trees
from sparkwright.git.trees import serialise
from sparkwright.merge import OutcomeKind
from sparkwright.merge.absorb import CarryChange, reverse_applies
from sparkwright.merge.texts import is_text
from sparkwright.nightly.model import UpstreamCommit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sparkwright.git import MergeResult, Repository, TreeEntry
    from sparkwright.merge import Outcome

_PULL = re.compile(r"\(#(\d+)\)\s*$")
_FIELDS = "%H%x00%T%x00%P%x00%s%x00%an%x00%aI"


@dataclass(frozen=True)
class HistoryPoint:
    """A tree of upstream's between two targets.

    Attributes:
        tree: id of the tree.
        commit: id of the commit; empty for a release.
        parent: id of its first parent.
        subject: its subject; ``vllm 0.26.0`` for a release.
        author: its author's name.
        date: author date, ISO 8601.
        release: the release, where it is one.
    """

    tree: str
    commit: str = ""
    parent: str = ""
    subject: str = ""
    author: str = ""
    date: str = ""
    release: str = ""


@dataclass
class Trial:
    """The outcome of one carry on upstream trees, by merges of the files that it and those below it change.

    Attributes:
        repository: where the trees are.
        changes: the changes to merge in order; the last one is the carry's.
        absorbing: whether to tell an absorbed carry from a conflict, which takes two more merges.
        merges: number of merges made so far.
    """

    repository: Repository
    changes: Sequence[CarryChange]
    absorbing: bool = False
    merges: int = 0
    _known: dict[str, OutcomeKind] = field(default_factory=dict)
    _flat: list[CarryChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        changed = [self.repository.changed(one.base, one.theirs) for one in self.changes]
        self.paths = sorted({path for found in changed for path in found})
        self.own = frozenset(changed[-1])
        self._expected = {path for found in changed for path, (before, _) in found.items() if before}

    def outcome(self, tree: str) -> OutcomeKind:
        """Return the outcome on *tree*, without looking for what is wrong in a clean merge."""
        entries = self.repository.files(tree, self.paths)
        flat = self._expected <= entries.keys()
        ours = self._flatten(entries) if flat else tree
        if ours not in self._known:
            self._known[ours] = self._merged(ours, self._flat_changes() if flat else self.changes)
        return self._known[ours]

    def _merged(self, ours: str, changes: Sequence[CarryChange]) -> OutcomeKind:
        kind = OutcomeKind.APPLIED
        for change in changes:
            self.merges += 1
            result = merge_trees(self.repository, base=change.base_commit, ours=ours, theirs=change.theirs)
            kind = self._kind(change, ours, result)
            if result.clean:
                ours = result.tree
        return kind

    def _kind(self, change: CarryChange, ours: str, result: MergeResult) -> OutcomeKind:
        if result.clean:
            return OutcomeKind.ABSORBED if result.tree == ours else OutcomeKind.APPLIED
        if self.absorbing:
            self.merges += 2
            if reverse_applies(self.repository, change, ours):
                return OutcomeKind.ABSORBED
        paths = [self.paths[int(name)] if name.isdigit() else name for name in result.conflicts]
        texts = all(map(is_text, paths))
        return OutcomeKind.CONFLICT_IN_TESTS_OR_DOCS if texts else OutcomeKind.CONFLICT

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


class Tried(Protocol):
    """A way to tell a carry's outcome on a tree of upstream's."""

    merges: int

    @property
    def paths(self) -> Sequence[str]:
        """Files that the carry changes."""

    def outcome(self, tree: str) -> OutcomeKind:
        """Return the outcome on *tree*."""


@dataclass(frozen=True)
class OutcomeChange:
    """A carry's outcome that changed between two targets.

    Attributes:
        before: the outcome on the older one.
        after: the outcome on the newer one.
    """

    before: OutcomeKind
    after: OutcomeKind


def between(repository: Repository, old: str, new: str, paths: Sequence[str] = ()) -> list[HistoryPoint]:
    """Return the first-parent commits after *old* up to *new*, oldest first, that change one of *paths*."""
    done = repository.command(
        "log", "-z", "--first-parent", "--reverse", f"--format={_FIELDS}", f"{old}..{new}", "--",
        *map(as_argument, paths),
    )  # fmt: skip
    fields = done.stdout.decode(errors="replace").split("\0")
    return [
        HistoryPoint(tree, commit, parents.partition(" ")[0], *told)
        for commit, tree, parents, *told in zip(*(fields[first::6] for first in range(6)), strict=False)
    ]


def fork(repository: Repository, old: str, new: str) -> str | None:
    """Return the commit from which both lines come; releases lie on branches beside upstream's main one."""
    done = repository.command("merge-base", old, new, accept=(0, 1, 128))
    return done.text or None if done.status == 0 else None


def first_with(points: Sequence[HistoryPoint], kind: Callable[[str], OutcomeKind], after: OutcomeKind) -> int:
    """Return the index of a point with the outcome *after* whose predecessor in *points* has another.

    The point before the first counts as having another; the last one has to have *after*. Outcomes need
    not be ordered: however they alternate, the point that is returned and the one before it differ.
    """
    low, high = -1, len(points) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if kind(points[middle].tree) is after:
            high = middle
        else:
            low = middle
    return high


def culprit_by_commit(
    repository: Repository, trial: Tried, change: OutcomeChange, old: str, new: str
) -> UpstreamCommit | None:
    """Return the commit between *old* and *new* that made the *change*; `None` if no merge can tell.

    Args:
        repository: where the history is.
        trial: the carry, as it is to be merged.
        change: its outcomes on the two.
        old: a commit with the former outcome.
        new: a commit with the later one.
    """
    started = time.monotonic()
    start = fork(repository, old, new)
    if start is None or trial.outcome(repository.tree_of(new)) is not change.after:
        return None
    if trial.outcome(repository.tree_of(start)) is change.after:
        return None  # the older target's own branch made the difference
    touching = between(repository, start, new, trial.paths)
    number = len(touching)
    points = touching
    if not points or trial.outcome(points[-1].tree) is not change.after:
        points = between(repository, start, new)
    index = first_with(points, trial.outcome, change.after)
    found = points[index]
    if trial.outcome(repository.tree_of(found.parent)) is change.after:
        low = points[index - 1].commit if index else start
        points = between(repository, low, found.parent)
        found = points[first_with(points, trial.outcome, change.after)]
    parent = repository.tree_of(found.parent)
    named = _named(repository, found, parent, trial.paths)
    return replace(
        named,
        before=trial.outcome(parent),
        after=change.after,
        merges=trial.merges,
        seconds=round(time.monotonic() - started, 3),
        candidates=number,
    )


def describe(repository: Repository, commit: str, outcome: Outcome) -> UpstreamCommit:
    """Return what is known of a *commit* that a signal in *outcome* names; no search was made."""
    points = between(repository, f"{commit}^", commit)
    return _named(repository, points[-1], repository.tree_of(points[-1].parent), outcome.concerns)


def _named(repository: Repository, point: HistoryPoint, parent: str, paths: Sequence[str]) -> UpstreamCommit:
    files = repository.changed(parent, point.tree)
    pull = _PULL.search(point.subject)
    return UpstreamCommit(
        commit=point.commit,
        subject=point.subject,
        author=point.author,
        date=point.date,
        files=tuple(sorted(files.keys() & set(paths)) or sorted(files)),
        before=OutcomeKind.APPLIED,
        after=OutcomeKind.ABSORBED,
        pull=int(pull[1]) if pull else None,
    )


def culprit_by_release(
    repository: Repository, trial: Tried, change: OutcomeChange, old: str, releases: Sequence[HistoryPoint]
) -> UpstreamCommit | None:
    """Return the release that made the *change*, where no history is known.

    Args:
        repository: where the trees are.
        trial: the carry, as it is to be merged.
        change: its outcomes on the tree *old* and on the last release.
        old: the tree before the first release.
        releases: every release after it up to the newer target, oldest first.
    """
    started = time.monotonic()
    if not releases or trial.outcome(releases[-1].tree) is not change.after:
        return None
    if trial.outcome(old) is change.after:
        return None
    index = first_with(releases, trial.outcome, change.after)
    before = releases[index - 1].tree if index else old
    found = releases[index]
    files = repository.changed(before, found.tree)
    return UpstreamCommit(
        commit="",
        release=found.release,
        subject=found.subject,
        author="",
        date=found.date,
        files=tuple(sorted(files.keys() & set(trial.paths)) or sorted(files)),
        before=trial.outcome(before),
        after=change.after,
        merges=trial.merges,
        seconds=round(time.monotonic() - started, 3),
        candidates=len(releases),
    )
