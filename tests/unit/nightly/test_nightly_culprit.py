"""The commit, or release, that changed a carry's outcome."""

import random
from dataclasses import dataclass

import pytest
from kit import UpstreamRepository, make_tree

from sparkwright.git.remotes import fetch
from sparkwright.git.repository import Repository
from sparkwright.git.trees import merge_trees
from sparkwright.merge.report import OutcomeKind
from sparkwright.nightly.judging import describe_commit, fork, step_to
from sparkwright.nightly.model import UpstreamCommit
from sparkwright.search.changes import UpstreamStep, commit_steps
from sparkwright.search.specs import UpstreamPoint

LINES = [f"line {number}\n" for number in range(30)]
FILE = "vllm/deep/er/code.py"
OTHER = "vllm/other.py"
APPLIED, CONFLICT, ABSORBED = OutcomeKind.APPLIED, OutcomeKind.CONFLICT, OutcomeKind.ABSORBED


def text(**changed: str) -> str:
    """The file with lines replaced, by ``l3="…"``."""
    lines = list(LINES)
    for name, line in changed.items():
        lines[int(name[1:])] = f"{line}\n"
    return "".join(lines)


@dataclass
class History:
    """Upstream's commits, all in the store, and a carry that changes line 10 of FILE."""

    repository: Repository
    upstream: UpstreamRepository
    merges: int = 0

    def __post_init__(self) -> None:
        self.old = self.upstream.commit("First", {FILE: text(), OTHER: "other\n"})

    def commit(self, subject: str, **changed: str) -> str:
        return self.upstream.commit(subject, {FILE: text(**changed)})

    def noise(self, count: int) -> None:
        for number in range(count):
            self.upstream.commit(f"Noise {number}", {OTHER: f"{number}\n"})

    def outcome(self, tree: str) -> OutcomeKind:
        self.merges += 1
        base = make_tree(self.repository, {FILE: text(), OTHER: "other\n"})
        theirs = make_tree(self.repository, {FILE: text(l10="carried"), OTHER: "other\n"})
        base_commit = self.repository.commit(base, message="base")
        merged = merge_trees(self.repository, base=base_commit, ours=tree, theirs=theirs)
        return CONFLICT if not merged.clean else ABSORBED if merged.tree == tree else APPLIED

    def find(self, after: OutcomeKind = CONFLICT) -> UpstreamCommit | None:
        new = self.upstream.git("rev-parse", "HEAD")
        fetch(self.repository, self.upstream.address, [new, self.old], depth=None)
        start = fork(self.repository, self.old, new)
        assert start is not None
        steps = commit_steps(self.repository, start, new, "1.2.0")
        index = step_to(self.repository.tree_of(start), steps, after, self.outcome, [FILE])
        if index is None:
            return None
        commit = steps[index].point.commit
        before = self.outcome(self.repository.tree_of(f"{commit}^"))
        return describe_commit(self.repository, commit, [FILE], before, after)


@pytest.fixture
def history(repository: Repository, upstream: UpstreamRepository) -> History:
    return History(repository, upstream)


class TestByCommit:
    def test_the_commit_is_named_with_all_that_is_known_of_it(self, history: History) -> None:
        history.noise(3)
        history.commit("Far away (#7)", l25="x")
        planted = history.commit("Rewrite line 10 (#812)", l25="x", l10="upstream's")
        history.commit("Farther (#9)", l25="x", l10="upstream's", l1="y")
        history.noise(2)
        found = history.find()
        assert (found.commit, found.subject, found.author) == (planted, "Rewrite line 10 (#812)", "Upstream")
        assert (found.before, found.after, found.pull) == (APPLIED, CONFLICT, 812)
        assert found.files == (FILE,)
        assert history.merges <= 6  # both ends, the suspected commits, and the one before
        assert found.date.startswith("2001-09-09")

    def test_nothing_is_named_where_nothing_changed(self, history: History) -> None:
        history.commit("Far away", l25="x")
        history.noise(2)
        assert history.find() is None

    def test_the_absorbing_commit_is_told_from_a_conflicting_one(self, history: History) -> None:
        planted = history.commit("The same change", l10="carried")
        history.noise(1)
        found = history.find(ABSORBED)
        assert (found.commit, found.after) == (planted, ABSORBED)

    def test_a_file_that_moved_is_followed(self, history: History) -> None:
        history.noise(2)
        history.upstream.commit("Move", {FILE: None, "vllm/moved.py": text()})
        planted = history.upstream.commit("Rewrite", {"vllm/moved.py": text(l10="theirs")})
        history.noise(2)
        found = history.find()
        assert found.commit == planted

    def test_a_release_branch_beside_the_line_is_no_obstacle(self, history: History) -> None:
        trunk = history.commit("Trunk", l25="x")
        history.upstream.git("checkout", "--quiet", "-b", "release")
        history.old = history.upstream.commit("Version", {"VERSION": "1"})
        history.upstream.git("checkout", "--quiet", "main")
        planted = history.commit("Rewrite", l25="x", l10="theirs")
        found = history.find()
        assert found.commit == planted
        steps = commit_steps(history.repository, trunk, planted, "1.2.0")
        assert [step.point.commit for step in steps] == [planted]

    def test_what_the_older_targets_own_branch_mended_is_on_no_commit(self, history: History) -> None:
        history.commit("Break", l10="theirs")
        history.upstream.git("checkout", "--quiet", "-b", "release")
        history.old = history.commit("Take it out again", l10="line 10")
        history.upstream.git("checkout", "--quiet", "main")
        history.noise(1)
        assert history.find() is None


class TestSearch:
    @pytest.mark.parametrize("seed", range(20))
    def test_the_step_found_differs_from_the_one_before(self, seed: int) -> None:
        chance = random.Random(seed)
        kinds = [
            APPLIED,
            *(chance.choice([APPLIED, CONFLICT, ABSORBED]) for _ in range(chance.randrange(60))),
        ]
        kinds.append(CONFLICT)
        steps = [
            UpstreamStep(UpstreamPoint("1.2.0", f"{number:040x}"[::-1], str(number)), "", (FILE,))
            for number in range(1, len(kinds))
        ]
        asked: list[str] = []

        def outcome(tree: str) -> OutcomeKind:
            asked.append(tree)
            return kinds[int(tree)]

        index = step_to("0", steps, CONFLICT, outcome, [FILE])
        assert index is not None
        assert kinds[index + 1] is CONFLICT
        assert kinds[index] is not CONFLICT
        assert len(asked) == len(set(asked)) <= 8

    def test_the_release_is_named(self) -> None:
        trees = {"0": APPLIED, "1": APPLIED, "2": CONFLICT, "3": CONFLICT}
        steps = [
            UpstreamStep(UpstreamPoint(f"1.{tree}.0", tree=tree), f"release 1.{tree}.0") for tree in "123"
        ]
        assert step_to("0", steps, CONFLICT, trees.__getitem__, [FILE]) == 1
        assert step_to("0", steps[:1], CONFLICT, trees.__getitem__, [FILE]) is None
        assert step_to("0", [], CONFLICT, trees.__getitem__, [FILE]) is None
