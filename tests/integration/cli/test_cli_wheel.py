"""``sparkwright wheel`` from nothing to an index, and again from the store."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit import seed_environment
from tiny_release import ALIGNED, CLAMPED
from wheelkit import sha256, unpack
from world import CLAMP_PROBE, World

from sparkwright.base.digests import sha256_file
from sparkwright.lock.runtime import beside
from sparkwright.probe.environment import requirements
from sparkwright.publish.evidence import install_command
from sparkwright.store.disk import remove_tree


def ours(world: World, name: str) -> Any:
    """One JSON file in the metadata folder of the only wheel."""
    (wheel,) = world.wheels
    (text,) = (data for path, data in unpack(wheel).items() if path.endswith(f".dist-info/{name}"))
    return json.loads(text)


def test_from_nothing_to_an_index_that_pip_takes(world: World) -> None:
    ran = world.run("wheel")
    assert ran.status == 0, ran.said
    (wheel,) = world.wheels
    files = unpack(wheel)
    assert files["vllm/clamp.py"].decode() == CLAMPED
    assert files["vllm/align.py"].decode() == ALIGNED
    assert f"sha256   {sha256(wheel)}" in ran.out
    assert "pip install" not in ran.out, "never without a locked runtime"
    assert "next     sparkwright lock runtime --series " in ran.out
    assert "kernels  upstream's" in ran.out
    taken = world.folder / "taken"
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "download", "--no-deps"]
    pip += ["--only-binary=:all:", "--platform", "manylinux_2_28_aarch64", "--dest", str(taken)]
    pip += ["--index-url", (world.dist / "simple").as_uri(), "vllm"]
    subprocess.run(pip, check=True, capture_output=True)
    assert sha256(taken / wheel.name) == sha256(wheel)


def test_the_next_line_installs_with_the_locked_runtime_where_there_is_one(tmp_path: Path) -> None:
    placed = tmp_path / "vllm-1.2.0-py3-none-any.whl"
    beside(placed).touch()
    told = install_command(placed)
    options = f"--no-deps --require-hashes --find-links {tmp_path}"
    assert told == f"pip install {options} -r {tmp_path}/vllm-1.2.0-py3-none-any.requirements.txt"


def test_the_record_has_the_runner_of_the_revision(world: World) -> None:
    world.list_carries(["align"])
    lock = world.release.lock
    based = {
        "release": lock.release.version,
        "sdist-sha256": lock.sdist.sha256,
        "patch": f"{lock.release.version}.patch",
        "runner": "v2",
    }
    world.carry("clamp", {"vllm/clamp.py": CLAMPED}, probe=CLAMP_PROBE, runner="v1", revision=[based])
    world.good("wheel")
    named = {carry["name"]: carry["runner"] for carry in ours(world, "sparkwright/carries.json")["carries"]}
    assert named == {"align": "both", "clamp": "v2"}


def test_again_is_all_from_the_store(world: World) -> None:
    world.good("wheel")
    before, digest = world.index.requests.copy(), sha256(world.wheels[0])
    listing = world.listing()
    ran = world.good("wheel", "--json")
    assert world.index.requests == before, "nothing is asked of the network"
    assert set(world.steps().values()) == {"found"}
    programs = [shlex.split(event["argv"])[0] for event in world.events() if event["kind"] == "process.ended"]
    assert set(programs) <= {"git"}
    assert world.listing() == listing, "and nothing is written"
    assert ran.json["sha256"] == digest


@pytest.mark.usefixtures("proved")
def test_one_step_that_is_gone_is_made_again_alone(world: World) -> None:
    locked = world.root / "patchsets" / "1.2-aarch64.requirements.txt"
    locked.write_text(f"torch==2.0 --hash=sha256:{'a' * 64}\n")
    world.good("wheel")
    digest = sha256(world.wheels[0])
    world.wheels[0].unlink()
    world.good("wheel")
    made = [step for step, how in world.steps().items() if how == "made"]
    assert made == ["place"]
    assert sha256(world.wheels[0]) == digest
    (requirements_file,) = world.dist.glob("*.requirements.txt")
    for page in (world.dist / "simple" / "vllm" / "index.html", requirements_file):
        whole = page.read_bytes()
        page.unlink()
        world.good("wheel")
        assert [step for step, how in world.steps().items() if how == "made"] == ["index"]
        assert page.read_bytes() == whole
    locked.write_text(locked.read_text().replace("2.0", "2.1"))
    world.good("wheel")
    assert "torch==2.1" in requirements_file.read_text()


@pytest.mark.parametrize(
    ("umask", "environment"), [(0o077, {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "USER": "somebody"})]
)
def test_two_machines_give_the_same_bytes(world: World, umask: int, environment: dict[str, str]) -> None:
    world.good("wheel")
    digests = {wheel.name: sha256(wheel) for wheel in world.wheels}
    remove_tree(world.dist)
    world.new_store("another store")
    old = os.umask(umask)
    try:
        ran = world.run("wheel", **environment)
    finally:
        os.umask(old)
    assert ran.status == 0, ran.said
    assert {wheel.name: sha256(wheel) for wheel in world.wheels} == digests


@pytest.mark.usefixtures("proved")
def test_an_edited_title_gives_the_same_bytes_on_a_warm_store_and_a_cold_one(world: World) -> None:
    world.good("wheel")
    path = world.root / "carries" / "clamp" / "carry.toml"
    text = path.read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("title = "))
    path.write_text(text.replace(line, 'title = "Say it in other words"'))
    world.good("wheel")
    (warm,) = (sha256(wheel) for wheel in world.wheels)
    remove_tree(world.dist)
    world.new_store("another store")
    world.good("wheel")
    assert [sha256(wheel) for wheel in world.wheels] == [warm]


def test_proofs_of_another_environment_give_the_same_bytes(world: World) -> None:
    world.record_proofs()
    world.good("wheel")
    (first,) = world.wheels
    digest = sha256(first)
    for path in (world.root / "carries").glob("*/proofs/*.json"):
        proof = json.loads(path.read_text())
        path.write_text(json.dumps({**proof, "environment": {**proof["environment"], "torch": "2.13.0"}}))
    kept = first.rename(world.folder / first.name)
    world.new_store("another store", probes=False)
    world.good("wheel")
    assert [sha256(wheel) for wheel in world.wheels] == [digest]
    world.good("audit", str(kept))


def test_the_wheel_says_what_it_is_made_of(world: World) -> None:
    world.record_proofs()
    summary = world.good("wheel", "--json").json
    point = ours(world, "sparkwright/point.json")
    assert point["version"] == summary["version"] == f"1.2.0+spark.0.{summary['point'][:8]}"
    assert (point["digest"], point["platform"]) == (summary["point"], "aarch64")
    assert point["point"]["pin"]["sdist"] == world.release.lock.sdist.sha256
    carries = ours(world, "sparkwright/carries.json")["carries"]
    assert [(carry["name"], carry["outcome"]) for carry in carries] == [
        ("clamp", "applied"),
        ("align", "applied"),
    ]
    recorded = json.loads((world.root / "carries" / "clamp" / "proofs" / "1.2.0.json").read_text())
    assert carries[0]["proof"]["key"] == recorded["key"]
    assert carries[0]["proof"]["verdict"] == "proved"
    for carry in carries:
        patch = world.root / "carries" / carry["name"] / carry["patch"]["file"]
        assert carry["patch"]["sha256"] == sha256_file(patch)
    providers = {entry["member"]: entry["provider"] for entry in ours(world, "sparkwright/providers.json")}
    assert providers == {"vllm/_C.abi3.so": "upstream-wheel", "vllm/vllm-rs": "upstream-wheel"}
    text = "".join(
        json.dumps(ours(world, f"sparkwright/{name}.json")) for name in ("point", "carries", "providers")
    )
    bill = ours(world, "sboms/sparkwright.cdx.json")
    assert bill["metadata"]["component"]["version"] == point["version"]
    assert str(world.folder) not in text + json.dumps(bill)


class TestRecordedProofs:
    """What lies beside the carry spares the environment for probes, as long as it holds."""

    @pytest.fixture
    def proved(self, world: World) -> World:
        """A checkout with recorded proofs, and a machine that has never run a probe."""
        world.record_proofs()
        world.new_store("fresh", probes=False)
        return world

    def test_no_environment_is_needed(self, proved: World) -> None:
        proved.good("wheel")
        assert not any(proved.store.environments.glob("*"))
        assert not any(proved.store.trees.iterdir()), "no tree was checked out either"
        assert proved.steps()["prove clamp"] == "found"

    @pytest.mark.parametrize("what", ["probe", "blob"])
    def test_they_are_remade_when_something_changed(self, proved: World, what: str) -> None:
        if what == "probe":
            probe = proved.root / "carries" / "clamp" / "probe.py"
            probe.write_text(probe.read_text() + "\n# looks again\n")
        else:
            clamped = CLAMPED.replace("min(value, LIMIT)", "LIMIT if value > LIMIT else value")
            proved.list_carries(["align"])
            proved.carry("clamp", {"vllm/clamp.py": clamped}, probe=CLAMP_PROBE)
        proved.good("merge")
        ran = proved.call("wheel", "--offline")
        assert (ran.status, "environment for probes" in ran.err) == (20, True)
        seed_environment(proved.store, requirements())
        proved.good("wheel")
        assert proved.steps()["prove clamp"] == "made"
        assert proved.steps()["prove align"] == "found"


def test_proving_twice_records_the_same_bytes(world: World) -> None:
    ran = world.good("carry", "prove")
    assert ran.out.count("proved") == 2
    proofs = {path: path.read_bytes() for path in world.root.glob("carries/*/proofs/*.json")}
    assert len(proofs) == 2
    world.new_store("another store")
    world.good("carry", "prove", "clamp")
    world.good("carry", "prove", "align")
    assert {path: path.read_bytes() for path in proofs} == proofs
    assert str(world.folder) not in "".join(data.decode() for data in proofs.values())


class TestOffline:
    def test_with_a_cold_store_what_is_missing_is_named(self, world: World) -> None:
        for words, missing in (
            (["wheel"], "vllm-1.2.0.tar.gz"),
            (["merge", "--onto", "1.3.0"], "the sdist of vllm 1.3.0"),
            (["carry", "prove"], "vllm-1.2.0.tar.gz"),
            (["lock", "check"], "vllm-1.2.0-cp38-abi3-manylinux_2_28_aarch64.whl"),
            (["wheel", "--source", "https://localhost/vllm.git"], world.release.lock.release.commit),
        ):
            ran = world.call(*words, "--offline")
            assert ran.status == 20, ran.said
            assert missing in ran.err
            assert "run once without --offline" in ran.err
        assert world.index.requests == []
