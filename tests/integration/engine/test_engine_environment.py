"""Locked runtimes by the real uv and the real installer, from a folder of wheels: no index is asked."""

import platform
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import wheelkit
from wheelkit import plain_wheel

from sparkwright.base.errors import ConfigError, LockMismatchError, NotInStoreError, ServerError
from sparkwright.distributed.tasks import bring_files
from sparkwright.engine.environment import (
    OfferedWheel,
    Sources,
    plan_environment,
    prepare,
    wheel_requirements,
)
from sparkwright.engine.installed import read_installed
from sparkwright.engine.runtime import find_runtime, locked_requirements, requirements_of, resolve_runtime
from sparkwright.lock.runtime import format_runtime, parse_runtime, read_runtime
from sparkwright.publish.index import describe, publish, runtime_page, runtimes_in
from sparkwright.recipes.recipe import Recipe
from sparkwright.store.paths import Store
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.runner import run_task
from sparkwright.verify.setup import environment_of

MACHINE = platform.machine()
RECIPE = Recipe(format=1, name="r", title="R", model="m")


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the packages `alpha`, which needs `beta`, `gamma` and fillers of other machines."""
    folder = tmp_path / "offered"
    plain_wheel(folder, "alpha", "1.5", "beta<3")
    plain_wheel(folder, "beta", "2.0")
    plain_wheel(folder, "beta", "3.0")
    for machine in ("aarch64", "x86_64"):
        plain_wheel(folder, "gamma", "1.0", tag=f"py3-none-manylinux_2_28_{machine}")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    return folder


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    tag = f"py3-none-manylinux_2_28_{MACHINE}"
    requires = ("alpha>=1", "gamma==1.0", "delta; extra == 'bench'")
    return plain_wheel(tmp_path / "dist", "vllm", "0.24.0+spark.1", *requires, tag=tag)


@pytest.fixture
def patchsets(tmp_path: Path, offered: Path, wheel: Path) -> Path:
    """A folder with the runtime of the wheel, locked."""
    folder = tmp_path / "patchsets"
    folder.mkdir()
    runtime = resolve_runtime(requirements_of(wheel), MACHINE, offline=True)
    text = format_runtime(runtime, release="0.24.0", machine=MACHINE)
    (folder / f"0.24-{MACHINE}.requirements.txt").write_text(text)
    return folder


@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
def test_it_is_resolved_for_each_machine_on_any_machine(offered: Path, machine: str) -> None:
    runtime = resolve_runtime(["alpha>=1", "gamma"], machine, offline=True)
    assert [(one.name, one.version) for one in runtime.packages] == [
        ("alpha", "1.5"), ("beta", "2.0"), ("gamma", "1.0"),
    ]  # fmt: skip
    (gamma,) = (one for one in runtime.packages if one.name == "gamma")
    own = offered / f"gamma-1.0-py3-none-manylinux_2_28_{machine}.whl"
    assert gamma.hashes == (wheelkit.sha256(own),)


def test_an_override_resolves_what_cannot_be_met(offered: Path) -> None:
    with pytest.raises(NotInStoreError, match="beta"):
        resolve_runtime(["beta>=9"], "aarch64", offline=True)
    runtime = resolve_runtime(["beta>=9"], "aarch64", offline=True, overrides=["beta>=3"])
    assert [(one.name, one.version) for one in runtime.packages] == [("beta", "3.0")]
    assert runtime.overrides == ("beta>=3",)


def test_it_installs_exactly_what_is_locked_and_once(store, wheel, patchsets, offered, tmp_path):
    plain_wheel(offered, "alpha", "1.9")  # newer, and not locked
    sources = Sources(store, patchsets)
    installed = prepare(wheel, RECIPE, sources, offline=True)
    assert installed.requirements.runtime == read_runtime(next(patchsets.iterdir())).digest
    assert read_installed(installed.python).version == "0.24.0+spark.1"
    packages = next(installed.python.parents[1].glob("lib/python*/site-packages"))
    assert sorted(path.name for path in packages.glob("*.dist-info")) == [
        "alpha-1.5.dist-info", "beta-2.0.dist-info", "gamma-1.0.dist-info", "vllm-0.24.0+spark.1.dist-info",
    ]  # fmt: skip
    made = (installed.python.parents[1] / "pyvenv.cfg").stat().st_mtime_ns
    copy = tmp_path / "elsewhere" / wheel.name
    copy.parent.mkdir()
    copy.write_bytes(wheel.read_bytes())
    for same in (wheel, copy):
        assert prepare(same, RECIPE, sources, offline=True).python == installed.python
    assert (installed.python.parents[1] / "pyvenv.cfg").stat().st_mtime_ns == made, "it was not made again"


def test_a_locked_override_is_installed(store, offered, tmp_path):
    plain_wheel(offered, "epsilon", "1.0", "beta>=9")
    wheel = plain_wheel(tmp_path / "d", "vllm", "0.24.0", "epsilon", tag=f"py3-none-manylinux_2_28_{MACHINE}")
    runtime = resolve_runtime(requirements_of(wheel), MACHINE, offline=True, overrides=["beta>=3"])
    (tmp_path / f"0.24-{MACHINE}.requirements.txt").write_text(
        format_runtime(runtime, release="0.24.0", machine=MACHINE)
    )
    made = prepare(wheel, RECIPE, Sources(store, tmp_path), offline=True)
    assert list(made.python.parents[1].glob("lib/python*/site-packages/beta-3.0.dist-info"))


def test_unlocked_it_is_another_environment(store, wheel, patchsets, offered):
    plain_wheel(offered, "alpha", "1.9")
    sources = Sources(store, patchsets)
    installed = prepare(wheel, RECIPE, sources, locked=False, offline=True)
    assert installed.requirements.runtime == ""
    assert list(installed.python.parents[1].glob("lib/python*/site-packages/alpha-1.9.dist-info"))
    assert installed.python != plan_environment(OfferedWheel(wheel), RECIPE, sources).python


def test_verify_measures_what_is_served(store, wheel, patchsets, monkeypatch):
    monkeypatch.setenv("SPARKWRIGHT_HOME", str(store.home))
    (patchsets.parent / "upstream.lock").touch()
    monkeypatch.chdir(patchsets.parent)
    verified, identity = environment_of(str(wheel), RECIPE, "wheel", offline=True)
    assert verified == prepare(wheel, RECIPE, offline=True)
    locked = read_runtime(next(patchsets.iterdir())).digest
    assert (identity["wheel-runtime"], identity["wheel"]) == (locked, wheelkit.sha256(wheel))
    _, promoted = runtime_page(describe(wheel)[0], runtimes_in(patchsets))
    assert parse_runtime(promoted.decode(), "promoted").digest == locked
    unlocked, other = environment_of(str(wheel), RECIPE, "wheel", locked=False, offline=True)
    assert unlocked.python != verified.python
    assert "wheel-runtime" not in other


def test_the_runtime_goes_along_to_a_host_without_a_checkout(store, wheel, patchsets, tmp_path, monkeypatch):
    (patchsets.parent / "upstream.lock").touch()
    monkeypatch.chdir(patchsets.parent)
    sent = run_task(store, VerifyOptions(wheel=str(wheel), recipe="smoke"), "run").files
    there = tmp_path / "there"
    assert bring_files(store, sent, there)
    (copied,) = there.glob("wheel/*.whl")
    here = prepare(wheel, RECIPE, Sources(store, patchsets), offline=True)
    assert (
        prepare(copied, RECIPE, Sources(store), offline=True).requirements.runtime
        == here.requirements.runtime
    )
    alone = run_task(store, VerifyOptions(wheel=str(wheel), recipe="smoke", unlocked=True), "run").files
    assert not [one for one in alone if one.path.endswith(".txt")]


def test_two_at_once_make_one(store: Store, wheel: Path, patchsets: Path) -> None:
    sources = Sources(store, patchsets)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: prepare(wheel, RECIPE, sources, offline=True), range(2)))
    assert found[0].python == found[1].python
    assert read_installed(found[0].python).version == "0.24.0+spark.1"
    assert len(list(store.environments.glob("*/pyvenv.cfg"))) == 1


def test_a_service_keeps_its_own(store: Store, wheel: Path, patchsets: Path, tmp_path: Path) -> None:
    own = prepare(wheel, RECIPE, Sources(store, patchsets, folder=tmp_path / "service"), offline=True)
    assert own.python.parents[2] == tmp_path / "service"


def test_a_file_with_another_digest_is_refused(store: Store, wheel: Path, patchsets: Path) -> None:
    (path,) = patchsets.iterdir()
    text = path.read_text()
    found = re.search(r"beta==2.0 --hash=sha256:([0-9a-f]{64})", text)
    assert found is not None
    path.write_text(text.replace(found[1], "0" * 64))
    with pytest.raises(ServerError, match=r"(?i)hash mismatch"):
        prepare(wheel, RECIPE, Sources(store, patchsets), offline=True)


def test_a_missing_package_is_refused(store: Store, wheel: Path, patchsets: Path) -> None:
    (path,) = patchsets.iterdir()
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("gamma")))
    with pytest.raises(LockMismatchError, match=r"gamma==1\.0"):
        wheel_requirements(OfferedWheel(wheel), patchsets)
    path.write_text("".join(line for line in lines if not line.startswith("beta")))
    with pytest.raises(
        ServerError, match="beta"
    ):  # required by another package, so that the installer sees it
        prepare(wheel, RECIPE, Sources(store, patchsets), offline=True)


def test_a_wheel_without_a_runtime_is_refused(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no locked runtime"):
        find_runtime(wheel, tmp_path)


class TestPublished:
    def test_the_runtime_stands_beside_the_wheel_and_is_taken_first(self, wheel, patchsets):
        publish(wheel.parent, runtimes=runtimes_in(patchsets))
        beside = find_runtime(wheel, patchsets)
        assert beside == wheel.with_name(f"{wheel.name.removesuffix('.whl')}.requirements.txt")
        whole = read_runtime(beside)
        assert [one.name for one in whole.packages] == ["vllm", "alpha", "beta", "gamma"]
        assert whole.packages[0].hashes == (wheelkit.sha256(wheel),)
        assert "alpha==1.5" in locked_requirements(wheel, beside).text

    def test_one_of_another_wheel_is_refused(self, wheel: Path, patchsets: Path) -> None:
        publish(wheel.parent, runtimes=runtimes_in(patchsets))
        tag = wheel.name.removesuffix(".whl").split("-", 2)[2]
        other = plain_wheel(wheel.parent / "other", "vllm", "0.24.0+spark.1", "alpha", tag=tag)
        wheel.write_bytes(other.read_bytes())
        with pytest.raises(LockMismatchError, match="is not of"):
            locked_requirements(wheel, find_runtime(wheel))

    def test_it_is_written_once(self, wheel: Path, patchsets: Path) -> None:
        folder, runtimes = wheel.parent, runtimes_in(patchsets)
        publish(folder, runtimes=runtimes)
        lock = next(folder.rglob(f"{wheel.name[:-4]}.requirements.txt"))
        before = lock.stat()
        publish(folder, runtimes=runtimes)
        assert lock.stat().st_ino == before.st_ino
