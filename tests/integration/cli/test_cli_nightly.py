"""``sparkwright nightly``: from a new release or commit to judgements, a wheel, and a night that is kept."""

import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomlkit
from commit_kit import MACHINES, CommitIndex, SmallUpstream
from killed import at_event, goes_on, killed
from kit import UpstreamRepository
from small_release import SmallRelease
from tiny_release import ALIGNED, CLAMP, CLAMPED, make_tiny
from world import ALIGN_PROBE, CLAMP_PROBE, World, finish

from sparkwright.nightly import follow
from sparkwright.nightly.model import Judgement, Night, NightState

NEEDS_PERSON, NOTHING_NEW = 95, 94
CLAMP_PATH, ALIGN_PATH = "vllm/clamp.py", "vllm/align.py"
# A change away from the carry's: the first one keeps what the carry means, the second does not.
HARMLESS = CLAMP.replace("return 2", "return 3")
OTHER_LIMIT = CLAMP.replace("LIMIT = 10", "LIMIT = 20")
CONFLICTING = CLAMP.replace("    # Always.\n    return value", "    # Never.\n    return abs(value)")
RENAMED = CLAMP.replace("def clamp(value)", "def clip(value)")
MENDED_IN_THE_WAY = CLAMP.replace("    return value", "    return value if value < 10 else 10")
MENDED_OTHERWISE = CLAMP.replace("    # As it is.\n", "    value = min(value, 10)\n")


def later(version: str = "1.3.0", **changed: str) -> SmallRelease:
    named = {"clamp": CLAMP_PATH, "align": ALIGN_PATH, "cuda": "requirements/cuda.txt"}
    changes = tuple((named[name], text) for name, text in changed.items())
    return make_tiny(version, changes=changes, commit=f"{version.replace('.', ''):a<40}")


def nightly(world: World, *words: str, status: int = 0) -> Night:
    """Run the night, and return it as the state file has it."""
    ran = world.call("nightly", "--history", "none", *words)
    assert ran.status == status, ran.said
    return next(nights_of(world))


def nights_of(world: World) -> Iterator[Night]:
    (folder,) = (world.root / ".sparkwright" / "nights").iterdir()
    return NightState(folder).nights()


class TestJudgements:
    @pytest.mark.parametrize(
        ("clamp", "judgement", "step"),
        [
            (HARMLESS, Judgement.NEEDED, ""),
            (OTHER_LIMIT, Judgement.WRONG, "then sparkwright carry edit FOLDER --carry clamp"),
            (
                CONFLICTING,
                Judgement.CONFLICT,
                "on its branch: sparkwright lock bump 1.3.0, then sparkwright carry refresh clamp",
            ),
            (RENAMED, Judgement.BROKEN_PROBE, "then write a probe of clamp for it"),
            (
                MENDED_OTHERWISE,
                Judgement.NOT_NEEDED,
                "sparkwright nightly --propose-last: on its branch clamp is superseded",
            ),
            (MENDED_IN_THE_WAY, Judgement.NOT_NEEDED, ""),
        ],
        ids=["harmless", "another limit", "a conflict", "renamed", "mended otherwise", "mended in the way"],
    )
    def test_what_the_release_has_decides_and_the_next_step_mends_it(
        self, world: World, clamp: str, judgement: Judgement, step: str
    ) -> None:
        world.offer(later(clamp=clamp))
        ran = world.call("nightly", "--history", "none", "--no-build")
        assert ran.status == (0 if judgement is Judgement.NEEDED else NEEDS_PERSON), ran.said
        assert step in ran.err
        (one,) = next(nights_of(world)).targets
        assert one.carry("clamp").judgement is judgement

    @pytest.mark.parametrize(
        ("carry", "revision", "judgement"),
        [
            ("v1", {}, Judgement.REACH_LOST),
            ("both", {"runner": "v1"}, Judgement.REACH_LOST),
            ("v1", {"runner": "both"}, Judgement.NEEDED),
        ],
    )
    def test_reach_lost_with_the_runner_of_the_revision(self, world, carry, revision, judgement):
        choice = "vllm/config/vllm.py"
        before = "def use_v2_model_runner():\n    return DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES\n"
        world.pin(make_tiny(changes=((choice, before),)))
        world.list_carries([])
        digest = world.release.lock.sdist.sha256
        based = {"release": "1.2.0", "sdist-sha256": digest, "patch": "1.2.0.patch", **revision}
        world.carry("clamp", {CLAMP_PATH: CLAMPED}, probe=CLAMP_PROBE, runner=carry, revision=[based])
        world.offer(make_tiny("1.3.0", changes=((choice, before),)))
        assert nightly(world, "--no-build").targets[0].carry("clamp").judgement is Judgement.NEEDED
        after = "def use_v2_model_runner():\n    return True\n"
        world.offer(make_tiny("1.4.0", changes=((choice, after),)))
        night = nightly(world, "--no-build", status=0 if judgement is Judgement.NEEDED else NEEDS_PERSON)
        assert night.targets[0].carry("clamp").judgement is judgement

    def test_the_file_that_a_name_moved_to_is_told(self, world: World) -> None:
        moved = ((CLAMP_PATH, "from vllm.limits import LIMIT\n"), ("vllm/limits.py", CLAMP))
        world.offer(make_tiny("1.3.0", changes=moved))
        (one,) = nightly(world, "--no-build", status=NEEDS_PERSON).targets
        assert "clamp is in vllm/limits.py now; ImportError" in one.carry("clamp").finding


