"""Two series in one checkout: a lock and a patchset of each, one set of carries, one dist/."""

import json
import os
from pathlib import Path

import pytest
import tomlkit
from bisect_kit import commit, git
from tiny_release import CLAMP, make_tiny
from world import World

from sparkwright.base.digests import sha256_file
from sparkwright.base.errors import (
    ConfigError,
    LockMismatchError,
    NeedsPersonError,
    UnknownNameError,
    UnprovedError,
)
from sparkwright.lock.model import read_lock

NEXT = make_tiny(
    "1.3.0", changes=(("vllm/words.py", "WORDS = ('eins',)\n"), ("vllm/old.py", "GONE = False\n"))
)


VALUE_PROBE = """\
from probekit import expect


def probe():
    from vllm.{module} import {name}

    expect({claim}, "not so: {claim}")
"""


def probe_of(module: str, name: str, claim: str) -> str:
    return VALUE_PROBE.format(module=module, name=name, claim=claim)


def write_patchset(world: World, series: str, carries: list[str]) -> Path:
    path = world.root / "patchsets" / f"{series}.toml"
    tables = {"format": 1, "name": "spark", "series": series, "summary": "Small fixes", "carries": carries}
    path.write_text(tomlkit.dumps(tables))
    return path


@pytest.fixture
def two(world: World) -> World:
    """The world's checkout with the series 1.2, which is the default one, and 1.3."""
    lock = world.root / "upstream.lock"
    lock.write_text(f'series = "1.2"\n{lock.read_text()}')
    (world.root / "patchsets" / "spark.toml").unlink()
    write_patchset(world, "1.2", ["clamp", "align"])
    write_patchset(world, "1.3", ["clamp", "align"])
    world.offer(NEXT)
    world.good("lock", "bump", "1.3.0", "--new-series", "1.3")
    return world


def swap(world: World) -> None:
    """What docs/series.md says of another default series."""
    (world.root / "upstream.lock").rename(world.root / "patchsets" / "1.2.lock")
    (world.root / "patchsets" / "1.3.lock").rename(world.root / "upstream.lock")


class TestTwoSeries:
    def test_a_bump_makes_a_new_series_as_well(self, world: World) -> None:
        before = (world.root / "upstream.lock").read_text()
        world.offer(NEXT)
        shown = world.good("lock", "bump", "1.3.0", "--new-series", "1.3", "--dry-run").out
        path = world.root / "patchsets" / "1.3.lock"
        assert f"would write    {path}" in shown
        assert not path.exists()
        world.good("lock", "bump", "1.3.0", "--new-series", "1.3")
        made = read_lock(path)
        assert (made.series, made.release.version) == ("1.3", "1.3.0")
        assert (world.root / "upstream.lock").read_text() == before
        again = world.call("lock", "bump", "1.3.0", "--new-series", "1.3")
        assert (again.status, "1.3" in again.err) == (ConfigError.exit_code, True)

    def test_wheels_of_both_lie_side_by_side_and_survive_another_default(self, two: World) -> None:
        made = {series: two.good("wheel", "--series", series, "--json").json for series in ("1.2", "1.3")}
        assert [made[series]["version"].split("+")[0] for series in made] == ["1.2.0", "1.3.0"]
        digests = {path.name: sha256_file(path) for path in two.wheels}
        assert len(digests) == 2
        page = (two.dist / "simple" / "vllm" / "index.html").read_text()
        assert all(wheel["version"].replace("+", "%2B") in page for wheel in made.values())
        assert sorted(path.name for path in (two.root / "carries" / "clamp").glob("proofs/*")) == []
        swap(two)
        for path in two.wheels:
            path.unlink()
        assert two.good("wheel", "--json").json["version"] == made["1.3"]["version"]
        two.good("wheel", "--series", "1.2")
        assert {path.name: sha256_file(path) for path in two.wheels} == digests
        two.good("audit", *two.wheels)

    def test_each_command_takes_the_series_its_patchset_or_the_environment(self, two: World) -> None:
        assert two.good("wheel", "--plan", "--json").json["version"].startswith("1.2.0+spark.0.")
        for words in (["--series", "1.3"], ["--patchset", "1.3"]):
            for command in (["wheel", "--plan"], ["status"], ["merge"]):
                found = two.good(*command, *words, "--json").json
                assert found["version"].startswith("1.3.0")
        two.environment["SPARKWRIGHT_SERIES"] = "1.3"
        found = two.good("status", "--json").json
        assert (found["series"], found["patchset"], found["release"]) == ("1.3", "1.3", "1.3.0")
        assert two.good("status", "--series", "1.2", "--json").json["release"] == "1.2.0"

    def test_only_the_series_own_files_are_written(self, two: World) -> None:
        before = {path: path.read_bytes() for path in sorted(two.root.glob("**/*.toml"))}
        lock = (two.root / "upstream.lock").read_bytes()
        two.good("patchset", "bump", "--series", "1.3")
        changed = [path for path, data in before.items() if path.read_bytes() != data]
        assert changed == [two.root / "patchsets" / "1.3.toml"]
        later = make_tiny("1.4.0")
        two.offer(later)
        two.good("lock", "bump", "1.4.0", "--series", "1.3")
        assert read_lock(two.root / "patchsets" / "1.3.lock").sdist == later.lock.sdist
        assert (two.root / "upstream.lock").read_bytes() == lock

    def test_a_lock_is_not_moved_before_its_series(self, two: World) -> None:
        before = (two.root / "patchsets" / "1.3.lock").read_bytes()
        for words in (["1.2.0"], ["1.2.0", "--keep-native"]):
            ran = two.call("lock", "bump", *words, "--series", "1.3")
            assert (ran.status, "patchsets/1.3.lock" in ran.err) == (LockMismatchError.exit_code, True)
        assert (two.root / "patchsets" / "1.3.lock").read_bytes() == before

    def test_a_carry_of_another_series_is_named_with_it(self, two: World) -> None:
        write_patchset(two, "1.2", ["clamp"])
        ran = two.call("carry", "prove", "align")
        assert ran.status == UnknownNameError.exit_code
        assert "--series" in ran.err
        two.good("carry", "prove", "align", "--series", "1.3")

    def test_ends_of_a_bisection_may_be_of_either_series(self, two: World) -> None:
        write_patchset(two, "1.3", ["clamp"])
        ran = two.good("bisect", "1.2@1.2.0", "1.3@1.2.0", "--list", "--json")
        assert [change["axis"] for change in ran.json["changes"]] == ["carries"]
        ran = two.good("bisect", "1.3@1.2.0", "1.3@1.3.0", "--list", "--json")
        assert [change["axis"] for change in ran.json["changes"]] == ["upstream"]
        ran = two.call("bisect", "1.5@1.2.0", "1.3@1.3.0", "--list")
        assert (ran.status, "'1.5'" in ran.err) == (UnknownNameError.exit_code, True)

    def test_a_wheel_gives_the_other_end_of_a_bisection_its_series(self, two: World) -> None:
        two.good("wheel", "--series", "1.3")
        (wheel,) = two.wheels
        write_patchset(two, "1.3", ["clamp"])
        ran = two.good("bisect", wheel, ".", "--list", "--json")
        assert [change["id"] for change in ran.json["changes"]] == ["align:removed"]
        ran = two.good("bisect", ".", wheel, "--list", "--json", "--series", "1.2")
        assert [change["axis"] for change in ran.json["changes"]] == ["upstream"]


