"""Every outcome by name, on generated trees; one failing carry never hides the others."""

from dataclasses import dataclass

import pytest
from kit import Scene, UpstreamRepository, make_tree, read_tree, write_carry, write_diff

from sparkwright.base.errors import NotInStoreError, StorageError
from sparkwright.carries.model import load_carry
from sparkwright.git.remotes import fetch
from sparkwright.git.trees import FileEntry
from sparkwright.merge.absorb import History
from sparkwright.merge.prepare import refuse_moved_head
from sparkwright.merge.report import Outcome, OutcomeKind
from sparkwright.merge.sides import is_text

CODE, TEST = "vllm/cache.py", "tests/t.py"
Files = dict[str, str]
OLD = "def first():\n    return 1\n\n\ndef middle():\n    return 2\n\n\ndef last():\n    return 3\n"
NEW = OLD.replace("return 1", "return 10")
MOVED = OLD.replace("return 3", "return 30")
BOTH = NEW.replace("return 3", "return 30")
CLASH = OLD.replace("return 1", "return 99")


def only(scene: Scene) -> Outcome:
    (outcome,) = scene.merge().outcomes
    return outcome


def test_a_change_that_fits_is_applied_beside_upstreams_own(scene: Scene) -> None:
    scene.base, scene.target = {CODE: OLD}, {CODE: MOVED}
    scene.add("fix", {CODE: NEW})
    report = scene.merge()
    outcome = report.outcome("fix")
    assert outcome.kind is OutcomeKind.APPLIED
    assert outcome.paths == (CODE,)
    assert outcome.kind.in_tree
    assert not outcome.kind.blocks_build
    assert report.tree == outcome.tree != report.pristine
    assert report.failed == ()
    expected = MOVED.replace("return 1", "return 10")
    assert read_tree(scene.repository, report.tree) == {CODE: expected}


def test_apart_carries_merge_alike_in_any_order_and_are_absorbed_by_what_they_made(scene: Scene) -> None:
    scene.base, scene.target = {CODE: OLD}, {CODE: OLD.replace("return 2", "return 20")}
    for name, change in (("first", NEW), ("last", MOVED)):
        scene.add(name, {CODE: change})
    merged = scene.merge().tree
    text = BOTH.replace("return 2", "return 20")
    assert read_tree(scene.repository, merged) == {CODE: text}
    scene.carries.reverse()
    assert scene.merge().tree == merged
    scene.target = {CODE: text}
    again = scene.merge()
    assert [outcome.kind for outcome in again.outcomes] == [OutcomeKind.ABSORBED] * 2
    assert again.tree == merged


def test_superseded_by_declaration_and_not_before(scene: Scene) -> None:
    entry = {"releases": ">=1.1", "by": "their rewrite", "because": "its notes say so"}
    scene.base = {CODE: OLD}
    scene.add("fix", {CODE: NEW}, superseded=[entry])
    outcome = only(scene)
    assert outcome.kind is OutcomeKind.SUPERSEDED
    assert "their rewrite" in outcome.detail
    assert outcome.tree == make_tree(scene.repository, scene.base)
    scene.version = "1.0.9"
    assert only(scene).kind is OutcomeKind.APPLIED


def test_a_conflict_in_code_leaves_the_carry_out_and_the_next_ones_in(scene: Scene) -> None:
    scene.base, scene.target = {CODE: OLD}, {CODE: CLASH}
    scene.add("clashes", {CODE: NEW})
    scene.add("fits", {CODE: MOVED})
    report = scene.merge()
    first, second = report.outcomes
    assert first.kind is OutcomeKind.CONFLICT
    assert first.conflicts == (CODE,)
    assert "vllm/cache.py" in first.detail
    assert first.kind.blocks_build
    assert second.kind is OutcomeKind.APPLIED
    assert [outcome.carry for outcome in report.failed] == ["clashes"]
    merged = read_tree(scene.repository, report.tree)[CODE]
    assert "<<<<" not in merged
    assert "return 99" in merged
    assert "return 30" in merged


MOVING = {f"vllm/old/{name}.py": f"{name} = 1\n" * 9 for name in "abcd"}
PARAMETERS = "def f(\n    a,\n    *,\n    b,\n    c,\n    d,\n):\n    return a\n"
# The compiler warns of it, and warnings are errors here.
ODD = 'PATTERN = "\\d"\n\n\n' + OLD

