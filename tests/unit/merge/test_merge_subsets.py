"""Parts of a patchset: which there are, and that the few that are merged speak for all."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from kit import VERSION, make_tree, write_carry, write_diff
from subsets_kit import Part, prefixes, telling_subsets

from sparkwright.carries.model import Carry, load_carry
from sparkwright.carries.patchset import closure
from sparkwright.git.repository import Repository
from sparkwright.merge.engine import MergeRequest, merge_patchset

NEXT = "1.1.0"
CODE, OTHER = "vllm/cache.py", "vllm/other.py"
OLD = "def first():\n    return 1\n\n\ndef last():\n    return 3\n"
MOVED = OLD.replace("return 1", "return 5")
LETTERS = "abcdef"


def carries_of(root: Path, *keys: str) -> list[Carry]:
    """Carries that are called by the first letter of a key and require the others."""
    return [
        load_carry(write_carry(root, name, patches={VERSION: b""}, requires=list(required)))
        for name, *required in keys
    ]


def names(part: Part) -> str:
    return "".join(carry.name for carry in part)


def test_a_closure_has_what_is_required_at_any_remove(tmp_path: Path) -> None:
    carries = carries_of(tmp_path, "a", "ba", "c", "db", "ec")
    assert names(closure(["d"], carries)) == "abd"
    assert names(closure(["e", "b"], carries)) == "abce"
    assert closure([], carries) == ()


def test_carries_are_merged_together_where_they_meet(tmp_path: Path) -> None:
    carries = carries_of(tmp_path, *LETTERS[:-1], "fa")
    apart = {letter: [f"vllm/{letter}.py"] for letter in LETTERS}
    alone = [*LETTERS[:-1], "af"]
    assert [names(part) for part in telling_subsets(carries, apart)] == alone
    meeting = {**apart, "b": ["vllm/x"], "e": ["vllm/x/y.py"], "f": ["vllm/x/y.py"]}
    found = [names(part) for part in telling_subsets(carries, meeting)]
    assert found == [*alone, "be", "aef", "abf", "abef"]


class Planted:
    """A release that moved a line, a carry that moves it back, and one that was written before the move."""

    def __init__(self, repository: Repository, root: Path, *, honest: bool) -> None:
        self.repository = repository
        self.trees = {release: {CODE: text, OTHER: OLD} for release, text in ((VERSION, OLD), (NEXT, MOVED))}
        self.root = root
        self.carries = [
            self.carry("back", NEXT, {CODE: OLD}),
            self.carry("apart", VERSION, {OTHER: OLD.replace("return 3", "return 30")}),
            self.carry(
                "late",
                VERSION,
                {CODE: OLD.replace("return 1", "return 10")},
                requires=["back"] if honest else [],
            ),
        ]

    def carry(self, name: str, release: str, after: Mapping[str, str], **changes: list[str]) -> Carry:
        before = self.trees[release]
        patch = write_diff(self.repository, before, {**before, **after})
        return load_carry(write_carry(self.root, name, patches={release: patch}, **changes))

    def failing(self, parts: Iterable[Part]) -> list[list[str]]:
        """The parts that do not merge."""
        return [[carry.name for carry in part] for part in parts if self.merge(part).failed]

    def merge(self, part: Part):
        return merge_patchset(
            self.repository,
            MergeRequest(
                pristine=make_tree(self.repository, self.trees[NEXT]),
                version=NEXT,
                carries=part,
                find_base=lambda revision: make_tree(self.repository, self.trees[revision.release]),
            ),
        )

    def telling(self) -> tuple[Part, ...]:
        touched = {"back": [CODE], "apart": [OTHER], "late": [CODE]}
        return telling_subsets(self.carries, touched)


@pytest.mark.parametrize("honest", [False, True])
def test_a_requirement_that_was_not_declared_is_noticed(repository, tmp_path, *, honest):
    planted = Planted(repository, tmp_path, honest=honest)
    assert planted.failing(prefixes(planted.carries)) == []  # the order of the patchset hides it
    assert planted.failing(planted.telling()) == ([] if honest else [["late"]])
