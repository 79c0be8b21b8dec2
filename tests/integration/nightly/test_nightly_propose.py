"""Proposals in a real clone: what they commit, what they leave alone, and whose work they respect."""

import os
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import night_kit
import pytest
from http_index import RunningIndex
from kit import make_tree
from tiny_release import CLAMP, make_tiny
from world import World, make_world

from sparkwright.base.errors import ConfigError, NeedsPersonError
from sparkwright.carries.model import load_carries
from sparkwright.git.clone import open_clone
from sparkwright.git.repository import open_repository
from sparkwright.lock.model import read_lock
from sparkwright.nightly.model import Judgement
from sparkwright.nightly.propose import BASE_TRAILER, Proposal, Proposer

NEXT = make_tiny("1.3.0", changes=(("vllm/clamp.py", f"# Moved down.\n\n{CLAMP}"),))
BRANCH = "sparkwright/1.3.0"
GOOD = (night_kit.carry("clamp"), night_kit.carry("align"))


class Project:
    """A small project under git, the store with both releases' trees, and the proposer over them."""

    def __init__(self, world: World, remote: Path) -> None:
        self.root = world.root
        self.world = world
        (self.root / ".gitignore").write_text("/.sparkwright/\n")
        self.git("init", "--quiet", "--initial-branch=main")
        self.remote = remote
        subprocess.run(["git", "init", "--quiet", "--bare", remote], check=True)
        self.git("remote", "add", "origin", str(remote))
        self.commit("Begin")
        self.repository = open_repository(world.store.git)
        self.trees = {
            release.version: make_tree(self.repository, release.tree) for release in (world.release, NEXT)
        }

    def git(self, *words: str) -> str:
        settings = (
            "-c", "user.name=Person", "-c", "user.email=person@localhost", "-c", "commit.gpgsign=false",
        )  # fmt: skip
        done = subprocess.run(
            ["git", *settings, *words], cwd=self.root, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, subject: str) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", subject)
        return self.git("rev-parse", "HEAD")

    def file(self, path: str, at: str = BRANCH) -> str:
        return self.git("show", f"{at}:{path}")

    @property
    def proposer(self) -> Proposer:
        carries = load_carries(self.root / "carries")
        return Proposer(
            clone=open_clone(self.root),
            store=self.world.store,
            repository=self.repository,
            carries=[carries[name] for name in self.world.listed()],
            find_base=lambda revision: self.trees[revision.release],
            pin="1.2.0",
        )

    def propose(self, *carries, lock=NEXT.lock, proofs=None, **changes) -> Proposal | str:
        at = night_kit.target(tree=self.trees["1.3.0"])
        found = night_kit.found(*(carries or GOOD), at=at, **{"build": night_kit.built(), **changes})
        return self.proposer.propose(found, lock, proofs)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    with RunningIndex() as index:
        world = make_world(tmp_path, index)
        made = Project(world, tmp_path / "remote.git")
        yield made
        made.repository.close()


def subjects(project: Project, branch: str = BRANCH) -> list[str]:
    return project.git("log", "--reverse", "--format=%s", f"main..{branch}").splitlines()


def state(project: Project) -> tuple[str, str, dict[str, int]]:
    """HEAD, the index, and the time of change of each file of the work tree."""
    files = {
        path.relative_to(project.root).as_posix(): path.lstat().st_mtime_ns
        for path in project.root.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }
    return (project.root / ".git/HEAD").read_text(), project.git("ls-files", "--stage", "--debug"), files


def test_a_green_night_gives_a_branch_with_one_commit_a_carry_and_the_pin_last(project):
    before = state(project)
    proposal = project.propose()
    assert isinstance(proposal, Proposal)
    assert state(project) == before
    assert project.git("status", "--porcelain") == ""
    # The change of align is the same on both releases, so its revision stays.
    assert [commit.id for commit in proposal.commits] == project.git(
        "rev-list", "--reverse", f"main..{BRANCH}"
    ).splitlines()
    assert [("clamp" in one, "1.3.0" in one) for one in subjects(project)] == [(True, True), (False, True)]
    assert project.git("diff", "--name-only", "main", f"{BRANCH}~1").split() == [
        "carries/clamp/1.3.0.patch",
        "carries/clamp/carry.toml",
    ]
    assert project.git("diff", "--name-only", f"{BRANCH}~1", BRANCH).split() == ["upstream.lock"]
    assert proposal.pins
    assert proposal.held == ()


COMMIT = "c0ffee" + "1" * 34
NIGHTLY = "1.3.1.dev7+gc0ffee111"