class TestNights:
    NIGHT = ("nightly", "--history", "none", "--no-build", "--onto", "1.4.0", "--json")

    @pytest.fixture
    def project(self, two: World, monkeypatch: pytest.MonkeyPatch) -> World:
        """The two series under git, and a release in which the lines of a carry have moved."""
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        two.environment["GIT_CONFIG_GLOBAL"] = os.devnull
        commit(two, "Begin")
        two.offer(make_tiny("1.4.0", changes=(("vllm/clamp.py", f"# Moved down.\n\n{CLAMP}"),)))
        return two

    def test_each_series_has_nights_and_proposals_of_its_own(self, project: World) -> None:
        for series, lock in (("1.3", "patchsets/1.3.lock"), ("1.2", "upstream.lock")):
            ran = project.good(*self.NIGHT, "--series", series, "--propose")
            assert (ran.json["patchset"], ran.json["pin"]) == (series, f"{series}.0")
            (proposal,) = ran.json["proposals"]
            assert (proposal["branch"], proposal["pins"]) == (f"sparkwright/{series}/1.4.0", True)
            changed = git(project, "diff", "--name-only", "main", proposal["branch"]).split()
            assert [path for path in changed if path.endswith(".lock")] == [lock]
            assert [path for path in changed if "/proofs/" in path] == [
                f"carries/{name}/proofs/1.4.0.json" for name in ("align", "clamp")
            ]
            assert 'version = "1.4.0"' in git(project, "show", f"{proposal['branch']}:{lock}")
            assert project.good(*self.NIGHT, "--series", series).json["verdict"] == "nothing-new"
        reports = sorted((project.root / ".sparkwright" / "nightly").glob("**/report.json"))
        found = [json.loads(path.read_text())["night"]["patchset"] for path in reports]
        assert sorted(found) == ["1.2", "1.3"]

    def test_a_red_carry_is_searched_for_in_its_own_series(self, project: World) -> None:
        project.offer(
            make_tiny("1.5.0", changes=(("vllm/clamp.py", "def clamp(value):\n    return -value\n"),))
        )
        words = [word.replace("1.4.0", "1.5.0") for word in self.NIGHT]
        ran = project.call(*words, "--series", "1.3")
        assert ran.status == NeedsPersonError.exit_code
        for command in ("lock bump --series 1.3 1.5.0", "carry refresh --series 1.3 clamp"):
            assert command in ran.err
        carries = {one["name"]: one for one in ran.json["targets"][0]["carries"]}
        assert "1.3@1.3.0 1.3@1.5.0" in carries["clamp"]["bisect-command"]