class TestNight:
    def test_green_from_discovery_to_an_audited_wheel_and_then_nothing_new(self, world: World) -> None:
        world.offer(later("1.2.5", clamp=CONFLICTING))  # not the newest
        world.offer(later(clamp=HARMLESS))
        night = nightly(world)
        (one,) = night.targets
        assert (night.verdict, one.target.label, night.pin) == ("green", "1.3.0", "1.2.0")
        assert (one.build.status, one.build.audited) == ("built", True)
        assert one.build.carries == ("clamp", "align")
        assert Path(one.build.path).stat().st_size == one.build.size
        assert 'version = "1.3.0"' in (world.root / ".sparkwright/nightly/locks/1.3.0.lock").read_text()
        assert 'version = "1.2.0"' in (world.root / "upstream.lock").read_text()

        fetched = list(world.index.downloads)
        assert world.call("nightly", "--history", "none").status == 0
        assert nightly(world, "--detailed-exit-code", status=NOTHING_NEW).id == night.id
        assert list(world.index.downloads) == fetched

    def test_a_declaration_without_a_proof_does_not_stop_the_wheel(self, world: World) -> None:
        superseded = {"releases": ">=1.3", "by": "upstream", "because": "it says so"}
        world.list_carries([])
        world.carry("clamp", {CLAMP_PATH: CLAMPED}, probe=CLAMP_PROBE, superseded=[superseded])
        world.carry("align", {ALIGN_PATH: ALIGNED}, probe=ALIGN_PROBE)
        world.offer(later(clamp=RENAMED))
        (one,) = nightly(world).targets
        assert one.carry("clamp").judgement is Judgement.DECLARED
        assert (one.build.status, one.build.carries) == ("built", ("clamp", "align"))

    def test_a_carry_that_is_edited_is_news(self, world: World) -> None:
        world.offer(later(clamp=HARMLESS))
        first = nightly(world, "--no-build")
        (world.root / "carries" / "clamp" / "probe.py").write_text(CLAMP_PROBE + "# more\n")
        assert nightly(world, "--no-build").id == str(int(first.id) + 1)

    def test_offline_without_news_is_said_and_is_no_error(self, world: World) -> None:
        world.good("merge")
        ran = world.call("nightly", "--history", "none", "--offline", "--json")
        assert ran.status == 0
        assert ran.json["verdict"] == "nothing-new"
        assert ran.json["notes"]

    def test_a_target_that_does_not_exist(self, world: World) -> None:
        assert world.call("nightly", "--history", "none", "--onto", "no such thing").status == 10
        assert world.call("nightly", "--history", "none", "--onto", "7.7.7").status == 20


