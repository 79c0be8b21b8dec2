"""Carries of a dependency's source: merged into that source's tree, with an outcome like any other."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kit import VERSION, Content, make_tree, read_tree, write_carry, write_diff

from sparkwright.carries.model import Carry, load_carry
from sparkwright.git.repository import Repository, open_repository
from sparkwright.merge.engine import MergeRequest, merge_patchset
from sparkwright.merge.report import MergeReport, OutcomeKind

NAME = "flash"
LISTS = "CMakeLists.txt"
OLD = "set(ARCHS 8.0)\n\n# one\n# two\n# three\n\nset(FA2 8.0)\n"
NEW = OLD.replace("set(FA2 8.0)", "set(FA2 8.0 12.1a)")
WIDER = OLD.replace("set(ARCHS 8.0)", "set(ARCHS 8.0 12.1a)")
CLASH = OLD.replace("set(FA2 8.0)", "set(FA2 9.0)")
PINNED: dict[str, Content] = {LISTS: OLD, "csrc/a.cu": "// a\n"}
OWN: dict[str, Content] = {"vllm/a.py": "A = 1\n", LISTS: "# vLLM's\n"}


@dataclass
class Shelf:
    """Carries of a dependency's source, written against `PINNED`."""

    repository: Repository
    root: Path

    def carry(self, name: str, after: Mapping[str, Content | None], **changes: Any) -> Carry:
        before = dict(PINNED)
        whole = {path: content for path, content in {**before, **after}.items() if content is not None}
        patch = write_diff(self.repository, before, whole)
        revision = {"release": VERSION, "source-ref": "v1", "patch": f"{VERSION}.patch"}
        folder = write_carry(
            self.root, name, patches={VERSION: patch}, scope="build", source=NAME,
            **{"revision": [revision], **changes},
        )  # fmt: skip
        return load_carry(folder)

    def own(self, name: str, after: Mapping[str, Content], **changes: Any) -> Carry:
        patch = write_diff(self.repository, OWN, {**OWN, **after})
        return load_carry(write_carry(self.root, name, patches={VERSION: patch}, **changes))

    def merge(self, *carries: Carry, sources: Mapping[str, str] | None = None, **choices: Any) -> MergeReport:
        pristine = make_tree(self.repository, OWN)
        found = {NAME: make_tree(self.repository, PINNED)} if sources is None else sources
        request = MergeRequest(pristine, VERSION, carries, lambda _: pristine, sources=found, **choices)
        return merge_patchset(self.repository, request)


@pytest.fixture
def shelf(repository: Repository, tmp_path: Path) -> Shelf:
    return Shelf(repository, tmp_path / "carries")


class TestApply:
    def test_it_goes_into_the_sources_tree(self, shelf: Shelf) -> None:
        carries = [shelf.carry("wide", {LISTS: NEW}), shelf.carry("more", {"csrc/b.cu": "// b\n"})]
        report = shelf.merge(*carries)
        outcomes, (source,) = report.outcomes, report.sources
        assert [(outcome.kind, outcome.source) for outcome in outcomes] == [(OutcomeKind.APPLIED, NAME)] * 2
        assert outcomes[0].paths == (LISTS,)
        assert outcomes[0].named_paths == (f"{NAME}:{LISTS}",)
        assert outcomes[1].tree == source.tree
        assert read_tree(shelf.repository, source.tree) == {**PINNED, LISTS: NEW, "csrc/b.cu": "// b\n"}

    @pytest.mark.parametrize(
        ("now", "kind"),
        [
            ({LISTS: WIDER}, OutcomeKind.APPLIED),
            ({LISTS: OLD, "csrc/a.cu": "// newer\n"}, OutcomeKind.APPLIED),
            ({LISTS: CLASH}, OutcomeKind.CONFLICT),
            ({LISTS: NEW}, OutcomeKind.ABSORBED),
            ({"csrc/a.cu": "// a\n"}, OutcomeKind.CONFLICT),
        ],
    )
    def test_the_pinned_source_moved(self, shelf: Shelf, now: dict[str, Content], kind: OutcomeKind) -> None:
        carry = shelf.carry("wide", {LISTS: NEW})  # its base is in the store from when it was pinned
        moved = make_tree(shelf.repository, now)
        report = shelf.merge(carry, sources={NAME: moved})
        (outcome,), (source,) = report.outcomes, report.sources
        assert outcome.kind is kind
        assert (source.tree == moved) is (kind is not OutcomeKind.APPLIED)
        assert outcome.tree == source.tree

    def test_a_base_that_nobody_has_is_refused(self, shelf: Shelf, tmp_path: Path) -> None:
        carry = shelf.carry("wide", {LISTS: NEW})
        with contextlib.closing(open_repository(tmp_path / "another.git")) as empty:
            moved = make_tree(empty, {LISTS: WIDER})
            (outcome,) = Shelf(empty, tmp_path).merge(carry, sources={NAME: moved}).outcomes
        assert (outcome.kind, outcome.tree) == (OutcomeKind.REFUSED, moved)
        assert f"written against {NAME} at v1" in outcome.detail
        assert LISTS in outcome.detail