class TestProveOnto:
    @pytest.fixture
    def varied(self, two: World) -> World:
        """Three carries that do not merge onto 1.3.0, and one that is declared superseded there.

        Upstream mended the defect of the first of them, ``words``, in its own way.
        """
        defect = {"vllm/words.py": "WORDS = ('uno',)\n"}
        listed = {"listed": False}
        two.carry("words", defect, probe=probe_of("words", "WORDS", "len(WORDS) == 1"), **listed)
        two.carry("still", defect, probe=probe_of("words", "WORDS", "'uno' in WORDS"), **listed)
        superseded = [{"releases": ">=1.3", "by": "#99", "because": "its notes say so"}]
        gone = probe_of("old", "GONE", "GONE is False")
        two.carry("dated", {"vllm/old.py": "GONE = False\n"}, probe=gone, superseded=superseded, **listed)
        write_patchset(two, "1.2", ["clamp", "words", "still", "dated"])
        write_patchset(two, "1.3", ["clamp"])
        return two

    def proofs(self, world: World) -> dict[str, str]:
        return {
            path.parts[-3]: json.loads(path.read_text())["verdict"]
            for path in sorted((world.root / "carries").glob("*/proofs/1.3.0.json"))
        }

    def test_proofs_are_recorded_for_the_release(self, varied: World) -> None:
        before = varied.good("merge", "--onto", "1.3.0", "--json").json["evidence"]
        assert before == {"clamp": "unproved", "words": "", "still": "", "dated": "declared"}
        ran = varied.call("carry", "prove", "--onto", "1.3.0")
        assert (ran.status, "still" in ran.err) == (UnprovedError.exit_code, True)
        # Of clamp nothing is recorded: the series 1.3, which pins that release, has its own proof of it.
        assert self.proofs(varied) == {"words": "not needed here", "dated": "not needed here"}
        varied.new_store("nothing known", probes=False)
        after = varied.good("merge", "--onto", "1.3.0", "--json").json["evidence"]
        assert after == {"clamp": "unproved", "words": "not needed", "still": "", "dated": "proved"}

    def test_a_release_that_no_series_pins_has_all_proofs(self, varied: World) -> None:
        write_patchset(varied, "1.3", [])
        varied.good("carry", "prove", "clamp", "words", "dated", "--onto", "1.3.0")
        assert self.proofs(varied) == {
            "clamp": "proved", "words": "not needed here", "dated": "not needed here"
        }  # fmt: skip
        assert not list(varied.root.glob("carries/*/proofs/1.2.0.json"))
        rows = varied.good("merge", "--onto", "1.3.0").out.splitlines()
        assert [row.split()[1:3] for row in rows if row.split()[:1] in (["clamp"], ["dated"])] == [
            ["applied", "proved"], ["superseded", "proved"]
        ]  # fmt: skip

    def test_a_probe_that_cannot_run_there_is_named_by_the_release_that_it_was_made_for(self, varied: World):
        path = varied.root / "carries" / "words" / "probe.py"
        path.write_text(f"import vllm.moved\n{path.read_text()}")
        ran = varied.call("carry", "prove", "words", "--onto", "1.3.0")
        assert ran.status == UnprovedError.exit_code
        assert "words: its probe, made for 1.2.0, could not run: ModuleNotFoundError: " in ran.err

    def test_no_wheel_is_made_on_a_word_alone(self, varied: World) -> None:
        write_patchset(varied, "1.3", ["clamp", "dated"])
        path = varied.root / "carries" / "dated" / "probe.py"
        healthy = path.read_text()
        path.write_text(healthy.replace("False", "None"))
        ran = varied.call("wheel", "--series", "1.3")
        assert (ran.status, "dated" in ran.err) == (UnprovedError.exit_code, True)
        assert varied.wheels == []
        path.write_text(healthy)
        steps = varied.good("wheel", "--plan", "--series", "1.3", "--json").json["steps"]
        told = {step["name"]: (step["state"], step["evidence"]) for step in steps}
        assert told["prove dated"] == ("to do", "declared")
        assert told["assemble"][0] == "waits"
        made = varied.good("wheel", "--series", "1.3", "--json").json
        assert {one["name"]: one["proof"] for one in made["carries"]} == {
            "clamp": "proved", "dated": "not needed here"
        }  # fmt: skip
        steps = varied.good("wheel", "--plan", "--series", "1.3", "--json").json["steps"]
        assert {step["name"]: step["evidence"] for step in steps}["prove dated"] == "proved"
