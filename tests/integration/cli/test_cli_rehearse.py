"""``sparkwright rehearse``: a merge served by a wheel for the CPU, in miniature, with real processes."""

import json
import shutil
import signal
from pathlib import Path

import tomlkit
from killed import stopped
from rehearsal_kit import SERVE, cpu_wheel, model_wheel, rehearsed, stage
from wheelkit import sha256
from world import World

from sparkwright.base.errors import ConfigError, DigestError, RehearsalError, UnknownNameError, VerdictError

QUICK = ("--checks", "boot,prefix")


def verdicts(described: dict[str, object]) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in described["checks"]}  # type: ignore[attr-defined]


def rehearse(world: World, *words: str | Path) -> tuple[int, dict[str, object]]:
    ran = world.call("rehearse", "--json", *words)
    return ran.status, json.loads(ran.out)


class TestVerdicts:
    def test_a_healthy_merge_passes_every_check(self, staged: World, tmp_path: Path) -> None:
        checks = "boot,prefix,parity"
        ran = staged.good("rehearse", "--json", "--checks", checks, "--out", tmp_path / "out")
        result = ran.json
        assert verdicts(result) == dict.fromkeys(checks.split(","), "passed")
        assert (result["verdict"], result["version"], result["exact"]) == ("passed", "1.2.0", True)
        for entry in result["files"]:
            assert Path(entry["path"]).stat().st_size == entry["size"]
        assert json.loads((tmp_path / "out" / "rehearsal.json").read_bytes())["verdict"] == "passed"

    def test_a_carry_that_spoils_cached_answers_fails_where_they_are_compared(self, staged: World) -> None:
        staged.carry("spoil", {"vllm/fault.py": "FAULT = 'stale-cache'\n"})
        status, result = rehearse(staged, *QUICK)
        assert status == VerdictError.exit_code
        assert verdicts(result) == {"boot": "passed", "prefix": "failed"}
        assert result["checks"][1]["signature"].startswith("prefix: ")

    def test_a_server_that_does_not_start_fails_with_a_signature_that_repeats(self, staged: World) -> None:
        staged.carry("broken", {"vllm/fault.py": "FAULT = 'does-not-start'\n"})
        seen = set()
        for seed in "12":
            status, result = rehearse(staged, *QUICK, "--seed", seed)
            assert status == VerdictError.exit_code
            assert verdicts(result) == {"boot": "failed", "prefix": "undecided"}
            seen.add(result["checks"][0]["signature"])
        (signature,) = seen
        assert "ImportError: cannot import name 'gone_#'" in signature

    def test_speculation_is_skipped_where_the_unpatched_wheel_cannot_either(self, world: World) -> None:
        world.list_carries([])
        stage(world, rehearsed(changes=(("vllm/fault.py", "FAULT = 'does-not-start'\n"),)))
        world.carry("mend", {"vllm/fault.py": "FAULT = ''\n"})
        _, result = rehearse(world, "--checks", "boot,speculation")
        assert verdicts(result) == {"boot": "passed", "speculation": "skipped"}
        started = [event for event in world.events() if event["kind"] == "server.started"]
        assert len(started) == 2
        _, again = rehearse(world, "--checks", "boot,speculation", "--seed", "1")
        assert verdicts(again) == verdicts(result)
        assert sum(event["kind"] == "server.started" for event in world.events()) == 1


