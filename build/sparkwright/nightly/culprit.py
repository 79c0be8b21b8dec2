"""The upstream commit that changed a carry's outcome, found by merges alone.

A search walks upstream's first-parent commits between two targets. A merge can only turn out otherwise where
the commit changes one of the carry's files, so those are searched first; the pair that is found is merged
once more by the engine itself, and where a commit beside the path list made the difference (a rename that
git follows), all commits of the interval are searched.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from sparkwright.git import Repository, as_argument
from sparkwright.merge import Outcome, OutcomeKind
from sparkwright.nightly.model import UpstreamCommit

_PULL = re.compile(r"\(#(\d+)\)\s*$")
_FIELDS = "%H%x00%T%x00%P%x00%s%x00%an%x00%aI"


@dataclass(frozen=True)
class HistoryPoint:
    """A tree of upstream's between two targets.

    Attributes:
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
