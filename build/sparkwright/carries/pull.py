"""Pinning a pull request: its head, and the commit where it left upstream's branch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sparkwright.base.errors import FetchError, UnknownNameError
from sparkwright.carries import PullRequest
from sparkwright.git import fetch, list_remote, open_repository

if TYPE_CHECKING:
    from sparkwright.store import Store


@dataclass(frozen=True)
class ResolvedPull:
    """A pull request as it is now.

    Attributes:
        pin: what to pin.
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


def resolve_pull(store: Store, address: str, number: int) -> ResolvedPull:
    """Ask the remote for pull request *number* and find its merge base with the default branch.

    History alone is fetched, into a scratch repository, so that the store keeps no half objects.

    Raises:
        FetchError: the remote does not answer, or has no such pull request.
    """
    with store.scratch() as scratch:
        history = open_repository(scratch / "history")
        head_ref = f"refs/pull/{number}/head"
        refs = list_remote(history, address, ["HEAD", head_ref])
        if head_ref not in refs or "HEAD" not in refs:
            raise FetchError(
                f"{address} has no pull request {number}",
                because=f"it lists no {head_ref}",
                next_step="check the number and the address",
            )
        head, main = refs[head_ref].commit, refs["HEAD"].commit
        fetch(history, address, [head_ref, main], depth=None, history_only=True)
        done = history.command("merge-base", main, head, accept=(0, 1))
        if done.status:
            raise FetchError(
                f"pull request {number} cannot be pinned",
                because="it shares no history with the default branch",
            )
        base = done.text
        # NUL is the one byte that no message can hold.
        log = history.command("log", "--reverse", "-z", "--format=%an%x00%s%x00%B", f"{base}..{head}").stdout
    fields = log.decode(errors="replace").split("\0")
    commits = list(zip(fields[0::3], fields[1::3], fields[2::3], strict=False))
    if not commits:
        raise FetchError(
            f"pull request {number} cannot be pinned",
            because="its head is already in the default branch",
            next_step="a release made after that has it; an older pin needs a carry of your own",
        )
    return ResolvedPull(
        PullRequest(repository=address, number=number, head=head, base=base),
        author=commits[-1][0],
        subjects=tuple(commit[1] for commit in commits),
        message=commits[0][2].strip(),
    )