class TestRed:
    def test_what_is_red_stays_out_of_the_wheel_and_is_named_with_its_release(self, world: World) -> None:
        world.offer(later("1.2.5", clamp=HARMLESS))
        world.offer(later("1.2.7", clamp=CONFLICTING))
        world.offer(later("1.3.0", clamp=CONFLICTING, align=ALIGNED + "\n# more\n"))
        night = nightly(world, status=NEEDS_PERSON)
        (one,) = night.targets
        carry = one.carry("clamp")
        assert carry.culprit is not None
        assert (carry.culprit.release, carry.culprit.files) == ("1.2.7", (CLAMP_PATH,))
        assert (carry.red_since, carry.holds) == (night.date, "1.2.0")
        assert "spark@1.2.0 spark@1.3.0" in carry.bisect_command
        assert one.build.status == "built"
        assert (one.build.carries, one.build.left_out) == ((), ("clamp", "align"))
        assert one.carry("align").judgement is Judgement.NOT_NEEDED  # upstream has it

    def test_nights_add_up_and_a_mended_carry_begins_again(self, world: World, monkeypatch) -> None:
        def one(version: str, clamp: str, date: str, status: int):
            world.offer(later(version, clamp=clamp))
            now = datetime.fromisoformat(f"{date}T03:00:00Z")
            monkeypatch.setattr(follow, "datetime", SimpleNamespace(now=lambda _: now))
            night = nightly(world, "--no-build", status=status)
            return night.targets[0].carry("clamp")

        assert one("1.3.0", HARMLESS, "2026-11-01", 0).red_since == ""
        broken = one("1.4.0", CONFLICTING, "2026-11-02", NEEDS_PERSON)
        assert broken.culprit is not None
        assert (broken.red_since, broken.holds, broken.culprit.release) == ("2026-11-02", "1.3.0", "1.4.0")
        assert broken.changed
        still = one("1.5.0", CONFLICTING + "\n# more\n", "2026-11-05", NEEDS_PERSON)
        assert (still.red_since, still.holds, still.culprit) == ("2026-11-02", "1.3.0", broken.culprit)
        assert not still.changed
        assert [mark.target for mark in still.history] == ["1.3.0", "1.4.0", "1.5.0"]
        mended = one("1.6.0", HARMLESS, "2026-11-06", 0)
        assert (mended.red_since, mended.holds, mended.previous) == ("", "1.6.0", "conflict")

    def test_a_build_that_fails_is_a_finding_and_is_tried_again(self, world: World) -> None:
        release = later(clamp=HARMLESS)
        world.offer(release)
        (wheel,) = (name for name in release.files if name.endswith("aarch64.whl"))
        world.index.files[wheel] = release.files[wheel][:-1] + b"?"
        (one,) = nightly(world, status=NEEDS_PERSON).targets
        assert (one.build.status, one.green) == ("failed", False)
        assert wheel in one.build.reason
        assert not list((world.root / ".sparkwright" / "nightly").rglob("*.whl"))
        world.index.files[wheel] = release.files[wheel]
        assert nightly(world).targets[0].build.status == "built"

    def test_a_release_without_a_wheel_is_judged_and_not_built(self, world: World) -> None:
        release = later(clamp=HARMLESS)
        (sdist,) = (name for name in release.files if name.endswith(".tar.gz"))
        world.index.add(sdist, release.files[sdist])
        assert world.call("nightly", "--history", "none", "--detailed-exit-code").status == NOTHING_NEW
        (one,) = nightly(world, "--onto", "1.3.0").targets
        assert (one.target.wheel, one.build.status) == (False, "skipped")
        assert one.carry("clamp").judgement is Judgement.NEEDED


