"""Looking into real device code with the real cuobjdump: a small fat binary, and upstream's own wheel."""

import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import elfkit
import pytest

from sparkwright.git.repository import open_repository
from sparkwright.lock.model import Lock
from sparkwright.native.device_code import Tally, classify, read_device_code
from sparkwright.native.inspection import find_surroundings, inspector_of
from sparkwright.native.packages import unpack_package
from sparkwright.pipeline.checkout import open_checkout
from sparkwright.probe.environment import prepare_environment
from sparkwright.store.paths import open_store
from sparkwright.upstream.download import fetch_artifact
from sparkwright.upstream.network import read_settings
from sparkwright.upstream.releases import Access
from sparkwright.wheel.audit import audit
from sparkwright.wheel.binaries import Expectation, NativeExpectation, inspect_binary
from sparkwright.wheel.kernels import python_members, unneeded
from sparkwright.wheel.source import open_source

pytestmark = [pytest.mark.upstream, pytest.mark.slow]
PLATFORM = "aarch64"


@pytest.fixture(scope="module")
def lock() -> Lock:
    return open_checkout(Path(__file__).parents[3], "0.24").lock


@pytest.fixture(scope="module")
def access() -> Iterator[Access]:
    store = open_store()
    repository = open_repository(store.git)
    yield Access(store, repository, read_settings())
    repository.close()


@pytest.fixture(scope="module")
def stock(lock: Lock, access: Access) -> Path:
    artifact = lock.wheel(PLATFORM)
    fetch_artifact(access.store, artifact, access.settings)
    return access.store.named_file(artifact.sha256, artifact.filename)


def test_real_images_are_told_apart(lock: Lock, access: Access, tmp_path: Path) -> None:
    assert lock.native is not None
    program = inspector_of(lock.native, access).cuobjdump()
    binary = elfkit.shared(tmp_path / "a.so", device=elfkit.FATBIN.read_bytes())
    found = read_device_code(binary, program)
    assert found.cubins == {"sm_120f": 1, "sm_121a": 1, "sm_80": 1}, "the family keeps its suffix"
    assert found.ptx == {"compute_80": 1}
    assert [(group.arches, group.count, group.examples) for group in found.kernels] == [
        (("compute_80", "sm_120f", "sm_121a", "sm_80"), 2, ("_Z3onePf", "_Z3twoPf"))
    ]
    assert classify(found, "12.1a") == Tally(native=2)
    assert classify(found, "12.0") == Tally(native=2)
    assert classify(found, "10.0a") == Tally(ptx=2)
    assert classify(found, "7.5") == Tally(none=2)


def test_the_locks_list_of_unneeded_binaries_is_complete(lock: Lock, access: Access, stock: Path) -> None:
    assert lock.native is not None
    inspector = inspector_of(lock.native, access)
    with open_source(stock) as upstream:
        looks = {
            member: inspect_binary(upstream.archive, member, upstream.listed[member].sha256, inspector)
            for member in upstream.binaries
        }
        binaries = {member: classify(one.device, "12.1a") for member, one in looks.items()}
        left_out = unneeded(python_members(upstream, {}), binaries, lock.native.drop, "12.1a")
    useless = {member for member, tally in binaries.items() if tally.useless}
    assert {one.member for one in left_out} == set(lock.native.drop) == useless


IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


@pytest.mark.walk  # imports torch and vLLM for what the list's reviewer read
def test_modules_that_name_an_unneeded_binary_are_imported_without_it(lock, access, stock, tmp_path):
    """Import them from the wheel's Python, the binaries that stay being empty modules."""
    assert lock.native is not None
    with zipfile.ZipFile(stock) as archive:
        for name in archive.namelist():
            if name.endswith(".py"):
                archive.extract(name, tmp_path)
            elif name.endswith(".so") and name not in lock.native.drop:
                stand_in = tmp_path / name.replace(name[name.index(".") :], ".py")
                stand_in.parent.mkdir(parents=True, exist_ok=True)
                stand_in.touch()
    named = {path for one in lock.native.drop.values() for path in one.named_by}
    named.remove("vllm/third_party/flashmla/flash_mla_interface.py")  # imported only where the binary is
    modules = sorted(path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in named)
    assert "vllm.v1.attention.ops.flashmla" in modules
    python = prepare_environment(access.store)

    def imported(*names: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-c", IMPORT, *names], cwd=tmp_path, check=False, capture_output=True, text=True,
            env={"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), "VLLM_LOGGING_LEVEL": "ERROR"},
        )  # fmt: skip

    done = imported(*modules)
    assert done.returncode == 0, done.stderr[-2000:]
    planted = tmp_path / "vllm" / "v1" / "attention" / "ops" / "flashmla.py"
    planted.write_text("import vllm._flashmla_C\n")
    done = imported("vllm.v1.attention.ops.flashmla")
    assert done.returncode == 1
    assert "_flashmla_C" in done.stderr


def test_upstreams_wheel_holds_nothing_native_and_its_binaries_find_every_symbol(
    lock: Lock, access: Access, stock: Path
) -> None:
    assert lock.native is not None
    for name in ("torch", "cuda-runtime"):
        unpack_package(access, lock.native.toolkit.target[PLATFORM][name])
    native = NativeExpectation(
        "12.1a", inspector_of(lock.native, access), find_surroundings(lock.native, PLATFORM, access.store)
    )
    report = audit(stock, Expectation(stock, lock.wheel(PLATFORM), lock, native=native))
    found = {check.name: check.verdict for check in report.checks}
    assert (found["symbols-resolve"], found["needed-libraries"]) == ("pass", "pass")
    assert (report.kind, [check.name for check in report.failures]) == ("upstream", [])
    assert report.kernels == Tally(native=0, family=5195, ptx=1762, none=1538)
    by_name = {one.member.rpartition("/")[2].partition(".")[0]: one for one in report.binaries}
    assert by_name["_vllm_fa2_C"].kernels == Tally(ptx=1472)
    assert by_name["_moe_C_stable_libtorch"].cubins["sm_120f"] == 22
