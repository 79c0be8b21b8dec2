"""Carries that are upstream's pull requests, against a generated upstream over ``file://``."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import tomlkit
from kit import UpstreamRepository
from tiny_release import ALIGN, CLAMPED, make_tiny
from world import CLAMP_PROBE, World

pytestmark = pytest.mark.usefixtures("proved")

BETTER = CLAMPED.replace("return 2", "return 22")


@dataclass
class Upstream:
    """Upstream's repository, and the commit that is pinned."""

    repository: UpstreamRepository
    pinned: str

    @property
    def address(self) -> str:
        return self.repository.address


@pytest.fixture
def upstream(world: World) -> Upstream:
    """Its pull request 7 has two commits and left the main branch at the pinned release."""
    repository = UpstreamRepository(world.folder / "upstream.git")
    repository.commit("First (#1)", {"README.md": "vLLM\n"})
    tree = {path: data.decode() for path, data in world.release.tree.items()}
    pinned = repository.commit("Release (#2)", tree)
    repository.commit("Go on (#3)", {"README.md": "vLLM, later\n"})
    repository.pull(7, pinned, [{"vllm/clamp.py": CLAMPED}, {"vllm/clamp.py": BETTER}])
    world.pin(make_tiny(git=repository.address, commit=pinned))
    return Upstream(repository, pinned)


def carry_toml(world: World, name: str = "pull-7") -> tomlkit.TOMLDocument:
    return tomlkit.parse((world.root / "carries" / name / "carry.toml").read_text())


def add_probe(world: World, name: str = "pull-7") -> Path:
    """Finish a new carry by hand: write its probe, list it in the patchset, leave a comment."""
    folder = world.root / "carries" / name
    assert "import vllm.clamp" in (folder / "probe.py").read_text()
    (folder / "probe.py").write_text(CLAMP_PROBE)
    toml = folder / "carry.toml"
    toml.write_text(toml.read_text().replace("[probe]", "# Takes no time.\n[probe]"))
    world.list_carries([name])
    return folder


class TestNew:
    def test_of_its_address(self, world: World, upstream: Upstream) -> None:
        world.good("carry", "new", "--pull", f"{upstream.address}/pull/7")
        toml = carry_toml(world)
        pull = toml["pull"]
        assert pull["repository"] == upstream.address
        assert pull["number"] == 7
        assert pull["head"] == upstream.repository.git("rev-parse", "refs/pull/7/head")
        assert pull["base"] == upstream.pinned
        assert toml["title"] == "Pull request 7", "of two commits neither speaks for the whole"
        assert toml["why"] == "Its commits:\n* work 0\n* work 1\n"
        assert toml["upstream"][0]["author"] == "Upstream"
        assert toml["evidence"]["level"] == "claimed"

    def test_the_branch_that_it_is_against(self, world: World, upstream: Upstream) -> None:
        repository = upstream.repository
        repository.git("branch", "releases/v1", "refs/pull/7/head")
        repository.pull(8, "releases/v1", [{"vllm/align.py": ALIGN + "# more\n"}])
        ran = world.good("carry", "new", "--pull", "8", "--base", "releases/v1")
        assert "commits  1 since it left releases/v1" in ran.out
        toml = carry_toml(world, "pull-8")
        assert (toml["title"], toml["pull"]["branch"]) == ("work 0", "releases/v1")
        repository.pull(8, "releases/v1", [{"vllm/align.py": ALIGN + "# again\n"}])
        world.good("carry", "refresh", "pull-8")
        assert carry_toml(world, "pull-8")["pull"]["base"] == repository.git("rev-parse", "releases/v1")
        assert world.call("carry", "new", "x", "--from", ".", "--base", "main").status == 2

    def test_one_that_changes_nothing(self, world: World, upstream: Upstream) -> None:
        upstream.repository.pull(8, upstream.pinned, [{}])
        ran = world.call("carry", "new", "--pull", "8")
        assert ran.status == 30
        assert "it changes nothing" in ran.err
        assert not (world.root / "carries" / "pull-8").exists()

    @pytest.mark.parametrize(("more", "warned"), [({}, 1), ({"vllm/clamp.py": CLAMPED}, 0)])
    def test_one_that_changes_tests_alone_is_warned_of(
        self, world: World, upstream: Upstream, more: dict[str, str], warned: int
    ) -> None:
        upstream.repository.pull(
            8, upstream.pinned, [{"tests/test_x.py": "x = 1\n", "docs/x.md": "x\n", **more}]
        )
        ran = world.good("carry", "new", "--pull", "8")
        assert ran.err.count("tests and documents alone") == warned

    def test_one_that_no_wheel_can_hold_is_warned_of(self, world: World, upstream: Upstream) -> None:
        odd = {
            "vllm/clamp.py": CLAMPED,
            "vllm/big.py": "#" * (1 << 20) + "\n",
            "vllm/a\nmade b.py": "b = 1\n",
        }
        upstream.repository.pull(8, upstream.pinned, [odd])
        ran = world.good("carry", "new", "--pull", "8")
        assert "vllm/big.py has 1.0 MiB" in ran.err
        assert r"vllm/a\nmade b.py  +1 -0" in ran.out
        world.list_carries(["pull-8"])
        assert "refused" in world.call("merge").out

    def test_one_without_common_history(self, world: World, upstream: Upstream) -> None:
        upstream.repository.git("checkout", "--quiet", "--orphan", "alone")
        upstream.repository.commit("Alone", {"vllm/clamp.py": CLAMPED})
        upstream.repository.git("update-ref", "refs/pull/8/head", "HEAD")
        upstream.repository.git("checkout", "--quiet", "main")
        ran = world.call("carry", "new", "--pull", "8")
        assert ran.status == 20
        assert "it shares no history with the default branch" in ran.err

    def test_without_a_network(self, world: World, upstream: Upstream) -> None:
        ran = world.call("carry", "new", "--pull", "7", "--offline")
        assert ran.status == 20
        assert "pull request 7" in ran.err


