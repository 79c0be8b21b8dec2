"""Does upstream have it already: each signal on its own, and healthy twins that keep quiet."""

from collections.abc import Mapping

import pytest
from kit import Scene, UpstreamRepository, make_tree

from sparkwright.git.remotes import fetch
from sparkwright.git.trees import merge_trees
from sparkwright.merge.absorb import CarryChange, History, reverse_applies
from sparkwright.merge.report import Outcome, OutcomeKind

CODE = "vllm/cache.py"
OLD = "def first():\n    return 1\n\n\ndef middle():\n    return 2\n\n\ndef last():\n    return 3\n"
NEW = OLD.replace("return 1", "return 10")
BOTH = NEW.replace("return 3", "return 30")
MOVED = {CODE: OLD.replace("return 3", "return 30")}
EDITED_AGAIN = NEW.replace("return 10", "return 11")
RELATED = [{"pull": 7, "author": "them", "state": "open", "relation": "the same fix", "absorbs": True}]


def settle(
    scene: Scene, upstream: UpstreamRepository, commits: list[tuple[str, Mapping[str, str | None]]]
) -> Outcome:
    """The outcome of the carry OLD to NEW (or as added) on top of *commits*, with their history."""
    since = upstream.commit("start", {CODE: OLD, "other.py": "o = 1\n"})
    for subject, files in commits:
        upstream.commit(subject, files)
    fetch(scene.repository, upstream.address, ["refs/heads/main"], depth=None)
    target = upstream.git("rev-parse", "HEAD")
    if not scene.carries:
        scene.base = {CODE: OLD, "other.py": "o = 1\n"}
        scene.add("fix", {CODE: NEW}, upstream=RELATED)
    scene.history = History(target, since)
    tree = scene.repository.tree_of(target)
    scene.target = {
        path: scene.repository.blob(entry.blob) for path, entry in scene.repository.files(tree).items()
    }
    (outcome,) = scene.merge().outcomes
    return outcome


def test_subject_alone_fires(scene: Scene, upstream: UpstreamRepository) -> None:
    outcome = settle(scene, upstream, [("[Core] Fix first (#7)", {CODE: EDITED_AGAIN})])
    assert outcome.kind is OutcomeKind.ABSORBED
    assert [signal.split()[0] for signal in outcome.signals] == ["subject"]
    assert "(#7)" in outcome.detail
    assert outcome.concerns == (CODE,)
    assert outcome.kind.wants_proof
    assert outcome.tree == make_tree(scene.repository, scene.target)


@pytest.mark.parametrize(
    ("subject", "files"),
    [
        ("Follow up on (#7) for the cache", MOVED),
        ("Fix what #7 broke (#8)", MOVED),
        ("[Core] Fix first (#77)", MOVED),
        ("Something else", MOVED),
        ('Revert "Fix first (#7)"', MOVED),
        ("odd\u2028line\x0cfeed\x85", MOVED),
        ("Prepare (#7)", {"other.py": "o = 2\n"}),
    ],
)
def test_another_subject_or_a_commit_of_other_files_is_no_signal(scene, upstream, subject, files):
    assert settle(scene, upstream, [(subject, files)]).kind is OutcomeKind.APPLIED


def test_a_path_that_looks_like_git_s_magic_is_a_path(scene: Scene, upstream: UpstreamRepository) -> None:
    path = ":(top)odd.py"
    upstream.commit("before", {path: OLD})
    scene.base = {CODE: OLD, "other.py": "o = 1\n", path: OLD}
    scene.add("fix", {path: NEW}, upstream=RELATED)
    outcome = settle(scene, upstream, [("Fix (#7)", {path: EDITED_AGAIN})])
    assert [signal.split()[0] for signal in outcome.signals] == ["subject"]


def test_patch_id_ignores_white_space_and_the_signal_does_not(scene, upstream):
    nested = "def f(a):\n    if a:\n        x = 1\n    return a\n"
    added = nested.replace("        x = 1\n", "        x = 1\n        y = 2\n")
    outside = nested.replace("        x = 1\n", "        x = 1\n    y = 2\n")
    upstream.commit("before", {"vllm/f.py": nested})
    scene.base = {CODE: OLD, "other.py": "o = 1\n", "vllm/f.py": nested}
    scene.add("fix", {"vllm/f.py": added})
    outcome = settle(scene, upstream, [("Looks alike", {"vllm/f.py": outside})])
    assert outcome.kind is OutcomeKind.CONFLICT
    assert outcome.signals == ()


