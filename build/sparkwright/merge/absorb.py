"""Does upstream have a carry already? Four signals, and each that fires is named.

``subject``: a commit of upstream's whose subject ends with the pull request's number.
``patch-id``: a commit of upstream's with the patch id of the carry's combined change.
``equal-tree``: merging changes nothing.
``reverse-apply``: the change can be taken out of the target and put back, giving the target again.

The first two need history, so they only work where the source has some. They catch what the
last two miss: a change that upstream merged and then edited again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.git import merge_trees

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.git import Repository

__all__ = ["Change", "History", "history_signals", "reverse_applies"]

_MOST_COMMITS = 4000
_NUMBER = re.compile(r"\(#(\d+)\)\s*$")
_REVERT = re.compile(r'^Revert "(?P<subject>.*)"')


@dataclass(frozen=True)
class History:
    """Upstream's real history, where the source has it.

    Attributes:
        target: the commit that is merged onto.
        since: a commit whose history is not looked at, such as the carry's base; may be absent.
    """

    target: str
    since: str | None = None


@dataclass(frozen=True)
class Change:
    """A carry's combined change: base commit, base tree, changed tree."""

    base_commit: str
    base: str
    theirs: str


def history_signals(
    repository: Repository, history: History, change: Change, pulls: Sequence[int]
) -> tuple[str, ...]:
    """Which of ``subject`` and ``patch-id`` fire, with the commit that made them."""
    paths = sorted(repository.changed(change.base, change.theirs))
    span = [history.target]
    if history.since is not None and repository.has(history.since):
        span.append(f"^{history.since}")
    log = repository.command(
        "log", f"--max-count={_MOST_COMMITS}", "--no-merges", "--format=%H%x00%s", *span, "--", *paths
    ).text
    commits = [tuple(line.split("\0", 1)) for line in log.splitlines()]
    signals = []
    if found := _merged_number([(commit, subject) for commit, subject in commits], pulls):
        signals.append(f"subject {found[:12]}")
    if found := _same_patch(repository, change, [commit for commit, _ in commits]):
        signals.append(f"patch-id {found[:12]}")
    return tuple(signals)


def _merged_number(commits: Sequence[tuple[str, str]], pulls: Sequence[int]) -> str:
    """The newest commit that merged one of *pulls* and was not reverted since; newest comes first."""
    reverted: set[str] = set()
    for commit, subject in commits:
        if revert := _REVERT.match(subject):
            reverted.add(revert["subject"])
        elif (number := _NUMBER.search(subject)) and int(number[1]) in pulls and subject not in reverted:
            return commit
    return ""


def _same_patch(repository: Repository, change: Change, commits: Sequence[str]) -> str:
    """A commit whose patch id is that of the whole change."""
    if not commits:
        return ""
    ours = _patch_ids(repository, repository.diff(change.base, change.theirs, context=3))
    log = repository.command(
        "diff-tree",
        "--stdin",
        "-p",
        "--full-index",
        "--no-renames",
        stdin="\n".join(commits).encode() + b"\n",
    ).stdout
    wanted = set(ours)
    return next((commit for patch, commit in _patch_ids(repository, log).items() if patch in wanted), "")


def _patch_ids(repository: Repository, diff: bytes) -> dict[str, str]:
    """Patch id to commit id, for each commit in *diff*."""
    text = repository.command("patch-id", "--stable", stdin=diff).text
    return dict(tuple(line.split()[:2]) for line in text.splitlines())  # type: ignore[misc]


def reverse_applies(repository: Repository, change: Change, target: str) -> bool:
    """Whether the whole change can be taken out of *target* and put back.

    Taking it out alone proves little: a merge quietly skips the parts that are not there. Only
    if putting the change back gives *target* again was all of it there.
    """
    theirs_commit = repository.commit(change.theirs, message="the change")
    without = merge_trees(repository, base=theirs_commit, ours=target, theirs=change.base)
    if not without.clean or without.tree == target:
        return False
    again = merge_trees(repository, base=change.base_commit, ours=without.tree, theirs=change.theirs)
    return again.clean and again.tree == target