class TestPatchset:
    def test_each_carry_goes_into_its_own_tree(self, shelf: Shelf) -> None:
        report = shelf.merge(
            shelf.own("lists", {LISTS: "# ours\n"}),
            shelf.carry("wide", {LISTS: NEW}, requires=["lists"]),
            shelf.own("late", {"vllm/a.py": "A = 2\n"}),
        )
        assert [outcome.kind for outcome in report.outcomes] == [OutcomeKind.APPLIED] * 3
        assert read_tree(shelf.repository, report.tree) == {LISTS: "# ours\n", "vllm/a.py": "A = 2\n"}
        assert shelf.repository.tree_of(report.commit) == report.tree
        (found,) = report.sources
        assert found.pristine == make_tree(shelf.repository, PINNED)
        assert found.tree == report.outcome("wide").tree
        assert read_tree(shelf.repository, found.tree)[LISTS] == NEW

    def test_a_source_that_is_not_at_hand_costs_its_carries_and_no_others(self, shelf: Shelf) -> None:
        report = shelf.merge(
            shelf.carry("wide", {LISTS: NEW}),
            shelf.carry("wider", {LISTS: WIDER}, requires=["wide"]),
            shelf.own("late", {"vllm/a.py": "A = 2\n"}),
            sources={},
        )
        wide, wider, late = report.outcomes
        assert wide.kind is OutcomeKind.LEFT_OUT
        assert wide.detail == f"the source of {NAME} is not in the store"
        assert wider.kind is OutcomeKind.LEFT_OUT
        assert late.kind is OutcomeKind.APPLIED
        assert report.failed == ()
        assert report.sources == ()

    def test_what_is_left_out_takes_along_what_requires_it(self, shelf: Shelf) -> None:
        report = shelf.merge(
            shelf.own("lists", {LISTS: "# ours\n"}, scope="build"),
            shelf.own("needy", {"vllm/b.py": "B = 1\n"}, requires=["lists"]),
            shelf.own("late", {"vllm/a.py": "A = 2\n"}),
            left_out={"lists": "because"},
        )
        lists, needy, late = report.outcomes
        assert (lists.kind, lists.detail) == (OutcomeKind.LEFT_OUT, "because")
        assert (needy.kind, needy.detail) == (OutcomeKind.LEFT_OUT, "it requires lists, which is left out")
        assert late.kind is OutcomeKind.APPLIED
        assert not lists.kind.in_tree
        assert not lists.kind.blocks_build
        assert read_tree(shelf.repository, report.tree) == {**OWN, "vllm/a.py": "A = 2\n"}

    def test_what_is_left_out_is_not_even_read(self, shelf: Shelf) -> None:
        broken = shelf.own("lists", {LISTS: "# ours\n"}, scope="build")
        (broken.folder / f"{VERSION}.patch").write_bytes(b"no patch")
        assert shelf.merge(broken).outcome("lists").kind is OutcomeKind.REFUSED
        assert shelf.merge(broken, left_out={"lists": "x"}).outcome("lists").kind is OutcomeKind.LEFT_OUT