def propose_commit(project, *carries):
    """Propose an untagged commit, pinned as ``sparkwright lock bump`` does: without an sdist."""
    from msgspec.structs import replace

    release = replace(NEXT.lock.release, version=NIGHTLY, commit=COMMIT, tree=project.trees["1.3.0"])
    at = night_kit.target(NIGHTLY, kind="commit", commit=COMMIT, tree=project.trees["1.3.0"])
    found = night_kit.found(*carries, at=at, build=night_kit.built())
    return project.proposer.propose(found, replace(NEXT.lock, release=release, sdist=None))


def test_a_commit_is_pinned_on_a_branch_of_its_own_and_no_revision_is_written(project, tmp_path):
    proposal = propose_commit(project, *GOOD)
    assert isinstance(proposal, Proposal)
    assert (proposal.branch, proposal.pins, proposal.held) == (f"sparkwright/{COMMIT[:12]}", True, ())
    assert project.git("diff", "--name-only", "main", proposal.branch).split() == ["upstream.lock"]
    assert len(subjects(project, proposal.branch)) == 1
    project.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "reviewed"), proposal.head)
    lock = read_lock(tmp_path / "reviewed" / "upstream.lock")
    assert (lock.release.commit, lock.release.version, lock.sdist) == (COMMIT, NIGHTLY, None)


@pytest.mark.parametrize("judgement", [Judgement.CONFLICT, Judgement.NOT_NEEDED])
def test_a_commit_is_held_back_by_a_carry_that_is_not_good_there(project, judgement):
    told = propose_commit(project, night_kit.carry("clamp", judgement), GOOD[1])
    assert isinstance(told, str)
    assert "clamp" in told
    assert project.git("branch", "--list", "sparkwright/*") == ""


def test_the_same_night_gives_the_same_commits_and_moves_nothing(project):
    first = project.propose()
    second = project.propose()
    assert first.moved
    assert not second.moved
    assert first.commits == second.commits
    project.git("branch", "-D", BRANCH)
    assert project.propose().commits == first.commits


@pytest.mark.parametrize("change", ["on-top", "amended", "below"])
def test_a_branch_with_a_persons_commit_is_left_alone(project, change):
    project.propose()
    project.git("checkout", "--quiet", BRANCH)
    if change == "on-top":
        project.commit("Resolve by hand")
    elif change == "amended":
        project.git("commit", "--quiet", "--amend", "--no-edit")
    else:
        ours = project.git("rev-parse", BRANCH)
        project.git("reset", "--quiet", "--hard", "main")
        project.commit("By hand")
        tree, message = (
            project.git("rev-parse", f"{ours}^{{tree}}"),
            project.git("log", "-1", "--format=%B", ours),
        )
        forged = project.proposer.clone.repository.commit(
            tree, parents=[project.git("rev-parse", "HEAD")], message=message
        )
        project.git("reset", "--quiet", "--hard", forged)
    project.git("checkout", "--quiet", "main")
    kept = project.git("rev-parse", BRANCH)
    with pytest.raises(NeedsPersonError, match=BRANCH):
        project.propose()
    assert project.git("rev-parse", BRANCH) == kept


def test_a_branch_that_is_checked_out_is_left_alone(project, tmp_path):
    first = project.propose()
    project.commit("Main moves on")
    project.git("worktree", "add", "--quiet", str(tmp_path / "elsewhere"), BRANCH)
    with pytest.raises(ConfigError, match="elsewhere"):
        project.propose()
    assert project.git("rev-parse", BRANCH) == first.head


def test_a_red_carry_keeps_the_lock_where_it_is_and_is_named(project):
    red = night_kit.carry("align", Judgement.WRONG)
    proposal = project.propose(GOOD[0], red)
    assert not proposal.pins
    assert [(one.carry, one.judgement, one.since, one.keeps) for one in proposal.held] == [
        ("align", Judgement.WRONG, "2026-11-20", "1.2.0")
    ]
    assert len(proposal.commits) == 2
    assert project.file("upstream.lock") == (project.root / "upstream.lock").read_text().strip()
    assert project.file("patchsets/spark.toml") == project.file("patchsets/spark.toml", "main")
    assert project.git("diff", "--name-only", f"{BRANCH}~1", BRANCH) == ""
    message = project.git("log", "-1", "--format=%B", BRANCH)
    for told in ("align", "1.3.0", "1.2.0", "2026-11-20", "wrong-though-clean", "8a8a8a8a8a8a"):
        assert told in message
    # The healthy twin: the same night with that carry good holds nothing back.
    assert project.propose().held == ()


