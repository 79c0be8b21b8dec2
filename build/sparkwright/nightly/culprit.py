"""The upstream commit or release that changed a carry's outcome: a bisection with the merge as its judge."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from sparkwright.base.errors import BisectionError
from sparkwright.git.repository import Repository
from sparkwright.merge.report import OutcomeKind
from sparkwright.nightly.model import UpstreamCommit
from sparkwright.search.changes import upstream_changes, weigh
from sparkwright.search.history import UpstreamStep
from sparkwright.search.model import Evaluation, SearchProblem, StepVerdict
from sparkwright.search.strategy import Question, solve

_PULL = re.compile(r"\(#(\d+)\)\s*$")
_SUSPECTED = 100.0
_FIELDS = "%H%x00%s%x00%an%x00%aI"


def fork(repository: Repository, old: str, new: str) -> str | None:
    """Return the commit from which both lines come; releases lie on branches beside upstream's main one."""
    done = repository.command("merge-base", old, new, accept=(0, 1, 128))
    return done.text or None if done.status == 0 else None


def step_to(
    start: str,
    steps: Sequence[UpstreamStep],
    after: OutcomeKind,
    outcome: Callable[[str], OutcomeKind],
    paths: Collection[str],
) -> int | None:
    """Return the index of a step with the outcome *after* whose predecessor has another.

    Steps that change one of *paths* are suspected first. `None` if the start has that outcome too, or the end
    another.

    Args:
        start: the tree before the first step.
        steps: points of upstream's line with their trees, oldest first.
        after: the outcome that is searched for.
        outcome: merges the carry onto a tree.
        paths: files that the carry changes.
    """
    if not steps:
        return None
    changes = tuple(upstream_changes(steps))

    def merged(question: Question) -> Evaluation:
        applied = len(question.applied)
        kind = outcome(steps[applied - 1].point.tree if applied else start)
        return Evaluation(verdict=StepVerdict.BAD if kind is after else StepVerdict.GOOD)

    problem = SearchProblem(
        start=start,
        end=steps[-1].point.tree,
        judge=f"a merge that is {after}",
        changes=changes,
        deterministic=True,
        weights=weigh(changes, paths, _SUSPECTED),
    )
    try:
        result = solve(problem, merged)
    except BisectionError:  # an end is not what it is taken for
        return None
    return [change.id for change in changes].index(result.changes[0])


def describe_commit(
    repository: Repository, commit: str, paths: Collection[str], before: OutcomeKind, after: OutcomeKind
) -> UpstreamCommit:
    """Return what is known of an upstream *commit* that changed an outcome."""
    shown = repository.command("show", "-s", f"--format={_FIELDS}", commit).stdout.decode(errors="replace")
    full, subject, author, date = shown.rstrip("\n").split("\0")
    trees = repository.tree_of(f"{commit}^"), repository.tree_of(commit)
    pull = _PULL.search(subject)
    return UpstreamCommit(
        commit=full,
        subject=subject,
        author=author,
        date=date,
        files=changed_files(repository, *trees, paths),
        before=before,
        after=after,
        pull=int(pull[1]) if pull else None,
    )


def changed_files(repository: Repository, old: str, new: str, paths: Collection[str]) -> tuple[str, ...]:
    """Return those of *paths* that differ between two trees, or every file that does if none of these is."""
    changed = repository.changed(old, new).keys()
    return tuple(sorted(changed & set(paths)) or sorted(changed))