@pytest.mark.parametrize(
    ("subjects", "signals"),
    [
        (["Fix first (#7)", 'Revert "Fix first (#7)" (#9)'], []),
        (["Fix first (#7)", "Back to the old way (#9)"], []),
        (
            ["Fix first (#7)", 'Revert "Fix first (#7)" (#8)', 'Revert "Revert "Fix first (#7)" (#8)" (#9)'],
            ["subject", "patch-id"],
        ),
        (["Fix first (#7)", "Take it out (#8)", "Fix first, second try (#9)"], ["patch-id"]),
    ],
    ids=["reverted", "reverted under another title", "reverted revert", "landed again"],
)
def test_what_was_reverted_is_a_signal_only_once_it_landed_again(scene, upstream, subjects, signals):
    commits = [(subject, {CODE: (NEW, OLD)[at % 2]}) for at, subject in enumerate(subjects)]
    outcome = settle(scene, upstream, commits)
    assert outcome.kind is (OutcomeKind.ABSORBED if signals else OutcomeKind.APPLIED)
    assert sorted(signal.split()[0] for signal in outcome.signals) == sorted(signals)


def test_reverted_by_id_in_the_body_is_no_signal(scene: Scene, upstream: UpstreamRepository) -> None:
    upstream.commit("start", {CODE: OLD, "other.py": "o = 1\n"})
    merged = upstream.commit("Fix first (#7)", {CODE: NEW})
    # the revert adds something of its own, so that its content alone does not show what it is
    upstream.commit(f"Undo (#9)\n\nThis reverts commit {merged}.", {CODE: OLD + "# undone\n"})
    fetch(scene.repository, upstream.address, ["refs/heads/main"], depth=None)
    scene.base, scene.target = {CODE: OLD}, {CODE: OLD + "# undone\n"}
    scene.add("fix", {CODE: NEW}, upstream=RELATED)
    scene.history = History(upstream.git("rev-parse", "HEAD"))
    assert scene.merge().outcomes[0].kind is OutcomeKind.APPLIED


def test_what_was_merged_before_the_base_is_not_looked_at(scene: Scene, upstream: UpstreamRepository) -> None:
    upstream.commit("older", {CODE: "older\n"})
    upstream.commit("Fix first (#7)", {CODE: OLD + "# more\n"})
    outcome = settle(scene, upstream, [("Later", {CODE: OLD.replace("return 3", "return 30")})])
    assert outcome.kind is OutcomeKind.APPLIED


def test_equal_tree_fires_without_history(scene: Scene) -> None:
    scene.base, scene.target = {CODE: OLD}, {CODE: BOTH}
    scene.add("fix", {CODE: NEW})
    (outcome,) = scene.merge().outcomes
    assert outcome.kind is OutcomeKind.ABSORBED
    assert outcome.signals == ("equal-tree",)


# (base, with the change, as upstream has it now), a line a letter: found by search, for where git can take
# a change out but not put it on top, lines must repeat.
CONSTELLATIONS = [
    ("cab}", "caaa}b}", "caaa}bx"),
    ("aaa}", "aacca}", "aaccaa}a}"),
    ("bbbb", "bbacbb", "bacxbacbb"),
    ("abcc", "abccc}b", "ayccc}b"),
]


def lines(letters: str) -> str:
    return "".join(f"{letter};\n" for letter in letters)


@pytest.mark.parametrize(("base", "with_change", "target"), CONSTELLATIONS)
def test_reverse_apply_finds_what_conflicts_forwards(scene, base, with_change, target):
    path = "csrc/cache.cu"
    scene.base, scene.target = {path: lines(base)}, {path: lines(target)}
    scene.add("fix", {path: lines(with_change)})
    trees = [make_tree(scene.repository, {path: lines(text)}) for text in (base, with_change, target)]
    commit = scene.repository.commit(trees[0], message="base")
    assert not merge_trees(scene.repository, base=commit, ours=trees[2], theirs=trees[1]).clean
    (outcome,) = scene.merge().outcomes
    assert outcome.kind is OutcomeKind.ABSORBED
    assert outcome.signals == ("reverse-apply",)


@pytest.mark.parametrize(
    ("change", "target", "found"),
    [
        (NEW, BOTH, True),
        (NEW, OLD, False),
        (NEW, OLD.replace("return 3", "return 30"), False),
        (NEW, "", False),
        (BOTH, NEW, False),
        ("\0new", "\0other", False),  # git keeps the target's form of a binary file where both changed it
    ],
)
def test_reverse_apply_wants_the_whole_change(scene: Scene, change: str, target: str, *, found: bool) -> None:
    base, theirs, now = (
        make_tree(scene.repository, {CODE: text, "b": "b"}) for text in (OLD, change, target)
    )
    made = CarryChange(scene.repository.commit(base, message="base"), base, theirs)
    assert reverse_applies(scene.repository, made, now) is found