class TestReleases:
    def test_an_older_wheel_serves_the_revisions_of_the_release_that_was_wanted(self, staged: World) -> None:
        written = staged.carry("faulty", {"vllm/fault.py": "FAULT = 'does-not-start'\n"})
        assert rehearse(staged, *QUICK)[0] == VerdictError.exit_code
        staged.release = rehearsed("1.3.0")
        staged.offer(staged.release)
        staged.good("lock", "bump", "1.3.0")
        healthy = staged.carry("healthy", {"vllm/fault.py": "FAULT = ''\n"}, listed=False)
        own, other = (tomlkit.parse((one / "carry.toml").read_text()) for one in (written, healthy))
        own["revision"].append(other["revision"][0])
        (written / "carry.toml").write_text(tomlkit.dumps(own))
        (healthy / "1.3.0.patch").rename(written / "1.3.0.patch")
        shutil.rmtree(healthy)
        status, result = rehearse(staged, *QUICK)
        assert (status, result["version"], result["exact"]) == (0, "1.2.0", False)
        assert any("1.3.0" in text and "1.2.0" in text for text in result["statements"])

    def test_a_recorded_wheel_serves_without_a_network_and_may_not_change(self, staged: World) -> None:
        staged.offer(rehearsed("1.3.0"))
        name, data = cpu_wheel(rehearsed("1.3.0"))
        staged.index.add(name, data)
        assert rehearse(staged, *QUICK, "--onto", "1.3.0")[0] == 0
        asked = len(staged.index.requests)
        status, result = rehearse(staged, *QUICK, "--onto", "1.3.0", "--offline", "--seed", "1")
        assert (status, result["version"], len(staged.index.requests)) == (0, "1.3.0", asked)
        (recorded,) = staged.store.records.glob("cpu-wheel/*/1.3.0-*.json")
        staged.store.drop(json.loads(recorded.read_text())["sha256"], "a test")
        for folder in (staged.store.toolchains / "packages").iterdir():
            folder.rename(staged.folder / folder.name)
        staged.index.add(name, data + b"\n")
        status, result = rehearse(staged, *QUICK, "--onto", "1.3.0", "--seed", "2")
        assert status == DigestError.exit_code

    def test_no_wheel_at_all_is_refused(self, staged: World) -> None:
        staged.offer(rehearsed("1.1.0"))
        status, result = rehearse(staged, *QUICK, "--onto", "1.1.0")
        assert (status, result["error"]["kind"]) == (RehearsalError.exit_code, "RehearsalError")


class TestRefusals:
    def test_a_lock_without_the_table(self, world: World) -> None:
        status, result = rehearse(world, *QUICK)
        assert (status, result["error"]["kind"]) == (RehearsalError.exit_code, "RehearsalError")
        assert "[rehearsal]" in result["error"]["because"]

    def test_an_unknown_check(self, staged: World) -> None:
        status, _ = rehearse(staged, "--checks", "boot,none-such")
        assert status == UnknownNameError.exit_code

    def test_a_package_without_a_model(self, staged: World) -> None:
        data = model_wheel(name="tiny.txt")
        sha256 = staged.index.add("llm_tiny-0.1-py3-none-any.whl", data)
        lock = (staged.root / "upstream.lock").read_text()
        old = staged.release.lock.rehearsal
        assert old is not None
        lock = lock.replace(old.model.sha256, sha256).replace(
            f"size = {old.model.size}", f"size = {len(data)}"
        )
        (staged.root / "upstream.lock").write_text(lock)
        status, result = rehearse(staged, *QUICK)
        assert (status, result["error"]["kind"]) == (RehearsalError.exit_code, "RehearsalError")
        assert not list(staged.store.models.glob("*/*.bin"))