# What the tree was, what upstream made of it and what the carry changes; the outcome, its conflicts and what
# it says.
SITUATIONS: dict[str, tuple[Files, Files, Files, OutcomeKind, tuple[str, ...], str]] = {
    "upstream renamed the folder of a new file": (
        MOVING,
        {path.replace("/old/", "/new/"): text for path, text in MOVING.items()},
        {"vllm/old/mine.py": "mine = 1\n"},
        OutcomeKind.CONFLICT,
        ("vllm/new/mine.py",),
        "",
    ),
    "upstream deleted a test": (
        {CODE: OLD, TEST: "one\n"}, {CODE: OLD}, {CODE: NEW, TEST: "ours\n"},
        OutcomeKind.CONFLICT_IN_TESTS_OR_DOCS, (TEST,), "",
    ),
    "code conflicts beside a test": (
        {CODE: OLD, TEST: "one\n"}, {CODE: CLASH, TEST: "theirs\n"}, {CODE: NEW, TEST: "ours\n"},
        OutcomeKind.CONFLICT, (TEST, CODE), "",
    ),
    "nothing but tests that conflict": (
        {TEST: "one\n"}, {TEST: "theirs\n"}, {TEST: "ours\n"},
        OutcomeKind.REFUSED, (TEST,), "nothing is left",
    ),
    "upstream has the code and another test": (
        {CODE: OLD, TEST: "one\n"}, {CODE: NEW, TEST: "theirs\n"}, {CODE: NEW, TEST: "ours\n"},
        OutcomeKind.ABSORBED, (TEST,), "",
    ),
    "a parameter twice": (
        {CODE: PARAMETERS},
        {CODE: PARAMETERS.replace("    b,\n", "    new=None,\n    b,\n")},
        {CODE: PARAMETERS.replace("    d,\n", "    d,\n    new=None,\n")},
        OutcomeKind.REFUSED,
        (),
        "duplicate argument",
    ),
    "a misspelt escape of upstream's": (
        {CODE: ODD}, {CODE: ODD.replace("return 3", "return 30")},
        {CODE: ODD.replace("return 1", "return 10")},
        OutcomeKind.APPLIED, (), "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("situation", SITUATIONS)
def test_each_situation_has_its_outcome(scene: Scene, situation: str) -> None:
    scene.base, scene.target, change, kind, conflicts, says = SITUATIONS[situation]
    scene.add("fix", change)
    report = scene.merge()
    (outcome,) = report.outcomes
    assert (outcome.kind, outcome.conflicts) == (kind, conflicts)
    assert says in outcome.detail
    if kind is OutcomeKind.CONFLICT_IN_TESTS_OR_DOCS:
        assert read_tree(scene.repository, report.tree) == {CODE: NEW}, "what upstream deleted stays deleted"


@pytest.mark.parametrize("text", ["tests/test_cache.py", "docs/cache.md", "vllm/README.md"])
def test_a_conflict_in_tests_or_documents_keeps_upstreams_form_and_lands_the_code(scene, text):
    scene.base = {CODE: OLD, text: "one\n"}
    scene.target = {CODE: MOVED, text: "theirs\n"}
    scene.add("fix", {CODE: NEW, text: "ours\n"})
    report = scene.merge()
    (outcome,) = report.outcomes
    assert outcome.kind is OutcomeKind.CONFLICT_IN_TESTS_OR_DOCS
    assert outcome.conflicts == (text,)
    assert outcome.paths == (CODE,)
    assert outcome.kind.in_tree
    assert not outcome.kind.blocks_build
    assert read_tree(scene.repository, report.tree) == {
        CODE: MOVED.replace("return 1", "return 10"),
        text: "theirs\n",
    }


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tests/v1/test_a.py", True), ("vllm/x/tests/a.py", True), ("benchmarks/run.py", True),
        (".buildkite/a.yaml", True), ("README.md", True), ("vllm/testing.py", False),
        ("vllm/benchmarks/run.py", False), ("csrc/a.cu", False), ("requirements/cuda.txt", False),
        ("mytests/a.py", False),
    ],
)  # fmt: skip
def test_what_counts_as_a_text(path: str, text: bool) -> None:  # noqa: FBT001
    assert is_text(path) is text


def test_a_patch_that_does_not_fit_its_base_is_refused_and_hides_nothing(scene: Scene) -> None:
    scene.base = {CODE: OLD}
    scene.add("good", {CODE: NEW})
    patch = write_diff(scene.repository, {CODE: CLASH}, {CODE: MOVED})
    scene.carries.insert(0, load_carry(write_carry(scene.root, "bad", patches={"1.0.0": patch})))
    bad, good = scene.merge().outcomes
    assert bad.kind is OutcomeKind.REFUSED
    assert "does not fit" in bad.detail
    assert good.kind is OutcomeKind.APPLIED


