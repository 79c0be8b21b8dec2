"""Pinning a pull request: its head, and the commit where it left the branch that it is against."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from sparkwright.base.errors import FetchError, UnknownNameError
from sparkwright.carries import PullRequest
from sparkwright.git import check_ref, fetch, list_remote, open_repository
from sparkwright.store import Store


@dataclass(frozen=True)
class ResolvedPull:
    """A pull request as it is now.

    Attributes:
        author: who wrote its newest commit.
        subjects: subjects of its commits, oldest first.
        message: the whole message of its first commit.
    """

    pin: PullRequest
    author: str
    subjects: tuple[str, ...]
    message: str


class PullName(NamedTuple):
    """A pull request as a user names it: its number, and its repository if given."""

    number: int
    repository: str = ""


_PULL = re.compile(
    r"(?:(?P<repository>(?:https|ssh|file)://[^\s?#]+)/pull/|#)?(?P<number>[0-9]{1,9})(?:[/?#]\S*)?"
)


_COMMIT = re.compile(r"[0-9a-f]{40}")


def parse_pull(text: str) -> PullName:
    """Return what ``45544``, ``#45544`` or the address of a pull request names.

    Raises:
        UnknownNameError: it is none of these.
    """
    found = _PULL.fullmatch(text.strip())
    if found is None or int(found["number"]) == 0:
        raise UnknownNameError(
            f"{text!r} does not name a pull request",
            next_step="give its number, such as 45544, or its whole address",
        )
    return PullName(int(found["number"]), found["repository"] or "")


def _names_of(branch: str) -> list[str]:
    """Return the full names of the refs that *branch* may stand for, the first one before the others."""
    if not branch:
        return ["HEAD"]
    if _COMMIT.fullmatch(branch):
        return []
    full = [branch] if branch.startswith("refs/") else [f"refs/heads/{branch}", f"refs/tags/{branch}"]
    return [check_ref(name) for name in full]


def resolve_pull(store: Store, address: str, number: int, *, branch: str = "") -> ResolvedPull:
    """Ask the remote for pull request *number* and find its merge base with the branch that it is against.

    History alone is fetched, into a scratch repository, so that the store keeps no half objects.

    Args:
        store: gives the scratch repository.
        address: the git address.
        number: the pull request's number there.
        branch: what it is against: a branch, a tag or a commit; the default branch if empty.

    Raises:
        FetchError: the remote does not answer, or has no such pull request or branch.
        RefError: *branch* is not well formed.
    """
    shown = branch or "the default branch"
    with store.scratch() as scratch:
        history = open_repository(scratch / "history")
        head_ref = f"refs/pull/{number}/head"
        against = _names_of(branch)
        refs = list_remote(history, address, [head_ref, *against])
        if head_ref not in refs or (not branch and "HEAD" not in refs):
            raise FetchError(
                f"{address} has no pull request {number}",
                because=f"it lists no {head_ref}",
                next_step="check the number and the address",
            )
        head = refs[head_ref].commit
        main = next((refs[name].commit for name in against if name in refs), branch)
        if main == branch and not _COMMIT.fullmatch(branch):
            raise FetchError(
                f"{address} has no {branch!r}",
                because="it lists no branch and no tag of that name",
                next_step="give the branch that the pull request is against, or a commit's 40 digits",
            )
        fetch(history, address, [head_ref, main], depth=None, history_only=True)
        done = history.command("merge-base", main, head, accept=(0, 1))
        if done.status:
            raise FetchError(
                f"pull request {number} cannot be pinned",
                because=f"it shares no history with {shown}",
            )
        base = done.text
        # NUL is the one byte that no message can hold.
        log = history.command("log", "--reverse", "-z", "--format=%an%x00%s%x00%B", f"{base}..{head}").stdout
    fields = log.decode(errors="replace").split("\0")
    commits = list(zip(fields[0::3], fields[1::3], fields[2::3], strict=False))
    if not commits:
        raise FetchError(
            f"pull request {number} cannot be pinned",
            because=f"its head is already in {shown}",
            next_step="a release made after that has it; an older pin needs a carry of your own",
        )
    return ResolvedPull(
        PullRequest(repository=address, number=number, head=head, base=base, branch=branch),
        author=commits[-1][0],
        subjects=tuple(commit[1] for commit in commits),
        message=commits[0][2].strip(),
    )
