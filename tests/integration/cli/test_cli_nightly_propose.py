"""``sparkwright nightly`` writes its report, and with ``--propose`` a branch, in a small world."""

import json
import os
import subprocess

import pytest
from bisect_kit import commit, git
from tiny_release import ALIGN, CLAMP, make_tiny
from world import World

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import ConfigError, NeedsPersonError

DOWN = ("vllm/clamp.py", f"# Moved down.\n\n{CLAMP}")
# Merges without a conflict, and what the carry changes is not what is called any more.
AWAY = ("vllm/align.py", f"{ALIGN}\n\ndef _align(count):\n    return count\n\n\nalign = _align\n")
MOVED = make_tiny("1.3.0", changes=(DOWN,))
WRONG = make_tiny("1.3.0", changes=(AWAY,))
NIGHT = ("nightly", "--history", "none", "--no-build")
BRANCH = "sparkwright/1.3.0"


@pytest.fixture
def project(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    world.environment["GIT_CONFIG_GLOBAL"] = os.devnull
    commit(world, "Begin")
    subprocess.run(["git", "init", "--quiet", "--bare", world.folder / "remote.git"], check=True)
    git(world, "remote", "add", "origin", str(world.folder / "remote.git"))
    return world


def test_a_green_night_is_reported_and_proposed(project):
    project.offer(MOVED)
    ran = project.good(*NIGHT, "--onto", "1.3.0", "--propose", "--json")
    assert ran.json["verdict"] == "green"
    (proposal,) = ran.json["proposals"]
    assert (proposal["branch"], proposal["pins"], proposal["held"]) == (BRANCH, True, [])
    assert git(project, "rev-parse", BRANCH) == proposal["head"]
    changed = git(project, "diff", "--name-only", "main", BRANCH).split()
    assert {"carries/clamp/1.3.0.patch", "carries/clamp/carry.toml", "upstream.lock"} <= set(changed)
    # The proofs of the night go in, so that nothing is run again on the branch.
    assert any(path.startswith("carries/clamp/proofs/") for path in changed)
    assert git(project, "status", "--porcelain") == ""
    assert git(project, "symbolic-ref", "HEAD") == "refs/heads/main"
    for file in ran.json["report"]:
        data = (project.root / file["path"]).read_bytes()
        assert (len(data), sha256_bytes(data)) == (file["size"], file["sha256"])
    folder = project.root / ".sparkwright" / "nightly"
    assert BRANCH in (folder / "report.md").read_text()
    assert json.loads((folder / "report.json").read_text())["proposals"] == ran.json["proposals"]


def test_the_branch_builds_and_its_proofs_count(project):
    project.offer(MOVED)
    project.good(*NIGHT, "--onto", "1.3.0", "--propose")
    git(project, "checkout", "--quiet", BRANCH)
    project.new_store("another")
    project.good("wheel")
    (wheel,) = project.wheels
    assert wheel.name.startswith("vllm-1.3.0+")
    probes = [event for event in project.events() if event["kind"] == "probe.judged"]
    assert probes == []


def test_a_planted_red_carry_is_held_back(project):
    project.offer(WRONG)
    ran = project.call(*NIGHT, "--onto", "1.3.0", "--propose", "--json")
    assert ran.status == NeedsPersonError.exit_code
    (found,) = ran.json["targets"]
    assert {one["name"]: one["judgement"] for one in found["carries"]}["align"] == "wrong-though-clean"
    (why,) = ran.json["proposals"]
    assert "align" in why  # clamp has no new revision: nothing but a carry that is held back
    assert git(project, "branch", "--list", "sparkwright/*") == ""
    page = (project.root / ".sparkwright" / "nightly" / "report.md").read_text()
    assert "wrong though clean" in page


def test_a_night_that_builds_leaves_its_wheel_where_the_workflow_looks_and_proposes_its_lock(project):
    project.offer(MOVED)
    ran = project.good(*NIGHT[:3], "--onto", "1.3.0", "--propose", "--json")
    (found,) = ran.json["targets"]
    assert found["build"]["status"] == "built"
    (wheel,) = (project.root / ".sparkwright" / "nightly" / "wheels").glob("*.whl")
    assert found["build"]["sha256"] == sha256_bytes(wheel.read_bytes())
    lock = (project.root / found["build"]["lock"]).read_text()
    assert git(project, "show", f"{BRANCH}:upstream.lock") == lock.strip()
    assert found["build"]["sha256"] in git(project, "log", "-1", "--format=%B", BRANCH)


def test_a_push_is_asked_for(project):
    project.offer(MOVED)
    project.good(*NIGHT, "--onto", "1.3.0", "--propose")
    assert git(project, "ls-remote", "origin") == ""
    ran = project.good("nightly", "--propose-last", "--push", "--json")
    (proposal,) = ran.json["proposals"]
    assert proposal["pushed"]
    assert git(project, "ls-remote", "origin", f"refs/heads/{BRANCH}").split()[0] == proposal["head"]


def test_nothing_to_propose_before_the_first_night(project):
    assert project.call("nightly", "--propose-last").status == ConfigError.exit_code


def test_a_project_that_is_no_clone_has_its_report_all_the_same(world):
    world.offer(MOVED)
    ran = world.call(*NIGHT, "--onto", "1.3.0", "--propose")
    assert ran.status == ConfigError.exit_code
    assert (world.root / ".sparkwright" / "nightly" / "report.md").is_file()