def test_a_base_that_cannot_be_had_is_refused_but_a_full_disk_ends_the_merge(scene, monkeypatch):
    from sparkwright.merge.engine import MergeRequest, merge_patchset

    scene.base = {CODE: OLD}
    carry = scene.add("fix", {CODE: NEW})
    tree = make_tree(scene.repository, scene.base)

    def failing(error: Exception):
        def find(_: object) -> str:
            raise error

        return MergeRequest(pristine=tree, version="1.1.0", carries=[carry], find_base=find)

    report = merge_patchset(scene.repository, failing(NotInStoreError("no sdist", next_step="go online")))
    assert report.outcomes[0].kind is OutcomeKind.REFUSED
    assert "go online" in report.outcomes[0].detail
    with pytest.raises(StorageError):
        merge_patchset(scene.repository, failing(StorageError("the disk is full")))


def test_functions_that_both_sides_changed_are_listed_and_the_twin_is_silent(scene: Scene) -> None:
    long = (
        "class A:\n    def f(self):\n        a = 1\n        b = 2\n        c = 3\n        d = 4\n"
        "        e = 5\n        return a\n\n    def g(self):\n        return 0\n"
    )
    scene.base = {CODE: long}
    scene.target = {CODE: long.replace("a = 1", "a = 11")}
    scene.add("both", {CODE: long.replace("e = 5", "e = 55")})
    outcome = only(scene)
    assert outcome.kind is OutcomeKind.APPLIED
    assert [(hazard.kind, hazard.path, hazard.name) for hazard in outcome.hazards] == [
        ("both-sides", CODE, "A.f")
    ]
    scene.carries.clear()
    scene.add("twin", {CODE: long.replace("return 0", "return 1")})
    assert only(scene).hazards == ()


def test_a_form_feed_in_a_source_does_not_shift_what_is_compared(scene: Scene) -> None:
    long = "x = 1\f\n" + OLD.replace("return 2", "a = 1\n    b = 2\n    c = 3\n    d = 4\n    return a")
    scene.base = {CODE: long}
    scene.target = {CODE: long.replace("a = 1", "a = 11")}
    scene.add("both", {CODE: long.replace("return a", "return b")})
    assert [hazard.name for hazard in only(scene).hazards] == ["middle"]


@pytest.mark.parametrize(
    ("target", "kinds"),
    [
        (CLASH, [OutcomeKind.CONFLICT, OutcomeKind.REFUSED, OutcomeKind.APPLIED]),
        (NEW, [OutcomeKind.ABSORBED, OutcomeKind.APPLIED, OutcomeKind.APPLIED]),
    ],
)
def test_what_requires_a_conflicted_carry_is_refused_and_what_an_absorbed_one_is_not(scene, target, kinds):
    scene.base = {CODE: OLD, "vllm/b.py": "b = 1\n", "vllm/c.py": "c = 1\n"}
    scene.target = {**scene.base, CODE: target}
    scene.add("lower", {CODE: NEW})
    scene.add("upper", {"vllm/b.py": "b = 2\n"}, requires=["lower"])
    scene.add("free", {"vllm/c.py": "c = 2\n"})
    outcomes = scene.merge().outcomes
    assert [outcome.kind for outcome in outcomes] == kinds
    assert ("requires lower" in outcomes[1].detail) == (kinds[1] is OutcomeKind.REFUSED)


@pytest.mark.parametrize("then", ["100755", "100644"])
@pytest.mark.parametrize("now", ["100755", "100644"])
def test_a_carried_file_has_the_mode_that_upstream_gives_it(scene: Scene, then: str, now: str) -> None:
    scene.base = {CODE: FileEntry(then, OLD.encode())}
    scene.target = {CODE: FileEntry(now, MOVED.encode())}
    scene.add("fix", {CODE: FileEntry(then, NEW.encode()), "new.sh": FileEntry("100755", b"#!/bin/sh\n")})
    scene.base = {CODE: FileEntry(now, OLD.encode())}  # a base that differs in the mode alone
    files = scene.repository.files(scene.merge().tree)
    assert (files[CODE].mode, files["new.sh"].mode) == (now, "100755")


