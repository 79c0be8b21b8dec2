"""The lock's toolchain and sources as they really are, fetched once into the user's store."""

import re
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from sparkwright.base.errors import ToolError
from sparkwright.base.process.run import run
from sparkwright.git.repository import open_repository
from sparkwright.lock.check import check_native
from sparkwright.native.host import find_compiler
from sparkwright.native.inspection import inspector_of
from sparkwright.native.model import Target
from sparkwright.native.sources import gather_sources
from sparkwright.native.toolchain import configure_environment, find_toolchain, prepare_toolchain
from sparkwright.pipeline.checkout import open_checkout
from sparkwright.store.paths import open_store
from sparkwright.upstream.evidence import gather_cuda
from sparkwright.upstream.index import find, project_of
from sparkwright.upstream.network import read_settings
from sparkwright.upstream.releases import Access

pytestmark = pytest.mark.upstream

LOCK = open_checkout(Path(__file__).parents[3], "0.24").lock
TARGET = Target("aarch64", LOCK.native.arch)
KERNEL = """\
__global__ void scale(float *out, float by) { out[threadIdx.x] *= by; }
extern "C" void launch(float *out) { scale<<<1, 32>>>(out, 2.0f); }
"""


@pytest.fixture(scope="module")
def access():
    store = open_store()
    access = Access(store, open_repository(store.git), read_settings())
    yield access
    access.repository.close()


@pytest.fixture(scope="module")
def toolchain(access):
    try:
        find_compiler(TARGET)
    except ToolError as error:
        pytest.skip(f"{error}: {error.next_step}")
    return prepare_toolchain(LOCK, TARGET, access)


def packages():
    toolkit = LOCK.native.toolkit
    tables = [*toolkit.builder.values(), *toolkit.target.values()]
    sources = [pin.package for pin in LOCK.native.sources.values() if pin.package]
    return [toolkit.release, *sources, *(package for table in tables for package in table.values())]


@pytest.mark.slow
def test_every_package_is_on_the_index_with_the_locks_digest(access):
    listed = {
        file.filename: file.sha256
        for project, version in {(project_of(package.filename), package.version) for package in packages()}
        for file in find(project, version, access.settings)
    }
    named = {package.filename: package.sha256 for package in packages()}
    assert len(named) > 25
    assert named.items() <= listed.items()


def test_cutlass_comes_from_a_package_and_says_its_version(access):
    (found,) = gather_sources(LOCK, access, wanted=["cutlass"]).values()
    assert found.at_hand
    assert found.tree == LOCK.native.sources["cutlass"].tree
    assert found.origin == "flashinfer_python 0.6.9"
    files = access.repository.files(found.tree)
    text = access.repository.blob(files["include/cutlass/version.h"].blob).decode()
    numbers = [re.search(rf"#define CUTLASS_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH")]
    assert "v" + ".".join(numbers) == LOCK.sources["cutlass"].ref


@pytest.mark.slow
def test_the_tables_fit_what_torch_and_cuda_ask_for(access, toolchain):
    assert check_native(LOCK, gather_cuda(access, LOCK)) == []
    assert find_toolchain(LOCK, TARGET, access) == toolchain


@pytest.mark.slow
def test_a_kernel_is_compiled_for_the_card_and_linked_for_the_target(access, toolchain, tmp_path):
    (tmp_path / "cuda").symlink_to(toolchain.cuda)
    (tmp_path / "k.cu").write_text(KERNEL)
    (tmp_path / "build").mkdir()  # temporary files are made there
    env = configure_environment(toolchain, TARGET, tmp_path, LOCK)
    options = [
        "-ccbin",
        str(toolchain.cxx),
        f"-arch={TARGET.sm}",
        "-Xcompiler=-fPIC",
        "-cudart=shared",
        "-shared",
    ]
    run([tmp_path / "cuda/bin/nvcc", *options, "k.cu", "-o", "k.so"], cwd=tmp_path, env=env)
    with (tmp_path / "k.so").open("rb") as stream:
        elf = ELFFile(stream)
        assert elf.get_machine_arch() == "AArch64"
        needed = [tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
    assert "libcudart.so.13" in needed
    cuobjdump = inspector_of(LOCK.native, access).cuobjdump()
    listed = run([cuobjdump, "--list-elf", tmp_path / "k.so"], env=env).text
    assert set(re.findall(r"\.(sm_\w+)\.cubin", listed)) == {TARGET.sm}


def test_the_programs_run(toolchain):
    assert run([toolchain.cmake, "--version"]).text.startswith("cmake version 3.31")
    assert run([toolchain.ninja, "--version"]).text.startswith("1.13")
