"""The three-way merge, in the object store, with a base of our choice.

``git merge-tree --write-tree`` finds the base from history, and ``--merge-base`` only came
with git 2.40. A synthetic pair of commits with the wanted base as their only parent says the
same to every git since 2.38.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkwright.base.errors import ProcessError
from sparkwright.git.repository import Repository


@dataclass(frozen=True)
class MergeResult:
    """The result of a merge.

    Attributes:
        tree: id of the merged tree; conflicted files hold conflict markers.
        conflicts: paths that conflict, sorted.
        messages: git's own words on each conflict.
    """

    tree: str
    conflicts: tuple[str, ...]
    messages: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Tell if nothing conflicts."""
        return not self.conflicts


def merge_trees(repository: Repository, *, base: str, ours: str, theirs: str) -> MergeResult:
    """Merge the change from *base* to *theirs* into *ours*.

    Args:
        repository: the store.
        base: a commit, the common ancestor.
        ours: a tree.
        theirs: a tree.

    Raises:
        ProcessError: git could not merge at all.
    """
    our_side = repository.commit(ours, parents=[base], message="ours")
    their_side = repository.commit(theirs, parents=[base], message="theirs")
    done = repository.command("merge-tree", "--write-tree", "-z", our_side, their_side, accept=(0, 1))
    tree, conflicts, messages = _parse(done.stdout.decode(errors="surrogateescape"))
    if bool(done.status) != bool(conflicts):
        raise ProcessError("git merge-tree contradicts itself", because=done.stderr or done.text[:400])
    return MergeResult(tree, conflicts, messages)


def _parse(output: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Split the output: tree, NUL, conflicted entries, NUL, then (count, paths, type, text) tuples."""
    fields = output.split("\0")
    tree, rest = fields[0].strip(), fields[1:]
    conflicts: set[str] = set()
    index = 0
    while index < len(rest) and rest[index]:
        conflicts.add(rest[index].partition("\t")[2])
        index += 1
    index += 1
    messages = []
    while index < len(rest) and rest[index].isdigit():
        count = int(rest[index])
        kind, text = rest[index + 1 + count : index + 3 + count]
        if kind.startswith("CONFLICT"):
            messages.append(text.strip())
        index += 3 + count
    return tree, tuple(sorted(conflicts)), tuple(messages)