# Pull requests as carries, against a generated upstream with ``refs/pull/N/head`` ---------


@dataclass
class Pulled:
    scene: Scene
    upstream: UpstreamRepository
    base: str
    head: str

    def outcome(self) -> Outcome:
        return self.scene.merge().outcomes[0]


@pytest.fixture
def pulled(scene: Scene, upstream: UpstreamRepository) -> Pulled:
    """Pull request 7, of two commits; upstream's main went on elsewhere in the file."""
    base = upstream.commit("start", {CODE: OLD})
    head = upstream.pull(7, base, [{CODE: NEW}, {CODE: BOTH}])
    scene.base = scene.target = {CODE: OLD.replace("return 2", "return 20")}
    pull = {"repository": upstream.address, "number": 7, "head": head, "base": base}
    scene.carries.append(load_carry(write_carry(scene.root, "pull-7", patches={}, kind="pull", pull=pull)))
    return Pulled(scene, upstream, base, head)


def test_a_moved_head_is_refused_and_hides_nothing(pulled: Pulled) -> None:
    moved = pulled.upstream.pull(7, pulled.base, [{CODE: BOTH}])
    pulled.scene.add("own", {"vllm/b.py": "b = 1\n"})
    pull, own = pulled.scene.merge().outcomes
    assert pull.kind is OutcomeKind.REFUSED
    assert pulled.head[:12] in pull.detail
    assert moved[:12] in pull.detail
    assert own.kind is OutcomeKind.APPLIED


def test_a_moved_head_is_refused_though_its_objects_are_here(pulled: Pulled) -> None:
    assert pulled.outcome().kind is OutcomeKind.APPLIED
    pulled.upstream.pull(7, pulled.base, [{CODE: NEW}])
    assert pulled.outcome().kind is OutcomeKind.REFUSED


@pytest.mark.parametrize("off", [True, False])
def test_a_pull_whose_objects_cannot_be_had_is_refused(pulled: Pulled, *, off: bool) -> None:
    pulled.scene.offline = off
    pulled.upstream.folder.rename(pulled.upstream.folder.with_name("away"))
    outcome = pulled.outcome()
    assert outcome.kind is OutcomeKind.REFUSED
    for said in ("the network is off", "without --offline"):
        assert (said in outcome.detail) is off


def test_an_unreachable_remote_is_a_warning_when_the_objects_are_here(pulled, heard):
    pulled.outcome()
    assert heard.warnings == []
    pulled.upstream.folder.rename(pulled.upstream.folder.with_name("away"))
    assert pulled.outcome().kind is OutcomeKind.APPLIED
    (warning,) = heard.warnings
    assert "pull request 7 was not checked" in warning


def test_an_address_that_names_a_program_is_refused_and_hides_nothing(pulled: Pulled) -> None:
    pull = {"repository": "ext::sh -c true", "number": 7, "head": pulled.head, "base": pulled.base}
    evil = load_carry(write_carry(pulled.scene.root, "evil", patches={}, kind="pull", pull=pull))
    pulled.scene.carries.insert(0, evil)
    first, second = pulled.scene.merge().outcomes
    assert first.kind is OutcomeKind.REFUSED
    assert second.kind is OutcomeKind.APPLIED


def test_a_head_that_moves_between_the_check_and_the_fetch_is_refused(pulled, monkeypatch):
    from sparkwright.merge import prepare as module

    def check_then_move(*arguments: object) -> None:
        refuse_moved_head(*arguments)  # type: ignore[arg-type]
        pulled.upstream.pull(7, pulled.base, [{CODE: NEW}])

    monkeypatch.setattr(module, "refuse_moved_head", check_then_move)
    assert pulled.outcome().kind is OutcomeKind.REFUSED


def test_a_squashed_pull_is_absorbed_by_its_number_and_its_combined_patch_id(pulled: Pulled) -> None:
    pulled.upstream.commit("[Core] Fix both (#7)", {CODE: BOTH})
    target = pulled.upstream.commit("Edit again", {CODE: BOTH.replace("return 10", "return 11")})
    fetch(pulled.scene.repository, pulled.upstream.address, ["refs/heads/main"], depth=None)
    pulled.scene.target = {CODE: BOTH.replace("return 10", "return 11")}
    pulled.scene.history = History(target, pulled.base)
    outcome = pulled.outcome()
    assert outcome.kind is OutcomeKind.ABSORBED
    assert [signal.split()[0] for signal in outcome.signals] == ["subject", "patch-id"]
