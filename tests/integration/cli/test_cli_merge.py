"""``sparkwright merge`` and ``sparkwright wheel --plan``."""

import pytest
from kit import UpstreamRepository
from tiny_release import ALIGNED, CLAMP, CLAMPED, make_tiny
from world import CLAMP_PROBE, World

from sparkwright.base.errors import UnprovedError
from sparkwright.merge.report import OutcomeKind

NEXT = make_tiny(
    "1.3.0",
    changes=(
        ("vllm/align.py", ALIGNED),  # upstream has that change
        ("vllm/words.py", "WORDS = ('eins',)\n"),  # another change of the same lines
        ("tests/test_clamp.py", "def test_clamp():\n    assert 1\n"),
        ("vllm/old.py", "GONE = False\n"),
    ),
)


@pytest.fixture
def varied(world: World) -> World:
    """Six carries that fare differently on 1.3.0, and all apply to the pin."""
    world.offer(NEXT)
    world.carry("words", {"vllm/words.py": "WORDS = ('uno', 'due')\n"})
    world.carry("texts", {"vllm/new.py": "NEW = 1\n", "tests/test_clamp.py": "def test_clamp():\n    pass\n"})
    world.carry("needy", {"vllm/needy.py": "NEEDY = 1\n"}, requires=["words"])
    superseded = [{"releases": ">=1.3", "by": "#99", "because": "its notes say so"}]
    world.carry("dated", {"vllm/old.py": "GONE = None\n"}, superseded=superseded)
    return world


EXPECTED = {
    "clamp": OutcomeKind.APPLIED,
    "align": OutcomeKind.ABSORBED,
    "words": OutcomeKind.CONFLICT,
    "texts": OutcomeKind.CONFLICT_IN_TESTS_OR_DOCS,
    "needy": OutcomeKind.REFUSED,
    "dated": OutcomeKind.SUPERSEDED,
}


class TestOnto:
    def test_every_outcome_is_in_the_table(self, varied: World) -> None:
        assert set(EXPECTED.values()) == set(OutcomeKind) - {OutcomeKind.LEFT_OUT}
        ran = varied.good("merge", "--onto", "1.3.0")
        rows = {line.split()[0]: line.split()[1] for line in ran.out.splitlines() if len(line.split()) > 2}
        assert {name: rows[name] for name in EXPECTED} == EXPECTED
        assert "it requires words, whose outcome is conflict" in ran.out
        report = varied.good("merge", "--onto", "1.3.0", "--json").json
        assert {entry["carry"]: entry["kind"] for entry in report["outcomes"]} == EXPECTED
        assert varied.good("merge", "--onto", "1.3.0", "--json", "--offline").json == report

    def test_the_tree_can_be_had(self, varied: World) -> None:
        folder = varied.folder / "tree"
        varied.good("merge", "--onto", "1.3.0", "--check-out", folder)
        assert (folder / "vllm" / "clamp.py").read_text() == CLAMPED
        assert (folder / "vllm" / "words.py").read_text() == "WORDS = ('eins',)\n"
        assert (folder / "vllm" / "new.py").exists()
        assert sorted(path.name for path in varied.folder.glob(".tree*")) == []
        ran = varied.call("merge", "--check-out", folder)
        assert ran.status == 10
        assert "it is not empty" in ran.err

    def test_a_version_that_nobody_has(self, world: World) -> None:
        for version in ("7.7.7", "no version", "--json", "9f64d3bc", "1234567", "ab" * 20):
            ran = world.call("merge", f"--onto={version}")
            assert ran.status == (20 if version in {"7.7.7", "1234567"} else 10), ran.said
            assert version in ran.said
            of_a_commit = len(version) > 6 and version.isalnum()
            assert (f"sparkwright lock bump {version}" in ran.err) is of_a_commit