class TestResuming:
    def test_killed_it_leaves_no_server_and_goes_on(self, staged: World, tmp_path: Path) -> None:
        staged.carry("slow", {"vllm/entrypoints/cli/main.py": SERVE.replace('"600"', '"60"')})
        journal = tmp_path / "out" / "plain" / "journal.jsonl"
        child = staged.start("rehearse", *QUICK, "--out", tmp_path / "out")

        def measured() -> int:
            text = journal.read_text() if journal.exists() else ""
            return sum('"kind":"cell"' in line for line in text.splitlines())

        stopped(child, signal.SIGKILL, measured)
        before = measured()
        result = staged.good("rehearse", "--json", *QUICK, "--out", tmp_path / "out")
        assert result.json["verdict"] == "passed"
        cells = [line for line in journal.read_text().splitlines() if '"kind":"cell"' in line]
        assert len(cells) == len({json.loads(line)["id"] for line in cells})
        assert len(cells) > before

    def test_a_finished_one_starts_no_server_and_needs_its_environment_and_tree(
        self, staged: World, tmp_path: Path
    ) -> None:
        staged.good("rehearse", *QUICK, "--out", tmp_path / "out")
        staged.good("rehearse", *QUICK, "--out", tmp_path / "out")
        assert not [event for event in staged.events() if event["kind"] == "server.started"]
        readies = list(staged.store.environments.glob("*/ready.json"))
        for ready in readies:
            ready.rename(ready.with_name("away"))
        status, result = rehearse(staged, *QUICK, "--offline", "--seed", "1")
        assert (status, result["error"]["kind"]) == (RehearsalError.exit_code, "RehearsalError")
        for ready in readies:
            ready.with_name("away").rename(ready)
        staged.carry("more", {"vllm/more.py": "MORE = 1\n"})
        status, _ = rehearse(staged, *QUICK, "--out", tmp_path / "out")
        assert status == ConfigError.exit_code


class TestEvidence:
    def test_a_passed_rehearsal_is_attached_to_the_wheels_of_its_tree(self, staged: World) -> None:
        staged.good("wheel", "--allow-unproved", "words")
        status, _ = rehearse(staged, *QUICK)
        assert status == 0
        (path,) = staged.dist.glob("evidence/*/rehearsal.json")
        evidence = json.loads(path.read_bytes())
        assert path.parent.name == evidence["wheel"] == sha256(staged.wheels[0])
        assert evidence["detail"]["checks"] == {"boot": "passed", "prefix": "passed"}
        assert (evidence["detail"]["exact"], evidence["detail"]["complete"]) == (True, False)
        path.unlink()
        staged.carry("more", {"vllm/words.py": "WORDS = ('due',)\n"}, listed=False)
        staged.list_carries(["more"])
        assert rehearse(staged, *QUICK)[0] == 0
        assert not list(staged.dist.glob("evidence/*/rehearsal.json"))

    def test_a_wheel_is_rehearsed_by_its_own_record(self, staged: World) -> None:
        staged.good("wheel", "--allow-unproved", "words", "--platform", "x86_64")
        (path,) = staged.wheels
        moved = path.rename(staged.folder / path.name)
        ran = staged.good("rehearse", *QUICK, moved)
        assert f"evidence rehearsal, attached to {moved.name}" in ran.out
        assert len(list(staged.dist.glob("evidence/*/rehearsal.json"))) == 1
        assert staged.call("rehearse", *QUICK, moved, "--onto", "1.2.0").status == ConfigError.exit_code

    def test_a_wheel_of_another_build_spec_is_refused(self, staged: World) -> None:
        staged.good("wheel", "--allow-unproved", "words")
        staged.carry("more", {"vllm/more.py": "MORE = 1\n"})
        ran = staged.call("rehearse", *QUICK, staged.wheels[0])
        assert (ran.status, "merges into the tree" in ran.err) == (ConfigError.exit_code, True)

    def test_on_an_older_release_it_is_evidence_of_another_kind(self, staged: World) -> None:
        later = rehearsed("1.3.0")
        staged.offer(later)
        staged.good("lock", "bump", "1.3.0")
        staged.good("wheel", "--allow-unproved", "words")
        ran = staged.good("rehearse", *QUICK, staged.wheels[0])
        assert f"evidence rehearsal-older, attached to {staged.wheels[0].name}" in ran.out
        (path,) = staged.dist.glob("evidence/*/rehearsal*.json")
        evidence = json.loads(path.read_bytes())
        assert (path.name, evidence["kind"]) == ("rehearsal-older.json", "rehearsal-older")
        assert (evidence["detail"]["version"], evidence["detail"]["exact"]) == ("1.2.0", False)
