"""``lock bump`` to commits, and wheels for a commit: from git and upstream's wheel, without a compiler."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from commit_kit import CommitIndex, SmallUpstream, members
from packaging.version import Version
from tiny_release import CLAMPED
from world import Ran, World

from sparkwright.base.errors import AuditError, ConfigError, LockMismatchError, NativeInputsError

pytestmark = pytest.mark.usefixtures("proved")

LATER = {"vllm/words.py": "WORDS = ()\n", "vllm/new.py": "NEW = True\n", "vllm/old.py": None}
ONE = ("--platform", "aarch64")


@pytest.fixture
def upstream(tmp_path: Path) -> SmallUpstream:
    return SmallUpstream(tmp_path / "upstream")


@pytest.fixture
def wheels(tmp_path: Path, world: World) -> Iterator[CommitIndex]:
    with CommitIndex(tmp_path / "served") as running:
        world.environment["SPARKWRIGHT_UPSTREAM_WHEELS"] = running.url
        yield running


def version_of(commit: str, number: int = 1) -> str:
    return f"1.2.1.dev{number}+g{commit[:9]}"


@pytest.fixture
def commit(upstream: SmallUpstream, wheels: CommitIndex) -> str:
    """A commit after the release, with wheels."""
    made = upstream.commit("Words (#2)", LATER)
    wheels.offer(upstream, made, version_of(made))
    return made


def pin(world: World, upstream: SmallUpstream, target: str, *words: str) -> Ran:
    return world.call("lock", "bump", target, "--source", str(upstream.folder), *words)


def build(world: World, upstream: SmallUpstream, *words: str) -> Ran:
    return world.call("wheel", "--source", str(upstream.folder), *words)


def lock_of(world: World) -> Any:
    return tomlkit.parse((world.root / "upstream.lock").read_text()).unwrap()


def only_wheel(world: World) -> dict[str, bytes]:
    (path,) = world.wheels
    return members(path)


def point(files: dict[str, bytes]) -> Any:
    return json.loads(next(data for name, data in files.items() if name.endswith("/point.json")))


def test_a_dry_run_shows_a_commit_and_a_bump_writes_it(world, upstream, commit):
    before = (world.root / "upstream.lock").read_bytes()
    shown = pin(world, upstream, commit, "--dry-run")
    assert shown.status == 0, shown.said
    assert (world.root / "upstream.lock").read_bytes() == before
    written = pin(world, upstream, commit, "--json")
    assert written.status == 0, written.said
    lock = lock_of(world)
    tree = upstream.git("rev-parse", f"{commit}^{{tree}}")
    assert lock["release"]["version"] == version_of(commit)
    assert (lock["release"]["commit"], lock["release"]["tree"]) == (commit, tree)
    assert "sdist" not in lock
    for machine in ("aarch64", "x86_64"):
        assert lock["wheels"][machine]["trust"] == "first-download"
        assert lock["wheels"][machine]["commit"] == commit
    assert written.json["pin"]["release"] == lock["release"]
    assert (world.root / "upstream.lock").read_text().startswith("# The pin.\n"), "comments stay"
    assert world.good("lock", "check", "--source", str(upstream.folder), "--json").json["findings"] == []


def test_a_release_is_pinned_again_as_it_was(world: World, upstream: SmallUpstream, commit: str) -> None:
    before = lock_of(world)
    assert pin(world, upstream, commit).status == 0
    ran = pin(world, upstream, "1.2.0")
    assert ran.status == 0, ran.said
    after = lock_of(world)
    after["release"]["requires-python"] = before["release"]["requires-python"]  # spelled in another order
    assert after["release"].pop("commit") == before["release"].pop("commit")[: len("012345678")]
    assert before["release"] == after["release"]
    assert {key: after[key] for key in ("sdist", "wheels")} == {
        key: before[key] for key in ("sdist", "wheels")
    }


def test_a_wheel_for_a_commit_has_its_python_and_the_carries(world, upstream, commit):
    assert pin(world, upstream, commit).status == 0
    planned = world.good("wheel", "--plan", "--source", str(upstream.folder), "--json").json
    ran = build(world, upstream, "--json")
    assert ran.status == 0, ran.said
    assert ran.json["pin"] == planned["pin"] == {
        "commit": commit,
        "wheel": f"vllm-{version_of(commit)}-cp38-abi3-manylinux_2_28_aarch64.whl",
        "wheel-of": commit,
        "trust": "first-download",
    }  # fmt: skip
    assert [carry["proof"] for carry in ran.json["carries"]] == ["proved", "proved"]
    assert ran.json["version"].startswith(f"{version_of(commit)}.spark.0.")
    assert Version(version_of(commit)) < Version(ran.json["version"]) < Version("1.2.1")
    files = only_wheel(world)
    assert files["vllm/clamp.py"].decode() == CLAMPED
    assert files["vllm/words.py"].decode() == LATER["vllm/words.py"]
    assert point(files)["trust"] == "first-download"
    assert point(files)["point"]["pin"]["tree"] == lock_of(world)["release"]["tree"]
    programs = {
        event["argv"].split()[0].rpartition("/")[2]
        for event in world.events()
        if event["kind"] == "process.ended"
    }
    assert not {name for name in programs if name in {"cmake", "ninja", "nvcc", "gcc", "g++", "cc", "c++"}}
    (wheel,) = world.wheels
    audited = world.good("audit", str(wheel), "--source", str(upstream.folder), "--json").json
    assert [one["name"] for one in audited[0]["checks"] if one["verdict"] == "fail"] == []


def test_what_is_pinned_needs_no_network_again(world, upstream, wheels, commit):
    assert pin(world, upstream, commit).status == 0
    first = build(world, upstream, "--json").json
    asked = len(wheels.requests)
    again = build(world, upstream, "--offline", "--json")
    assert again.json["sha256"] == first["sha256"]
    assert set(world.steps().values()) == {"found"}
    assert pin(world, upstream, commit, "--offline").status == 0
    assert len(wheels.requests) == asked


def test_a_clone_by_its_address(world: World, upstream: SmallUpstream, commit: str) -> None:
    assert world.call("lock", "bump", commit, "--source", upstream.address).status == 0
    assert world.call("wheel", "--source", upstream.address).status == 0, "a remote gives it with its history"
    path = world.root / "upstream.lock"
    lock = lock_of(world)
    path.write_text(path.read_text().replace(lock["release"]["git"], upstream.address))
    assert world.call("wheel", "--plan").status == 0, "without --source, the lock's own remote has the commit"
    assert world.call("wheel", "--offline").status == 0


def test_nightly_is_the_newest_commit_with_a_wheel(world, upstream, commit):
    upstream.commit("Not built yet (#3)", {"vllm/words.py": "WORDS = (1,)\n"})
    ran = pin(world, upstream, "nightly", *ONE)
    assert ran.status == 0, ran.said
    assert lock_of(world)["release"]["commit"] == commit
    assert list(lock_of(world)["wheels"]) == ["aarch64"]


def test_a_commit_without_a_wheel_takes_an_ancestors_binaries_and_its_own_python(
    world, upstream, wheels, commit
):
    newest = upstream.commit("Python (#3)", {"vllm/words.py": "WORDS = (3,)\n", "vllm/pad.py": "PAD = 1\n"})
    assert pin(world, upstream, newest, *ONE).status == 0
    lock = lock_of(world)
    assert lock["release"]["version"] == version_of(newest, 2)
    assert lock["wheels"]["aarch64"]["commit"] == commit
    assert world.good("lock", "check", "--source", str(upstream.folder), "--json").json["findings"] == []
    ran = build(world, upstream, "--json")
    assert ran.status == 0, ran.said
    assert ran.json["pin"]["wheel-of"] == commit
    ours, theirs = only_wheel(world), members(wheels.folder / commit / ran.json["pin"]["wheel"])
    wanted = upstream.files(newest)
    for path in (path for path in wanted if path.startswith("vllm/") and path != "vllm/align.py"):
        assert ours[path] == (CLAMPED.encode() if path == "vllm/clamp.py" else wanted[path]), path
    assert ours["vllm/_C.abi3.so"] == theirs["vllm/_C.abi3.so"]
    assert point(ours)["point"]["pin"]["wheels-of"] == {"aarch64": commit}


def test_a_lock_that_names_a_wheel_with_other_native_inputs_is_refused(world, upstream, wheels, commit):
    """The rule holds at the build too, whatever was written into the lock."""
    newest = upstream.commit("Kernels (#3)", {"csrc/kernel.cu": "// another\n"})
    wheels.offer(upstream, newest, version_of(newest, 2))
    assert pin(world, upstream, commit, *ONE).status == 0
    borrowed = lock_of(world)["wheels"]
    assert pin(world, upstream, newest, *ONE).status == 0
    path = world.root / "upstream.lock"
    document = tomlkit.parse(path.read_text())
    document["wheels"] = borrowed
    path.write_text(tomlkit.dumps(document))
    ran = build(world, upstream)
    assert ran.status == NativeInputsError.exit_code
    assert "csrc/kernel.cu" in ran.err
    assert world.wheels == []


def test_a_wheel_whose_python_is_not_its_commits_fails_the_audit(world, upstream, wheels):
    commit = upstream.commit("Words (#2)", LATER)
    wheels.offer(upstream, commit, version_of(commit), changes={"vllm/words.py": b"WORDS = 'planted'\n"})
    assert pin(world, upstream, commit, *ONE).status == 0
    ran = build(world, upstream)
    assert ran.status == AuditError.exit_code
    assert "vllm/words.py" in ran.err
    assert world.wheels == []


def test_a_lock_with_another_tree_is_refused(world: World, upstream: SmallUpstream, commit: str) -> None:
    assert pin(world, upstream, commit, *ONE).status == 0
    path = world.root / "upstream.lock"
    tree = lock_of(world)["release"]["tree"]
    path.write_text(path.read_text().replace(tree, "0" * 40))
    ran = build(world, upstream)
    assert ran.status == LockMismatchError.exit_code
    assert tree in ran.err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tree = ", "# tree = "),
        ('trust = "first-download"\n', ""),
        ('trust = "first-download"', 'trust = "always"'),
        (
            "[wheels.aarch64]",
            '[sdist]\nfilename = "a"\nsha256 = "' + "0" * 64 + '"\nsize = 1\n[wheels.aarch64]',
        ),
    ],
)
def test_a_lock_that_names_its_files_twice_or_not_at_all(world, upstream, commit, old, new):
    assert pin(world, upstream, commit, *ONE).status == 0
    path = world.root / "upstream.lock"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert world.call("wheel", "--plan").status == ConfigError.exit_code


def test_a_carry_is_written_against_a_release(world: World, upstream: SmallUpstream, commit: str) -> None:
    assert pin(world, upstream, commit, *ONE).status == 0
    (world.folder / "a.patch").write_text("")
    ran = world.call("carry", "refresh", "clamp", "--source", str(upstream.folder))
    assert ran.status == ConfigError.exit_code, ran.said