def test_a_carry_that_is_not_needed_is_declared_so_and_stays_for_the_present_pin(project):
    proposal = project.propose(night_kit.carry("clamp", Judgement.NOT_NEEDED), GOOD[1])
    assert proposal.pins
    declared = tomllib.loads(project.file("carries/clamp/carry.toml"))["superseded"]
    assert [entry["releases"] for entry in declared] == [">=1.3.0"]
    project.git("checkout", "--quiet", BRANCH)
    carry = load_carries(project.root / "carries")["clamp"]
    assert carry.superseded_in("1.3.0") is not None
    assert carry.superseded_in("1.2.0") is None
    assert "clamp" in project.world.listed()


def test_a_needless_carry_that_another_requires_is_not_taken_from_it(project):
    toml = project.root / "carries" / "clamp" / "carry.toml"
    toml.write_text(toml.read_text().replace("requires = []", 'requires = ["align"]'))
    project.world.list_carries(["align", "clamp"])
    project.commit("Require")
    needless = night_kit.carry("align", Judgement.NOT_NEEDED)
    proposal = project.propose(GOOD[0], needless)
    assert [(one.carry, one.judgement) for one in proposal.held] == [("align", Judgement.NOT_NEEDED)]
    assert "superseded" not in project.file("carries/align/carry.toml")
    # The healthy twin: with the carry that requires it declared, it goes.
    declared = night_kit.carry("clamp", Judgement.DECLARED)
    assert project.propose(declared, needless).held == ()
    assert "superseded" in project.file("carries/align/carry.toml")


def test_nothing_to_propose(project):
    red = tuple(night_kit.carry(one.name, Judgement.CONFLICT) for one in GOOD)
    assert "clamp" in project.propose(*red)
    failed = night_kit.built(status="failed", reason="no wheel")
    assert isinstance(project.propose(build=failed), str)
    assert isinstance(project.propose(lock=None), str)
    assert project.git("branch", "--list", "sparkwright/*") == ""


def test_files_that_are_not_committed_are_no_base_for_a_proposal(project):
    (project.root / "README.md").write_text("Edited, and none of the project's inputs.\n")
    toml = project.root / "carries" / "clamp" / "carry.toml"
    text = toml.read_text()
    toml.write_text(f"{text}# Edited.\n")
    with pytest.raises(ConfigError) as caught:
        project.propose()
    assert "carries/clamp/carry.toml" in caught.value.because
    toml.write_text(text)
    assert isinstance(project.propose(), Proposal)


def test_a_folder_that_is_no_clone(tmp_path):
    with pytest.raises(ConfigError, match=str(tmp_path)):
        open_clone(tmp_path)


def test_upstreams_words_refer_to_nothing_here(project):
    red = night_kit.hostile().targets[0].carries[0]
    carry = night_kit.carry("clamp", finding=night_kit.EVIL, hazards=red.hazards, culprit=red.culprit)
    proposal = project.propose(carry, GOOD[1])
    message = project.git("log", "-1", "--format=%B", proposal.commits[0].id)
    assert "script" in message
    for harmful in ("#7", "@everyone", "\x1b", "\u202e", "https://", "\n# Head"):
        assert harmful not in message
    trailers = project.git("log", "-1", "--format=%(trailers)", proposal.commits[0].id).splitlines()
    assert trailers == [f"{BASE_TRAILER}: {proposal.base}"]


# Pushing ------------------------------------------------------------------------------


def remote_tip(project: Project) -> str:
    return project.git("ls-remote", "origin", f"refs/heads/{BRANCH}").partition("\t")[0]


def test_a_push_replaces_our_own_branch_on_the_remote(project):
    first = project.propose()
    assert remote_tip(project) == ""
    project.proposer.clone.push(BRANCH, "origin", key=BASE_TRAILER)
    assert remote_tip(project) == first.head
    project.commit("Main moves on")
    second = project.propose()
    project.proposer.clone.push(BRANCH, "origin", key=BASE_TRAILER)
    project.proposer.clone.push(BRANCH, "origin", key=BASE_TRAILER)
    assert remote_tip(project) == second.head != first.head


def test_a_push_leaves_a_persons_work_on_the_remote(project, tmp_path):
    project.git("push", "--quiet", "origin", "main")
    project.propose()
    project.proposer.clone.push(BRANCH, "origin", key=BASE_TRAILER)
    other = tmp_path / "other"
    project.git("clone", "--quiet", "--branch", BRANCH, str(project.remote), str(other))
    project.git("-C", str(other), "commit", "--quiet", "--allow-empty", "-m", "Resolve by hand")
    project.git("-C", str(other), "push", "--quiet", "origin", f"HEAD:refs/heads/{BRANCH}")
    persons = remote_tip(project)
    project.commit("Main moves on")
    project.propose()
    with pytest.raises(NeedsPersonError, match=BRANCH):
        project.proposer.clone.push(BRANCH, "origin", key=BASE_TRAILER)
    assert remote_tip(project) == persons
