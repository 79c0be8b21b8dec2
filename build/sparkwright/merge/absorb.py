"""Signals that upstream has a carry already; each of the four that fires is named.

``subject``: an upstream commit whose subject ends with the pull request's number.
``patch-id``: an upstream commit with the patch id of the carry's combined change.
``equal-tree``: merging changes nothing.
``reverse-apply``: the change can be taken out of the target and put back, giving the target again.

The first two need history, so they only work where the source has some. They catch what the
last two miss: a change that upstream merged and then edited again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.git.repository import Repository, as_argument
from sparkwright.git.trees import merge_trees

_MOST_COMMITS = 4000
_NUMBER = re.compile(r"\(#(\d+)\)\s*$")
_REVERT = re.compile(r'^Revert "(?P<subject>.*)"')
_REVERTED_ID = re.compile(r"^This reverts commit ([0-9a-f]{40})\b", re.MULTILINE)
_NO_COMMIT = "0" * 40


@dataclass(frozen=True)
class History:
    """Upstream's real history, where the source has it.

    Attributes:
        since: a commit whose history is not looked at, such as the carry's base; may be absent.
    """

    target: str
    since: str | None = None


@dataclass(frozen=True)
class CarryChange:
    """A carry's combined change: base commit, base tree, changed tree."""

    base_commit: str
    base: str
    theirs: str


@dataclass(frozen=True)
class _Commit:
    """An upstream commit: its id, subject and the rest of its message."""

    id: str
    subject: str
    body: str


def history_signals(
    repository: Repository, history: History, change: CarryChange, pulls: Sequence[int]
) -> tuple[str, ...]:
    """Return which of ``subject`` and ``patch-id`` fire, with the commit that made them.

    What upstream took out again, by a revert or by the opposite change, makes no signal.
    """
    diff = repository.diff(change.base, change.theirs, context=3)
    forward = _patch_ids(repository, diff).get(_NO_COMMIT)
    backward = _patch_ids(repository, repository.diff(change.theirs, change.base, context=3)).get(_NO_COMMIT)
    if forward is None:
        return ()
    commits = _standing(_log(repository, history, sorted(repository.changed(change.base, change.theirs))))
    ids = _patch_ids_of(repository, commits)
    signals: dict[str, str] = {}
    for commit in commits:  # newest first
        found = ids.get(commit.id)
        if found == backward:
            break
        number = _NUMBER.search(commit.subject)
        if number and int(number[1]) in pulls:
            signals.setdefault("subject", f"subject {commit.id[:12]} (#{number[1]})")
        if found == forward and _same_edits(diff, repository.diff(f"{commit.id}^", commit.id, context=3)):
            signals.setdefault("patch-id", f"patch-id {commit.id[:12]}")
    return tuple(signals[name] for name in ("subject", "patch-id") if name in signals)


def _log(repository: Repository, history: History, paths: Sequence[str]) -> list[_Commit]:
    """Return Upstream's commits that touch *paths*, newest first."""
    span = [history.target]
    if history.since is not None and repository.has(history.since):
        span.append(f"^{history.since}")
    limits = [f"--max-count={_MOST_COMMITS}", "--no-merges"]
    named = map(as_argument, paths)
    done = repository.command("log", "-z", *limits, "--format=%H%x00%s%x00%b", *span, "--", *named)
    fields = done.stdout.decode(errors="replace").split("\0")
    return [_Commit(*found) for found in zip(fields[0::3], fields[1::3], fields[2::3], strict=False)]


def _standing(commits: Sequence[_Commit]) -> list[_Commit]:
    """Return those of *commits*, newest first, that no later one in force reverts."""
    subjects: set[str] = set()
    ids: set[str] = set()
    standing = []
    for commit in commits:
        if commit.id in ids or commit.subject in subjects:
            continue
        revert = _REVERT.match(commit.subject)
        named = _REVERTED_ID.findall(commit.body)
        if revert:
            subjects.add(revert["subject"])
        ids.update(named)
        if not revert and not named:
            standing.append(commit)
    return standing


def _patch_ids_of(repository: Repository, commits: Sequence[_Commit]) -> dict[str, str]:
    if not commits:
        return {}
    names = "\n".join(commit.id for commit in commits).encode() + b"\n"
    log = repository.command("diff-tree", "--stdin", "-p", "--full-index", "--no-renames", stdin=names).stdout
    return _patch_ids(repository, log)


def _patch_ids(repository: Repository, diff: bytes) -> dict[str, str]:
    """Return commit id (or zeros) to patch id, for each commit in *diff*."""
    text = repository.command("patch-id", "--stable", stdin=diff).text
    pairs = (line.split() for line in text.splitlines())
    return {commit: patch for patch, commit in pairs}


def _same_edits(ours: bytes, theirs: bytes) -> bool:
    """Tell if two diffs of equal patch id, which ignores white space, change the same lines."""
    edits = [[line for line in diff.split(b"\n") if line.startswith((b"+", b"-"))] for diff in (ours, theirs)]
    return edits[0] == edits[1]


def reverse_applies(repository: Repository, change: CarryChange, target: str) -> bool:
    """Tell if the whole change can be taken out of *target* and put back.

    Taking it out alone proves little: a merge quietly skips the parts that are not there. Only
    if putting the change back gives *target* again was all of it there.
    """
    theirs_commit = repository.commit(change.theirs, message="the change")
    without = merge_trees(repository, base=theirs_commit, ours=target, theirs=change.base)
    if not without.clean:
        return False
    again = merge_trees(repository, base=change.base_commit, ours=without.tree, theirs=change.theirs)
    return again.clean and again.tree == target