class TestAbsorbed:
    """The pin has the very text of `align`: whether it has its effect is for the probe to say."""

    @pytest.fixture
    def moved(self, varied: World) -> World:
        varied.list_carries(["clamp", "align", "dated"])
        varied.pin(NEXT)
        varied.offer(make_tiny())  # the release that the revisions were written against
        return varied

    def test_a_probe_that_passes_on_the_pristine_tree_proves_it(self, moved: World) -> None:
        ran = moved.good("carry", "prove", "--json")
        assert sorted(ran.json["needless"]) == ["dated"]
        assert [proof["verdict"] for proof in ran.json["proofs"]] == ["proved", "not needed here"]
        moved.new_store("no probes", probes=False)  # what is recorded beside the carry is enough
        summary = moved.good("wheel", "--json").json
        assert [carry["outcome"] for carry in summary["carries"]] == ["applied", "absorbed", "superseded"]
        assert [carry["proof"] for carry in summary["carries"]] == ["proved", "not needed here", ""]

    def test_a_probe_that_fails_there_stops_the_wheel(self, moved: World) -> None:
        probe = moved.root / "carries" / "align" / "probe.py"
        healthy = probe.read_text()
        probe.write_text(healthy.replace("== 8", "== 9"))
        for words in (["wheel"], ["carry", "prove"]):
            ran = moved.call(*words)
            assert ran.status == UnprovedError.exit_code, ran.said
            assert "align" in ran.err
            assert "equal-tree" in ran.err
            assert not moved.wheels
        assert not (probe.parent / "proofs").exists()
        probe.write_text(healthy)
        moved.good("wheel")

    def test_merging_alone_says_that_it_is_unproved(self, moved: World) -> None:
        assert "absorbed (unproved)" in moved.good("merge").out
        assert moved.good("merge", "--json").json["unproved"] == ["align"]
        moved.good("carry", "prove", "align")
        assert "absorbed (unproved)" not in moved.good("merge").out
        assert moved.good("merge", "--json").json["unproved"] == []

    def test_the_pull_request_that_is_believed_is_named(self, moved: World) -> None:
        """A subject alone says that upstream has it; the code says otherwise."""
        upstream = UpstreamRepository(moved.folder / "clone")
        repository, tree = upstream.folder, make_tiny("1.3.0").tree
        upstream.commit("First", {**tree, "vllm/align.py": b"X = 1\n"})
        pinned = upstream.commit("Align half of it (#7)", tree)
        moved.pin(make_tiny("1.3.0", commit=pinned, git=upstream.address))
        moved.list_carries(["align"])
        toml = moved.root / "carries" / "align" / "carry.toml"
        related = '[[upstream]]\npull = 7\nauthor = "a"\nstate = "merged"\nrelation = "half"\nabsorbs = {}\n'
        text = toml.read_text()
        toml.write_text(text + related.format("true"))
        ran = moved.call("wheel", "--source", str(repository))
        assert ran.status == UnprovedError.exit_code, ran.said
        assert "(#7)" in ran.err
        toml.write_text(text + related.format("false"))
        ran = moved.good("wheel", "--json", "--source", str(repository))
        assert [carry["outcome"] for carry in ran.json["carries"]] == ["applied"]


def test_a_hazard_is_shown(world: World) -> None:
    both = CLAMP.replace("def clamp(value):", "def clamp(value, *, low=0):")
    world.offer(make_tiny("1.3.0", changes=(("vllm/clamp.py", both),)))
    ran = world.good("merge", "--onto", "1.3.0")
    assert "look at vllm/clamp.py: both sides changed clamp (clamp)" in ran.out


class TestPlan:
    def states(self, world: World, *words: str) -> dict[str, str]:
        return {
            step["name"]: step["state"]
            for step in world.good("wheel", "--plan", "--json", *words).json["steps"]
        }

    @pytest.mark.parametrize("source", ["index", "folder", "file"])
    def test_nothing_is_written_or_fetched(self, world: World, source: str) -> None:
        mirror = world.folder / "mirror"
        mirror.mkdir()
        for name, data in world.release.files.items():
            (mirror / name).write_bytes(data)
        spec = {"index": "index", "folder": str(mirror), "file": "file:///nonexistent/vllm.git"}[source]
        before = world.listing()
        states = self.states(world, "--source", spec)
        assert world.listing() == before
        assert world.index.requests == []
        assert not world.dist.exists()
        assert states["pristine tree"] == states["upstream's wheel"] == "to do"
        assert set(states.values()) == {"to do", "waits"}

    def test_after_an_edit_only_what_depends_on_it_is_left(self, world: World) -> None:
        world.good("wheel")
        clamped = CLAMPED.replace("min(value, LIMIT)", "LIMIT if value > LIMIT else value")
        world.list_carries(["align"])
        world.carry("clamp", {"vllm/clamp.py": clamped}, probe=CLAMP_PROBE)
        states = self.states(world)
        assert states.pop("pristine tree") == states.pop("upstream's wheel") == "in store"
        assert states.pop("merge") == "to do"
        assert set(states.values()) == {"waits"}
        world.good("merge")  # reports, and keeps no result for later
        world.call("wheel", "--allow-unproved", "clamp")
        steps = world.steps()
        assert (steps["prove align"], steps["prove clamp"]) == ("found", "made")

    @pytest.mark.usefixtures("proved")
    def test_an_edit_of_prose_changes_nothing(self, world: World) -> None:
        world.good("wheel")
        path = world.root / "carries" / "clamp" / "carry.toml"
        path.write_text(path.read_text().replace("it is wrong", "it is very wrong"))
        assert set(self.states(world).values()) == {"in store"}

    @pytest.mark.usefixtures("proved")
    def test_history_makes_a_merge_of_its_own(self, world: World) -> None:
        """A tree from a repository with history may absorb more than the same tree without."""
        upstream = UpstreamRepository(world.folder / "clone")
        upstream.commit("First", world.release.tree)
        pinned = upstream.commit("Release", {})
        lock = (world.root / "upstream.lock").read_text()
        (world.root / "upstream.lock").write_text(lock.replace(world.release.lock.release.commit, pinned))
        keys = []
        for source in (upstream.address, str(upstream.folder)):
            world.good("wheel", "--source", source)
            steps = world.good("wheel", "--plan", "--json", "--source", source).json["steps"]
            assert {step["state"] for step in steps} == {"in store"}, source
            keys.append(next(step["key"] for step in steps if step["name"] == "merge"))
        assert keys[0] != keys[1]
