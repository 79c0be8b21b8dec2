"""Parts of a patchset: which there are, and that the few that are merged speak for all."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
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


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Carry]:
    """One carry for each letter and each set of letters before it that it may require."""
    root = tmp_path_factory.mktemp("carries")
    found = {}
    for index, name in enumerate(LETTERS):
        for required in powerset(LETTERS[:index]):
            folder = root / "".join(required)
            path = write_carry(folder, name, patches={VERSION: b""}, requires=list(required))
            found[name, *required] = load_carry(path)
    return found


def powerset(items: Iterable[str]) -> list[tuple[str, ...]]:
    pool = list(items)
    return list(chain.from_iterable(combinations(pool, size) for size in range(len(pool) + 1)))


def names(part: Part) -> str:
    return "".join(carry.name for carry in part)


@st.composite
def requirements(draw: st.DrawFn) -> list[tuple[str, ...]]:
    """For each of up to six carries, its name and what it requires."""
    count = draw(st.integers(0, len(LETTERS)))
    return [
        (name, *sorted(draw(st.sets(st.sampled_from(LETTERS[:index]), max_size=2)) if index else ()))
        for index, name in enumerate(LETTERS[:count])
    ]


def allowed(carries: Sequence[Carry]) -> set[str]:
    """Names of the closed parts, found by looking at every part."""
    by_name = {carry.name: carry for carry in carries}
    return {
        "".join(part)
        for part in powerset(by_name)
        if part and all(set(by_name[name].spec.requires) <= set(part) for name in part)
    }


def test_a_closure_has_what_is_required_at_any_remove(known: dict[tuple[str, ...], Carry]) -> None:
    carries = [known[tuple(key)] for key in ("a", "ba", "c", "db", "ec")]
    assert names(closure(["d"], carries)) == "abd"
    assert names(closure(["e", "b"], carries)) == "abce"
    assert closure([], carries) == ()


@given(keys=requirements(), data=st.data())
def test_telling_parts_are_closed_and_show_every_meeting_in_every_file(known, keys, data):
    carries = [known[key] for key in keys]
    paths = st.sets(st.sampled_from(["x", "x/y", "z"]), min_size=1)
    touched = {carry.name: data.draw(paths) for carry in carries}
    found = {names(part) for part in telling_subsets(carries, touched)}
    every = allowed(carries)
    assert found <= every
    # What may touch one file, or stand in its way as a file where it needs a folder.
    for near in ({"x"}, {"x", "x/y"}, {"z"}):
        group = {carry.name for carry in carries if touched[carry.name] & near}
        assert {frozenset(part) & group for part in every} <= {frozenset(part) & group for part in found} | {
            frozenset()
        }
    assert {names(closure([carry.name], carries)) for carry in carries} <= found


def test_carries_that_never_meet_are_merged_one_by_one(known: dict[tuple[str, ...], Carry]) -> None:
    carries = [known[letter,] for letter in LETTERS]
    apart = {letter: [f"vllm/{letter}.py"] for letter in LETTERS}
    assert [names(part) for part in telling_subsets(carries, apart)] == list(LETTERS)
    meeting = {**apart, "b": [CODE], "e": [CODE]}
    assert [names(part) for part in telling_subsets(carries, meeting)] == [*LETTERS, "be"]


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