class TestHeld:
    @pytest.fixture
    def held(self, world: World, upstream: Upstream) -> World:
        world.good("carry", "new", "--pull", "7")
        add_probe(world)
        return world

    def move(self, upstream: Upstream) -> str:
        """Its author pushes something else."""
        other = BETTER.replace("22", "222")
        return upstream.repository.pull(7, upstream.pinned, [{"vllm/clamp.py": other}])

    def test_both_commits_are_in_the_wheel(self, held: World) -> None:
        summary = held.good("wheel", "--json").json
        assert summary["carries"] == [
            {"name": "pull-7", "outcome": "applied", "detail": "", "proof": "proved"}
        ]
        diff = held.good("carry", "show", "pull-7", "--json").json["diff"]
        assert "+    return min(value, LIMIT)" in diff
        assert "+    return 22" in diff
        again = held.good("wheel", "--json").json
        assert again["sha256"] == summary["sha256"]
        assert held.good("wheel", "--json", "--offline").json["sha256"] == summary["sha256"]

    def test_from_git_it_is_the_same_change(self, held: World, upstream: Upstream) -> None:
        version = held.good("wheel", "--json").json["version"]
        assert held.good("wheel", "--json", "--source", "git").json["version"] == version
        clone = str(upstream.repository.folder)
        assert held.good("wheel", "--json", "--source", clone).json["version"] == version

    def test_a_moved_head_is_refused_until_it_is_looked_at(self, held: World, upstream: Upstream) -> None:
        held.good("wheel")
        pinned = carry_toml(held)["pull"]["head"]
        head = self.move(upstream)
        for words in (["wheel"], ["merge"]):
            ran = held.call(*words)
            assert ran.status == 30, ran.said
            assert f"it was pinned at {pinned[:12]} and now is {head[:12]}" in " ".join(ran.said.split())
            assert "carry refresh" in ran.said
        told = held.good("carry", "refresh", "pull-7")
        assert f"{pinned[:12]} → {head[:12]}" in told.out
        assert "# Takes no time." in (held.root / "carries" / "pull-7" / "carry.toml").read_text()
        assert carry_toml(held)["pull"]["head"] == head
        assert held.good("wheel", "--json").json["carries"][0]["outcome"] == "applied"
        assert "is up to date" in held.good("carry", "refresh", "pull-7").out
        assert held.good("carry", "refresh", "pull-7", "--json").json["moved"] is False