class TestCommits:
    def test_the_commit_that_made_a_carry_conflict_is_named(self, world: World, tmp_path: Path) -> None:
        upstream = UpstreamRepository(tmp_path / "history")
        sources = {
            path: data
            for path, data in world.release.tree.items()
            if path not in {"PKG-INFO", "vllm/_version.py"}
        }
        base = upstream.commit("Release", sources)
        world.pin(make_tiny(commit=base))
        world.list_carries([])
        world.carry(
            "clamp",
            {CLAMP_PATH: CLAMP.replace("return value", "return min(value, LIMIT)")},
            probe=CLAMP_PROBE,
        )
        for number in range(4):
            upstream.commit(f"Noise (#{number})", {"docs/clamp.md": f"{number}\n"})
        upstream.commit("Touch it harmlessly (#10)", {CLAMP_PATH: HARMLESS})
        planted = upstream.commit(
            "Rewrite clamp (#11)", {CLAMP_PATH: HARMLESS.replace("    return value", "    return abs(value)")}
        )
        head = upstream.commit("Noise (#12)", {"docs/clamp.md": "last\n"})
        ran = world.call("nightly", "--history", upstream.folder, "--no-build", "--json")
        assert ran.status == NEEDS_PERSON, ran.said
        (one,) = next(nights_of(world)).targets
        assert (one.target.kind, one.target.commit, one.target.history) == ("commit", head, True)
        culprit = one.carry("clamp").culprit
        assert culprit is not None
        assert (culprit.commit, culprit.pull) == (planted, 11)
        assert culprit.files == (CLAMP_PATH,)
        again = world.call("nightly", "--history", upstream.folder, "--no-build", "--detailed-exit-code")
        assert again.status == NOTHING_NEW

    @pytest.mark.parametrize("machines", [MACHINES, ("aarch64",)], ids=["both machines", "one"])
    def test_a_wheel_of_a_commit_needs_upstreams_wheel_for_the_platform_alone(
        self, world, tmp_path, machines
    ):
        upstream = SmallUpstream(tmp_path / "upstream")
        commit = upstream.commit("Harmless (#2)", {CLAMP_PATH: HARMLESS})
        with CommitIndex(tmp_path / "served") as index:
            world.environment["SPARKWRIGHT_UPSTREAM_WHEELS"] = index.url
            index.offer(upstream, commit, f"1.2.1.dev1+g{commit[:9]}", machines=machines)
            words = ("--history", str(upstream.folder), "--onto", commit)
            ran = world.good("nightly", *words, "--json")
        (found,) = ran.json["targets"]
        assert (found["build"]["status"], found["build"]["audited"]) == ("built", True)
        lock = tomlkit.parse(Path(found["build"]["lock"]).read_text())
        assert sorted(lock["wheels"]) == sorted(machines)


class TestStopped:
    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            ("merge.outcome", "align"),
            ("probe.judged", "clamp"),
            ("wheel.assembled", ""),
            ("night.recorded", ""),
        ],
    )
    def test_killed_anywhere_it_goes_on(self, world: World, kind: str, text: str) -> None:
        world.offer(later(clamp=HARMLESS))
        words = ["nightly", "--history", "none"]
        assert killed(world, at_event(kind, text), *words) == -signal.SIGKILL
        goes_on(world, *words)
        made = [event for event in world.events() if event["kind"] == "probe.judged"]
        assert kind not in {"wheel.assembled", "night.recorded"} or not made
        (night,) = nights_of(world)
        assert night.verdict == "green"

    def test_two_at_once_make_one_night(self, world: World) -> None:
        world.offer(later(clamp=HARMLESS))
        words = ["nightly", "--history", "none", "--detailed-exit-code"]
        other = world.start(*words)
        assert sorted([world.call(*words).status, finish(other).status]) == [0, NOTHING_NEW]
        assert len(list(nights_of(world))) == 1
