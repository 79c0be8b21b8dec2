"""The commit, or release, that changed a carry's outcome."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from kit import UpstreamRepository, make_tree

from sparkwright.git import Repository, fetch
from sparkwright.merge import OutcomeKind
from sparkwright.merge.absorb import CarryChange
from sparkwright.merge.trial import Trial
from sparkwright.nightly.culprit import (
    HistoryPoint,
    OutcomeChange,
    between,
    culprit_by_commit,
    culprit_by_release,
    first_with,
)

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

    def __post_init__(self) -> None:
        self.old = self.upstream.commit("First", {FILE: text(), OTHER: "other\n"})

    def commit(self, subject: str, **changed: str) -> str:
        return self.upstream.commit(subject, {FILE: text(**changed)})

    def noise(self, count: int) -> None:
        for number in range(count):
            self.upstream.commit(f"Noise {number}", {OTHER: f"{number}\n"})

    @property
    def carry(self) -> CarryChange:
        base = make_tree(self.repository, {FILE: text(), OTHER: "other\n"})
        theirs = make_tree(self.repository, {FILE: text(l10="carried"), OTHER: "other\n"})
        return CarryChange(self.repository.commit(base, message="base"), base, theirs)

    def find(self, before: OutcomeKind = APPLIED, after: OutcomeKind = CONFLICT):
        new = self.upstream.git("rev-parse", "HEAD")
        fetch(self.repository, self.upstream.address, [new, self.old], depth=None)
        trial = Trial(self.repository, [self.carry], absorbing=ABSORBED in {before, after})
        return culprit_by_commit(self.repository, trial, OutcomeChange(before, after), self.old, new)


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
        assert found is not None
        assert (found.commit, found.subject, found.author) == (planted, "Rewrite line 10 (#812)", "Upstream")
        assert (found.before, found.after, found.pull) == (APPLIED, CONFLICT, 812)
        assert found.files == (FILE,)
        assert found.candidates == 3
        assert found.date.startswith("2001-09-09")

    def test_nothing_is_named_where_nothing_changed(self, history: History) -> None:
        history.commit("Far away", l25="x")
        history.noise(2)
        assert history.find() is None

    def test_what_conflicts_back_and_forth_gets_a_commit_that_made_it_conflict(
        self, history: History
    ) -> None:
        first = history.commit("Break", l10="theirs")
        history.commit("Mend", l10="line 10")
        second = history.commit("Break again", l10="theirs again")
        found = history.find()
        assert found is not None
        assert found.commit in {first, second}
        assert found.before is APPLIED

    def test_the_absorbing_commit_is_told_from_a_conflicting_one(self, history: History) -> None:
        planted = history.commit("The same change", l10="carried")
        history.noise(1)
        found = history.find(APPLIED, ABSORBED)
        assert found is not None
        assert (found.commit, found.after) == (planted, ABSORBED)

    def test_a_file_that_moved_is_followed(self, history: History) -> None:
        history.noise(2)
        history.upstream.commit("Move", {FILE: None, "vllm/moved.py": text()})
        planted = history.upstream.commit("Rewrite", {"vllm/moved.py": text(l10="theirs")})
        history.noise(2)
        found = history.find()
        assert found is not None
        assert found.commit == planted

    def test_a_release_branch_beside_the_line_is_no_obstacle(self, history: History) -> None:
        trunk = history.commit("Trunk", l25="x")
        history.upstream.git("checkout", "--quiet", "-b", "release")
        history.old = history.upstream.commit("Version", {"VERSION": "1"})
        history.upstream.git("checkout", "--quiet", "main")
        planted = history.commit("Rewrite", l25="x", l10="theirs")
        found = history.find()
        assert found is not None
        assert found.commit == planted
        assert [point.commit for point in between(history.repository, trunk, planted)] == [planted]

    def test_what_the_older_targets_own_branch_mended_is_on_no_commit(self, history: History) -> None:
        history.commit("Break", l10="theirs")
        history.upstream.git("checkout", "--quiet", "-b", "release")
        history.old = history.commit("Take it out again", l10="line 10")
        history.upstream.git("checkout", "--quiet", "main")
        history.noise(1)
        assert history.find() is None


class TestFlatTrees:
    @pytest.mark.parametrize("seed", range(12))
    def test_they_give_what_whole_trees_give(self, repository: Repository, seed: int) -> None:
        chance = random.Random(seed)
        files = {f"vllm/{name}.py": text() for name in "abcd"}
        carried = {path: files[path] for path in chance.sample(sorted(files), 2)}
        for path in carried:
            carried[path] = text(**{f"l{chance.randrange(30)}": "carried"})
        ours = dict(files)
        for path in chance.sample(sorted(files), 3):
            ours[path] = text(**{f"l{chance.randrange(30)}": chance.choice(["carried", "theirs"])})
        if chance.random() < 0.3:
            ours["vllm/moved.py"] = ours.pop(chance.choice(sorted(ours)))
        base = make_tree(repository, files)
        theirs = make_tree(repository, {**files, **carried})
        change = CarryChange(repository.commit(base, message="base"), base, theirs)
        tree = make_tree(repository, ours)
        trial = Trial(repository, [change], absorbing=True)
        (whole,) = trial._merged(tree, [change])
        (flat,) = trial.outcomes(tree)
        assert (flat.kind, sorted(flat.conflicts)) == (whole.kind, sorted(whole.conflicts))
        assert trial.merges


class TestSearch:
    @pytest.mark.parametrize("seed", range(20))
    def test_the_point_found_differs_from_the_one_before(self, seed: int) -> None:
        chance = random.Random(seed)
        kinds = [chance.choice([APPLIED, CONFLICT, ABSORBED]) for _ in range(chance.randrange(1, 60))]
        kinds.append(CONFLICT)
        points = [HistoryPoint(tree=str(number)) for number in range(len(kinds))]
        asked: list[str] = []

        def kind(tree: str) -> OutcomeKind:
            asked.append(tree)
            return kinds[int(tree)]

        index = first_with(points, kind, CONFLICT)
        assert kinds[index] is CONFLICT
        assert index == 0 or kinds[index - 1] is not CONFLICT
        assert len(asked) <= 6


class TestByRelease:
    def test_the_release_is_named(self, repository: Repository, upstream: UpstreamRepository) -> None:
        history = History(repository, upstream)
        forms = {"1.1": text(l1="a"), "1.2": text(l1="a", l10="theirs"), "1.3": text(l10="theirs")}
        points = [
            HistoryPoint(tree=make_tree(repository, {FILE: form}), release=name, subject=f"vllm {name}")
            for name, form in forms.items()
        ]
        trial = Trial(repository, [history.carry])
        old = make_tree(repository, {FILE: text()})
        found = culprit_by_release(repository, trial, OutcomeChange(APPLIED, CONFLICT), old, points)
        assert found is not None
        assert (found.release, found.commit, found.files) == ("1.2", "", (FILE,))
        assert (
            culprit_by_release(repository, trial, OutcomeChange(APPLIED, CONFLICT), old, points[:1]) is None
        )
