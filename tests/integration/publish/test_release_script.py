"""``ci/release-publish.sh`` in a checkout of its own, whose origin has the branch of the pages."""

import base64
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import wheelkit
from channel_kit import ChannelWorld, mirror_of, small_wheel
from forge import Forge
from kit import write_program

from sparkwright.publish.evidence import attach
from sparkwright.publish.keys import load_publisher

pytest_plugins = "release_fixtures"

V1, V2 = "1.0+spark.1", "1.1+spark.1"
ROOT = Path(__file__).parents[3]
PROGRAM = f"""\
[ "$1" != audit ] || exec cp -r audits/. dist/evidence
exec {Path(sys.executable).with_name("sparkwright")} "$@"
"""
"""Finds what an audit would, in place of merging again."""
POLICIES = "format = 1\n[channel.candidate]\nrequires = ['audit']\nexpires-days = 30\n"


class Publisher:
    """A checkout with what a build left in dist/, and the key of the channel."""

    def __init__(self, world: ChannelWorld, hub: Forge, name: str) -> None:
        self.hub, self.folder, self.home = hub, world.folder / name, world.home_of("candidate")
        shutil.copytree(ROOT / "ci", self.folder / "ci")
        shutil.copytree(ROOT / "carries", self.folder / "carries")
        shutil.copytree(ROOT / "patchsets", self.folder / "patchsets")
        shutil.copy(ROOT / "upstream.lock", self.folder)
        (self.folder / "patchsets/channels.toml").write_text(POLICIES)
        (self.folder / "Makefile").write_text(".venv/.ready:\n")
        write_program(self.folder / ".venv/bin/sparkwright", PROGRAM)
        (self.folder / ".gitignore").write_text("dist\n")
        origin = world.folder / "origin.git"
        self.git("init", "--quiet")
        if not origin.exists():
            self.git("init", "--quiet", "--bare", origin)
        self.git("remote", "add", "origin", origin)
        self.git("add", ".gitignore")
        self.git("commit", "--quiet", "--message", "A checkout")
        shutil.copytree(world.dist, self.folder / "dist")
        shutil.copytree(world.dist / "evidence", self.folder / "audits")

    def git(self, *words: str | Path, check: bool = True) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost", "-C", self.folder, *words]
        return subprocess.run(command, check=check, capture_output=True, text=True).stdout.strip()

    def build(self, version: str) -> None:
        """Put an audited wheel into dist/."""
        wheel = small_wheel(self.folder / "dist", version)
        found = {"checks": {}, "unchecked": []}
        path = attach(wheel.parent, "audit", wheelkit.sha256(wheel), found)
        shutil.copytree(path.parent, self.folder / "audits" / path.parent.name)

    def key(self, channel: str) -> str:
        """The secret, as that of *channel*."""
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w:gz") as archive:
            archive.add(self.home, channel)
        return base64.b64encode(stream.getvalue()).decode()

    @property
    def branch(self) -> str:
        return self.git("ls-remote", "origin", "refs/heads/published")

    def run(self, tag: str, *more: str, of: str = "candidate") -> subprocess.CompletedProcess[str]:
        key = self.key(of) if of else ""
        environment = {**os.environ, **self.hub.environment, "CHANNEL_KEY": key}
        done = subprocess.run(
            [self.folder / "ci/release-publish.sh", "candidate", tag, *more], env=environment, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert not key or key not in done.stdout + done.stderr
        return done

    def deploy(self, world: ChannelWorld) -> None:
        """Serve the branch as the forge's pages."""
        self.git("fetch", "--quiet", "origin", "refs/heads/published")
        shutil.rmtree(world.published)
        world.published.mkdir()
        tree = subprocess.run(
            ["git", "-C", self.folder, "archive", "FETCH_HEAD"], check=True, capture_output=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
            archive.extractall(world.published, filter="data")


@pytest.fixture
def publisher(world: ChannelWorld, hub: Forge) -> Publisher:
    world.wheel(V1)
    load_publisher(world.home_of("candidate"))
    return Publisher(world, hub, "checkout")


def test_the_script_publishes_what_readers_verify_and_again_changes_nothing(
    world: ChannelWorld, hub: Forge, publisher: Publisher
) -> None:
    # Neither is the branch of the pages.
    publisher.git("push", "--quiet", "origin", "HEAD:refs/heads/try/published", "HEAD:refs/tags/published")
    dry = publisher.run("v1", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "channels/candidate/timestamp.json" in dry.stdout
    assert (hub.asked, publisher.branch) == ([], "")
    done = publisher.run("v1")
    assert done.returncode == 0, done.stderr
    publisher.deploy(world)
    assert world.verify("candidate", mirror=mirror_of(hub.pages), wheels="newest").wheels
    branch, assets = publisher.branch, hub.published()
    hub.asked.clear()
    again = publisher.run("v2")
    assert again.returncode == 0, again.stderr
    assert (publisher.branch, hub.published(), hub.asked) == (branch, assets, [])


def test_a_wheel_that_fails_its_audit_is_not_sent_whatever_evidence_came_with_it(
    hub: Forge, publisher: Publisher
) -> None:
    shutil.rmtree(publisher.folder / "audits")
    (publisher.folder / "audits").mkdir()
    assert list((publisher.folder / "dist/evidence").glob("*/audit.json"))
    done = publisher.run("v1")
    assert done.returncode == 50
    assert "audit" in done.stderr
    assert (hub.asked, publisher.branch) == ([], "")


def test_bytes_that_changed_after_their_audit_are_not_sent(
    world: ChannelWorld, hub: Forge, publisher: Publisher
) -> None:
    (path,) = (publisher.folder / "dist").glob("*.whl")
    path.unlink()
    small_wheel(path.parent, V1, record={"carries.json": {}})
    done = publisher.run("v1")
    assert done.returncode == 50
    assert (hub.asked, publisher.branch) == ([], "")


@pytest.mark.parametrize("of", ["", "stable"])
def test_without_the_channels_key_nothing_is_sent(hub: Forge, publisher: Publisher, of: str) -> None:
    done = publisher.run("v1", of=of)
    assert done.returncode == 10
    assert "CHANNEL_KEY" in done.stderr
    assert (hub.asked, publisher.branch) == ([], "")


def test_an_interrupted_release_leaves_the_old_one_whole_and_is_finished_by_the_same_command(
    world: ChannelWorld, hub: Forge, publisher: Publisher
) -> None:
    assert publisher.run("v1").returncode == 0
    branch = publisher.branch
    publisher.build(V2)
    hub.faults = ["cut"]
    assert publisher.run("v2").returncode == 20
    assert publisher.branch == branch
    publisher.deploy(world)
    assert len(world.verify("candidate", mirror=mirror_of(hub.pages)).state.files) == 1
    assert publisher.run("v2").returncode == 0
    publisher.deploy(world)
    assert len(world.verify("candidate", mirror=mirror_of(hub.pages)).state.files) == 2


def test_of_two_releases_at_once_one_is_told_and_neither_is_lost(
    world: ChannelWorld, hub: Forge, publisher: Publisher
) -> None:
    assert publisher.run("v1").returncode == 0
    world.wheel(V2)
    slow, fast = Publisher(world, hub, "slow"), Publisher(world, hub, "fast")
    won: list[int] = []

    def another(method: str, path: str) -> None:
        """Let the other one publish while this one's release is being finished."""
        if method == "PATCH" and not won:
            won.append(0)
            won[0] = fast.run("v2-fast").returncode

    slow.build("1.2+spark.1")
    hub.before_answer = another
    lost = slow.run("v2-slow")
    assert (won, lost.returncode) == ([0], 50), lost.stderr
    assert "another publisher was faster" in lost.stderr
    slow.deploy(world)
    assert len(world.verify("candidate", mirror=mirror_of(hub.pages)).state.files) == 2
