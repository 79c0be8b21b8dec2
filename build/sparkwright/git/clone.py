"""A clone of this project: its content, and the branches that this tool writes in it.

Its objects and branches are written by git's plumbing alone. The work tree, the index and HEAD are the
person's and stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.errors import ConfigError, NeedsPersonError, ProcessError, RefError
from sparkwright.base.process.run import run
from sparkwright.git.remotes import check_object_id, check_ref
from sparkwright.git.repository import IDENTITY, Repository

_ABSENT = "0" * 40
_BRANCHES = "refs/heads/"
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class CommitText:
    """A commit as it is stored.

    Attributes:
        author: name and e-mail address, without the date.
        seconds: the committer's date, in seconds since 1970.
    """

    tree: str
    parents: tuple[str, ...]
    author: str
    committer: str
    seconds: int
    message: str

    @property
    def trailers(self) -> dict[str, str]:
        """Return the ``Key: value`` lines of the message's last paragraph."""
        last = self.message.strip().rpartition("\n\n")[2]
        pairs = (line.partition(": ") for line in last.splitlines())
        return {key: value for key, colon, value in pairs if colon}


@dataclass(frozen=True)
class ProjectClone:
    """A clone of this project.

    Attributes:
        repository: its objects and refs, not the store's.
        prefix: path of `root` in the commits' trees: empty, or with a slash at its end.
    """

    root: Path
    repository: Repository
    prefix: str
    head: str

    def commit(self, object_id: str) -> CommitText:
        """Return the commit with that id.

        Raises:
            RefError: it is not there, as below a shallow clone.
        """
        text = self.repository.objects.read(check_object_id(object_id)).decode(errors="replace")
        head, _, message = text.partition("\n\n")
        fields = [line.partition(" ") for line in head.splitlines()]
        who = {key: value for key, _, value in fields if key in {"tree", "author", "committer"}}
        author, committer = (who[role].rsplit(" ", 2) for role in ("author", "committer"))
        return CommitText(
            tree=who["tree"],
            parents=tuple(value for key, _, value in fields if key == "parent"),
            author=author[0],
            committer=committer[0],
            seconds=int(committer[1]),
            message=message,
        )

    def edited(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Return the tracked files below *paths*, relative to `root`, that differ from `head`."""
        done = self.repository.command(
            "-C", str(self.root), "--no-optional-locks", "status", "--porcelain=v1", "-z", "--no-renames",
            "--untracked-files=no", "--", *paths, bare=False,
        )  # fmt: skip
        listed = done.stdout.decode(errors="surrogateescape").split("\0")
        return tuple(entry[3:].removeprefix(self.prefix) for entry in listed if entry)

    def branch(self, name: str) -> str | None:
        """Return the commit of the branch *name*, or `None`."""
        return self.repository.find(f"{_BRANCHES}{check_ref(name)}") or None

    def place(self, name: str) -> str:
        """Return the folder in which the branch *name* is checked out; empty if it is nowhere."""
        folder = ""
        for line in self.repository.command("worktree", "list", "--porcelain").text.splitlines():
            key, _, value = line.partition(" ")
            if key == "worktree":
                folder = value
            elif key == "branch" and value == f"{_BRANCHES}{name}":
                return folder
        return ""

    def move(self, name: str, to: str, *, expected: str | None) -> None:
        """Point the branch *name* at *to*, if it still is at *expected* (`None`: there is none).

        Raises:
            ProcessError: another process moved it meanwhile.
        """
        ref = f"{_BRANCHES}{check_ref(name)}"
        self.repository.command("update-ref", ref, check_object_id(to), expected or _ABSENT)

    def own_base(self, tip: str, key: str) -> str | None:
        """Return the commit on which the commits up to *tip* stand, if this tool wrote all of them.

        The trailer *key* of each commit that this tool wrote names that base. The result is `None` if a
        commit has another writer or was changed since.
        """
        base = ""
        while True:
            try:
                commit = self.commit(tip)
            except RefError:
                return None
            base = base or commit.trailers.get(key, "")
            ours = commit.author == commit.committer == IDENTITY and commit.trailers.get(key) == base != ""
            if not ours or len(commit.parents) != 1:
                return None
            (tip,) = commit.parents
            if tip == base:
                return base

    def push(self, name: str, remote: str, *, key: str) -> None:
        """Push the branch *name* to *remote*, in place of one that this tool pushed; see `own_base`."""
        tip, ref = self.branch(name), f"{_BRANCHES}{check_ref(name)}"
        if tip is None or remote.startswith("-"):
            raise RefError(
                f"{name} cannot be pushed to {remote!r}", because="there is no such branch or remote"
            )
        listed = self._with_access("ls-remote", "--", remote, ref).split()
        there = listed[0] if listed else ""
        if there == tip:
            return
        if there:
            self._with_access("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--", remote, ref)
            if self.own_base(there, key) is None:
                raise NeedsPersonError(
                    f"the branch {name} of {remote} is not overwritten",
                    because=f"its commit {there[:12]}, or one below it, is not ours alone",
                    next_step=f"merge it, or remove it with 'git push {remote} --delete {name}'",
                )
        self._with_access(
            "push", "--quiet", f"--force-with-lease={ref}:{there}", "--", remote, f"{tip}:{ref}"
        )

    def _with_access(self, *arguments: str) -> str:
        """Run git as the person would, with their configuration, keys and hooks, and without questions."""
        environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
        done = run(["git", "-C", self.root, *arguments], env=environment, timeout=_PATIENCE_S)
        return done.text


def open_clone(root: Path) -> ProjectClone:
    """Return the clone whose work tree holds *root*."""
    outside = Repository(root)
    try:
        common, prefix, head = outside.command(
            "-C", str(root), "rev-parse", "--path-format=absolute", "--git-common-dir", "--show-prefix",
            "HEAD^{commit}", bare=False,
        ).stdout.decode(errors="surrogateescape").split("\n")[:3]  # fmt: skip
    except (ProcessError, ValueError) as error:
        raise ConfigError(
            f"{root} is no clone with a commit",
            because=str(getattr(error, "because", "")) or str(error),
            next_step="work in a git clone of the project",
        ) from error
    return ProjectClone(root, Repository(Path(common)), prefix, head)
