"""``audit``, ``publish``, ``status``, ``doctor`` and ``lock`` through the command line."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import wheelkit
from kit import UpstreamRepository, write_program
from native_kit import native_tables, offer_toolkit, with_native
from tiny_release import make_tiny
from world import World

from sparkwright.lock.model import read_lock


class TestAudit:
    @pytest.fixture
    def wheel(self, world: World) -> Path:
        world.record_proofs()
        world.good("wheel")
        return world.wheels[0]

    def test_tampered(self, world: World, wheel: Path) -> None:
        def change(files: dict[str, bytes]) -> None:
            files["vllm/align.py"] += b"EVIL = True\n"

        spoilt = wheelkit.spoil(wheel, world.folder, change)
        ran = world.call("audit", wheel, spoilt)
        assert ran.status == 50
        assert "members-differ-exactly: vllm/align.py has other bytes than it should" in ran.err
        ran = world.call("audit", spoilt, "--json")
        assert ran.status == 50
        assert ran.json[0]["passed"] is False

    def test_of_another_point(self, world: World, wheel: Path) -> None:
        world.list_carries(["clamp"])
        ran = world.call("audit", wheel)
        assert ran.status == 50
        assert "--allow-skipped" in ran.err
        assert "skipped" in world.good("audit", wheel, "--allow-skipped").out

        def change(files: dict[str, bytes]) -> None:
            files["vllm/_C.abi3.so"] += b"\0"

        spoilt = wheelkit.spoil(wheel, world.folder, change)
        assert world.call("audit", spoilt, "--allow-skipped").status == 50, "what can be checked still counts"

    def test_proofs_that_are_only_in_another_store(self, world: World) -> None:
        world.good("wheel")
        (wheel,) = world.wheels
        world.new_store("another")
        ran = world.call("audit", wheel, "--json")
        (report,) = ran.json
        verdicts = {check["name"]: check for check in report["checks"]}
        assert (ran.status, report["passed"]) == (50, False)
        assert {name for name, check in verdicts.items() if check["verdict"] == "unverified"} == {
            "provenance-agrees"
        }
        assert "clamp" in verdicts["provenance-agrees"]["detail"]
        assert "provenance-agrees" in ran.err
        told = world.good("audit", wheel, "--allow-skipped").out
        assert " unverified " in told
        assert "passed" not in told.splitlines()[-1]
        world.good("carry", "prove")  # made here, the same proofs are known
        assert world.good("audit", wheel, "--json").json[0]["passed"] is True

    def test_upstreams_own(self, world: World, wheel: Path) -> None:
        name = world.release.lock.wheels["x86_64"].filename
        stock = world.folder / name
        stock.write_bytes(world.index.files[name])
        assert world.good("audit", stock, "--json").json[0]["kind"] == "upstream"

        def change(files: dict[str, bytes]) -> None:
            files["vllm/align.py"] += b"EVIL = True\n"

        spoilt = wheelkit.spoil(stock, world.folder / "spoilt", change)
        ran = world.call("audit", spoilt)
        assert ran.status == 50
        assert "upstream-digest" in ran.err

    def test_what_is_no_wheel(self, world: World, wheel: Path) -> None:
        note = world.folder / "note.txt"
        note.write_text("hello")
        ran = world.call("audit", note)
        assert (ran.status, "is not a wheel's file name" in ran.err) == (50, True)
        rubbish = world.folder / "rubbish" / wheel.name
        rubbish.parent.mkdir()
        rubbish.write_bytes(b"PK rubbish")
        ran = world.call("audit", rubbish)
        assert (ran.status, "archive-safe" in ran.err) == (50, True)
        other = world.folder / wheel.name.replace("aarch64", "riscv64")
        shutil.copy(wheel, other)
        ran = world.call("audit", other)
        assert (ran.status, "no wheel for its platform" in ran.err) == (50, True)
        assert world.call("audit", world.folder / "none.whl").status == 2


class TestStatus:
    def rows(self, world: World) -> dict[str, tuple[str, str]]:
        return {
            carry["name"]: (carry["outcome"], carry["proof"])
            for carry in world.good("status", "--json").json["carries"]
        }

    def test_it_says_what_is_known(self, world: World) -> None:
        before = world.listing()
        unknown = ("not merged yet", "unknown")
        assert self.rows(world) == {"clamp": unknown, "align": unknown}
        assert world.listing() == before
        world.good("wheel")
        assert self.rows(world) == {"clamp": ("applied", "holds"), "align": ("applied", "holds")}
        ran = world.good("status")
        assert world.wheels[0].name in ran.out
        assert "torch 2.11.0" in ran.out

    def test_a_proof_that_no_longer_holds(self, world: World) -> None:
        world.record_proofs()
        world.good("wheel")
        probe = world.root / "carries" / "clamp" / "probe.py"
        probe.write_text(probe.read_text() + "# again\n")
        assert self.rows(world) == {"clamp": ("applied", "none"), "align": ("applied", "holds")}


class TestDoctor:
    def verdicts(self, world: World, *words: str) -> dict[str, str]:
        ran = world.call("doctor", "--json", *words)
        found = {finding["what"]: finding["verdict"] for finding in ran.json}
        assert ran.status == (10 if "fail" in found.values() else 0)
        return found

    def test_healthy(self, world: World) -> None:
        found = self.verdicts(world)
        assert found.pop("gpu") in {"pass", "skipped"}
        assert set(found.values()) == {"pass"}
        assert "package index" in world.good("doctor").out
        assert self.verdicts(world, "--offline")["package index"] == "skipped"

    def test_native_kernels_are_looked_at_where_the_lock_has_them(self, world: World) -> None:
        native = native_tables(offer_toolkit(world.index))
        world.pin(dataclasses.replace(world.release, lock=with_native(world.release.lock, native)))
        found = {finding["what"]: finding for finding in world.good("doctor", "--json").json}
        assert {"compiler for aarch64", "cuda toolkit", "disk for kernels", "network isolation"} <= set(found)
        assert all(finding["remedy"] for finding in found.values() if finding["verdict"] == "to do")

    def test_an_index_without_the_release(self, world: World) -> None:
        name = world.release.lock.wheels["x86_64"].filename
        del world.index.files[name]
        ran = world.call("doctor")
        assert ran.status == 10
        assert f"it does not list {name}" in ran.err
        world.index.files.clear()
        assert self.verdicts(world)["package index"] == "fail"

    @pytest.mark.parametrize(
        ("text", "says"),
        [("git version 2.37.9", "is too old"), ("no idea", "is too old"), ("", "'git' was not found")],
    )
    def test_an_old_git_or_none(self, world: World, text: str, says: str) -> None:
        world.good("doctor")  # the store's repository exists, so that nobody asks git for its version before
        folder = world.folder / "bin"
        if text:
            write_program(folder / "git", f"echo {text}")
        world.environment["PATH"] = str(folder)
        assert self.verdicts(world)["git"] == "fail"
        world.new_store("cold", probes=False)
        ran = world.call("doctor")
        assert (ran.status, says in ran.err) == (10, True), ran.said


class TestLock:
    @pytest.fixture
    def pinned(self, world: World) -> World:
        """A lock that is right about everything, and a git remote that agrees."""
        repository = UpstreamRepository(world.folder / "upstream.git")
        commit = repository.commit("Release", world.release.tree)
        repository.git("tag", "v1.2.0")
        world.pin(make_tiny(git=repository.address, commit=commit))
        later = repository.commit("Release again", {"README.md": "vLLM!\n"})
        repository.git("tag", "v1.3.0")
        world.offer(make_tiny("1.3.0", git=repository.address, commit=later))
        return world

    def test_check_finds_what_is_wrong(self, pinned: World) -> None:
        path = pinned.root / "upstream.lock"
        path.write_text(path.read_text().replace('torch = "2.11.0"', 'torch = "2.12.0"'))
        ran = pinned.call("lock", "check")
        assert ran.status == 10
        assert "release.torch: the lock has 2.12.0, but 2.11.0" in ran.err
        ran = pinned.call("lock", "check", "--json")
        assert ran.status == 10
        assert {finding["key"] for finding in ran.json["findings"]} == {"release.torch"}

    def compiling(self, world: World, **changes: object) -> None:
        """Give the lock tables to compile kernels by."""
        native = native_tables(offer_toolkit(world.index), **changes)
        world.pin(dataclasses.replace(world.release, lock=with_native(world.release.lock, native)))

    def test_check_of_the_native_tables(self, pinned: World) -> None:
        self.compiling(pinned)
        assert "the [native] tables fit it, torch and each other" in pinned.good("lock", "check").out
        self.compiling(pinned, release="1.1.0")
        ran = pinned.call("lock", "check", "--json")
        assert ran.status == 10
        assert [finding["key"] for finding in ran.json["findings"]] == ["native.release"]

    def test_bump_moves_the_native_tables_and_lists_what_is_to_decide(self, pinned: World) -> None:
        self.compiling(pinned)
        path = pinned.root / "upstream.lock"
        before = path.read_text()
        shown = pinned.good("lock", "bump", "1.3.0", "--dry-run", "--json").json
        assert path.read_text() == before
        assert pinned.good("lock", "bump", "1.3.0", "--json").json == shown
        assert [decision["key"] for decision in shown["decisions"]] == ["native.extensions._C"]
        assert all(decision["command"] for decision in shown["decisions"])
        native = read_lock(path).native
        assert (native.release, native.measured, native.extensions) == ("1.3.0", "1.2.0", {})
        pinned.good("lock", "check")

    def test_a_bump_whose_toolkit_cannot_be_had_writes_nothing(self, pinned: World) -> None:
        self.compiling(pinned)
        before = (pinned.root / "upstream.lock").read_text()
        for name in [name for name in pinned.index.files if name.startswith("torch-")]:
            del pinned.index.files[name]
        assert pinned.call("lock", "bump", "1.3.0").status == 20
        assert pinned.call("lock", "bump", "1.3.0", "--copy", "nothing").status == 2
        assert (pinned.root / "upstream.lock").read_text() == before


class TestPatchset:
    def test_a_working_state_is_built_and_not_released(self, world: World) -> None:
        ran = world.call("wheel", "--released", "--json")
        assert (ran.status, ran.json["error"]["kind"]) == (10, "ConfigError"), ran.said
        assert world.wheels == []
        assert "sparkwright patchset bump --patchset spark" in ran.said
        working = world.good("wheel", "--json").json
        world.good("patchset", "bump")
        released = world.good("wheel", "--released", "--json").json
        assert released["version"] == working["version"].replace("+spark.0.", "+spark.1.")
        assert released["point"] == working["point"]
        assert len(world.wheels) == 2
