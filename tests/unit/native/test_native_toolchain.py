"""A toolchain is found, made and named by what it is made of, with wheels and compilers in miniature."""

import os
import shutil
import stat
import sys
from pathlib import Path

import msgspec
import pytest
from native_kit import CU, HERE, OTHER, Machine, make_wheel, native_tables, offer, offer_toolkit, with_native
from small_release import make_release
from upstream_kit import make_access, offline

from sparkwright.base.errors import ConfigError, LockMismatchError, NotInStoreError, ToolError
from sparkwright.base.process.run import run
from sparkwright.native.host import find_compiler, find_python_headers
from sparkwright.native.model import Target
from sparkwright.native.toolchain import (
    configure_environment,
    find_toolchain,
    prepare_toolchain,
    toolchain_file,
)

pytest_plugins = ["package_access"]

RELEASE = make_release()
NATIVE, CROSS = Target(HERE, "12.1a"), Target(OTHER, "12.1a")


@pytest.fixture
def toolkit(index):
    return offer_toolkit(index)


@pytest.fixture
def lock(toolkit):
    return with_native(RELEASE.lock, native_tables(toolkit))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path / "bin")
    made.add("g++")
    made.add(f"{OTHER}-linux-gnu-g++-13", OTHER)
    (made.folder / "git").symlink_to(shutil.which("git"))
    monkeypatch.setenv("PATH", str(made.folder))
    return made


def with_toolkit(lock, **changes):
    return with_native(lock, native_tables(msgspec.structs.replace(lock.native.toolkit, **changes)))


def test_the_layout_is_the_classic_one(lock, access, machine):
    chain = prepare_toolchain(lock, CROSS, access)
    cuda = chain.cuda
    for name in ("nvcc", "ptxas", "cudafe++", "fatbinary", "nvlink"):
        assert (cuda / "bin" / name).stat().st_mode & stat.S_IXUSR
        assert not (
            cuda / "bin" / name
        ).is_symlink()  # nvcc takes the folder that it lies in for the toolkit's
    assert (cuda / "nvvm" / "bin" / "cicc").is_file()
    assert (cuda / "include" / "crt" / "host_config.h").is_file()
    assert (cuda / "include" / "cublas_v2.h").read_text() == "// cublas"
    assert (cuda / "include" / "cuda.h").read_text() == "// cuda"  # the target's, not the builder's
    for name in ("libcudart.so.13", "libcudart.so", "libcublas.so.13", "libcublas.so", "libnvrtc.so"):
        assert (cuda / "lib64" / name).is_file()
    assert (cuda / "lib64" / "libcudart.so").read_text() == "cudart"
    assert "-Wl,-soname,libcublas.so.13" in (cuda / "lib64" / "libcublas.so").read_text()
    assert "-Wl,-soname,libcuda.so.1" in (cuda / "lib64" / "stubs" / "libcuda.so").read_text()
    assert (cuda / "lib64" / "stubs" / "libnvidia-ml.so").is_file()
    names = ["aarch64-linux", "sbsa-linux"] if OTHER == "aarch64" else ["x86_64-linux"]
    assert sorted(path.name for path in (cuda / "targets").iterdir()) == names
    for name in names:
        assert (cuda / "targets" / name / "include" / "cuda.h").is_file()
        assert (cuda / "targets" / name / "lib" / "libcudart.so").is_file()
    assert not [path for path in cuda.rglob("*") if path.is_symlink() and path.readlink().is_absolute()]


def test_what_it_consists_of(lock, access, machine):
    chain = prepare_toolchain(lock, CROSS, access)
    assert chain.cross
    assert (chain.torch / "include" / "ATen" / "ATen.h").is_file()
    assert not (chain.torch / "__init__.py").exists()
    assert chain.cxx == machine.folder / f"{OTHER}-linux-gnu-g++-13"
    assert chain.cc == machine.folder / f"{OTHER}-linux-gnu-gcc-13"
    assert (chain.cmake.read_text(), chain.ninja.read_text()) == ("cmake", "ninja")
    assert (chain.python_include / "Python.h").is_file()
    assert chain.python == Path(sys.executable)
    assert {
        "nvcc": "13.0.88",
        "torch": "2.11.0",
        "g++": "(Tiny 13.2.0-1) 13.2.0",
    }.items() <= chain.parts.items()
    assert chain.parts["glibc"] == "2.39"
    tables = (lock.native.toolkit.builder[HERE], lock.native.toolkit.target[OTHER])
    assert chain.packages == {one.filename: one.sha256 for table in tables for one in table.values()}
    native = prepare_toolchain(lock, NATIVE, access)
    assert (native.cross, native.cxx.name) == (False, "g++")
    assert native.key != chain.key


def test_a_toolchain_for_other_kernels_has_no_torch_and_takes_an_older_compiler(toolkit, access, machine):
    demanding = with_native(RELEASE.lock, native_tables(toolkit, oldest_gxx="14"))
    with pytest.raises(ToolError, match="no C\\+\\+ compiler"):
        prepare_toolchain(demanding, CROSS, access)
    chain = prepare_toolchain(demanding, CROSS, access, torchless=True)
    assert (chain.cuda / "bin" / "nvcc").is_file()
    assert list(chain.torch.iterdir()) == []
    assert "torch" not in chain.parts
    assert not [name for name in chain.packages if name.startswith("torch-")]
    assert (
        chain.key != prepare_toolchain(with_native(RELEASE.lock, native_tables(toolkit)), CROSS, access).key
    )


def test_the_stand_in_answers_cmake(lock, access, machine):
    """What upstream's CMake files ask, asked as they do."""
    chain = prepare_toolchain(lock, CROSS, access)
    env = configure_environment(chain, CROSS, Path("/w"), lock)
    script = (
        "import torch, os, jinja2; from torch.utils.cpp_extension import COMMON_NVCC_FLAGS\n"
        "print(torch.utils.cmake_prefix_path, ';'.join(COMMON_NVCC_FLAGS), os.path.dirname(torch.__file__),"
        " torch.__version__, jinja2.name)"
    )
    said = run([sys.executable, "-c", script], env=env).text
    assert said == "/w/torch/share/cmake -DA;--b /w/torch 2.11.0 jinja2"


def test_it_is_found_once_it_was_made(lock, access, machine, index):
    assert find_toolchain(lock, CROSS, access) is None
    made = prepare_toolchain(lock, CROSS, access)
    before = len(index.requests)
    assert find_toolchain(lock, CROSS, access) == made
    assert prepare_toolchain(lock, CROSS, access) == made
    assert len(index.requests) == before
    assert prepare_toolchain(lock, CROSS, offline(access)) == made
    with pytest.raises(NotInStoreError):
        prepare_toolchain(lock, NATIVE, offline(access))
    assert not list(access.store.scratch_root.iterdir())


def test_looking_for_it_changes_nothing(lock, access, machine):
    before = sorted(access.store.home.rglob("*"))
    assert find_toolchain(lock, CROSS, access) is None
    (machine.folder / "g++").unlink()
    assert find_toolchain(lock, NATIVE, access) is None
    assert sorted(access.store.home.rglob("*")) == before


def test_the_key_knows_content_and_no_place(lock, access, machine, tmp_path, monkeypatch, index):
    key = prepare_toolchain(lock, CROSS, access).key
    elsewhere = Machine(tmp_path / "elsewhere")
    elsewhere.add(f"{OTHER}-linux-gnu-g++-13", OTHER)
    monkeypatch.setenv("PATH", f"{elsewhere.folder}:{machine.folder}")
    other = make_access(tmp_path / "other-home", index.url)
    chain = prepare_toolchain(lock, CROSS, other)
    assert chain.cxx.parent == elsewhere.folder
    assert chain.key == key
    other.repository.close()


def changed_package(lock, index):
    table = {**lock.native.toolkit.builder[HERE]}
    files = {f"{CU}/nvvm/bin/cicc": "another", f"{CU}/nvvm/libdevice/libdevice.10.bc": "BC"}
    table["nvvm"] = offer(index, f"nvvm_pkg-13.0.89-py3-none-manylinux_2_28_{HERE}.whl", make_wheel(files))
    return with_toolkit(lock, builder={**lock.native.toolkit.builder, HERE: table})


def changed_folders(lock, index):
    table = {**lock.native.toolkit.target[OTHER]}
    table["torch"] = msgspec.structs.replace(table["torch"], folders=(*table["torch"].folders, "torch/share"))
    return with_toolkit(lock, target={**lock.native.toolkit.target, OTHER: table})


def without(lock, name):
    """The lock with another wheel under *name*."""
    table = {**lock.native.toolkit.builder[HERE]}
    table[name] = msgspec.structs.replace(table[name], folders=(f"{CU}/bin",))
    return with_toolkit(lock, builder={**lock.native.toolkit.builder, HERE: table})


CHANGES = {
    "package": (changed_package, True),
    "folders": (changed_folders, True),
    "link-only": (lambda lock, index: with_toolkit(lock, link_only=("libcublas.so.13",)), True),
    "cuobjdump": (lambda lock, index: without(lock, "cuobjdump"), False),
    "the other machine": (
        lambda lock, index: with_toolkit(lock, target={OTHER: lock.native.toolkit.target[OTHER]}), False,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "decides"), CHANGES.values(), ids=CHANGES.keys())
def test_what_decides_is_in_the_key_and_nothing_else(lock, access, machine, index, change, decides):
    changed = prepare_toolchain(change(lock, index), CROSS, access).key
    assert (changed != prepare_toolchain(lock, CROSS, access).key) is decides


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("banner", "(Tiny 13.2.0-2) 13.2.0"), ("binutils", "GNU assembler (Tiny) 2.43"), ("glibc", "2 40")],
)
def test_the_compiler_is_in_the_key(lock, access, machine, attribute, value):
    key = prepare_toolchain(lock, CROSS, access).key
    setattr(machine, attribute, value)
    machine.add(f"{OTHER}-linux-gnu-g++-13", OTHER)
    assert prepare_toolchain(lock, CROSS, access).key != key


# Compilers ---------------------------------------------------------------------------------


def test_the_newest_cross_compiler_that_fits_is_taken(machine):
    assert find_compiler(CROSS).version == (13, 2, 0)
    machine.add(f"{OTHER}-linux-gnu-g++-12", OTHER, banner="(Tiny) 12.3.0")
    assert find_compiler(CROSS).version == (13, 2, 0)
    machine.add(f"{OTHER}-linux-gnu-g++-14", OTHER, banner="(Tiny) 14.1.0")
    assert find_compiler(CROSS).cxx.name.endswith("-14")
    (machine.folder / f"{OTHER}-linux-gnu-gcc-14").unlink()  # no C compiler beside it
    assert find_compiler(CROSS).version == (13, 2, 0)


@pytest.mark.parametrize(
    ("banner", "machine_name", "why"),
    [
        ("(Tiny) 11.2.0", HERE, "11.2.0, and 11.3 is the oldest"),
        ("(Tiny) 16.1.0", HERE, "16.1.0, and nvcc supports none after 15"),
        ("who knows", HERE, "no version"),
        ("(Tiny) 13.2.0", "mips64", "compiles for mips64"),
    ],
)
def test_a_compiler_that_will_not_do(machine, banner, machine_name, why):
    machine.add("g++", machine_name, banner=banner)
    with pytest.raises(ToolError, match=f"no C\\+\\+ compiler for {HERE}") as caught:
        find_compiler(NATIVE)
    assert why in caught.value.because
    machine.add("g++-14", banner="(Tiny) 14.2.0")
    assert find_compiler(NATIVE).cxx.name == "g++-14"


def test_a_real_compiler_finds_its_own_headers():
    if shutil.which("g++") is None or shutil.which("gcc") is None:
        pytest.skip("there is no g++")
    found = find_compiler(NATIVE).headers
    assert [path for path in found if Path(path, "vector").is_file()]
    assert not [path for path in found if path.startswith("/usr/local")]


def test_no_compiler_at_all(machine, lock, access):
    (machine.folder / f"{OTHER}-linux-gnu-g++-13").unlink()
    with pytest.raises(ToolError) as caught:
        prepare_toolchain(lock, CROSS, access)
    assert f"apt install g++-{OTHER.replace('_', '-')}-linux-gnu" in caught.value.next_step


def test_python_without_headers(machine, tmp_path):
    bare = machine.script("python", f"echo {tmp_path}; echo 3.12")
    with pytest.raises(ToolError, match="headers of Python") as caught:
        find_python_headers(bare)
    assert "apt install python3.12-dev" in caught.value.next_step
    (tmp_path / "Python.h").touch()
    assert find_python_headers(bare).folder == tmp_path


# The lock ----------------------------------------------------------------------------------


def test_a_lock_without_the_tables_or_for_another_release(lock, access, machine):
    with pytest.raises(ConfigError, match="cannot be compiled"):
        prepare_toolchain(RELEASE.lock, CROSS, access)
    stale = with_native(RELEASE.lock, native_tables(lock.native.toolkit, release="1.1.0"))
    for look in (prepare_toolchain, find_toolchain):
        with pytest.raises(LockMismatchError, match="for another release"):
            look(stale, CROSS, access)


def test_packages_that_make_no_toolkit(lock, access, machine):
    table = {name: package for name, package in lock.native.toolkit.builder[HERE].items() if name != "nvvm"}
    with pytest.raises(ToolError, match="CUDA toolkit") as caught:
        prepare_toolchain(with_toolkit(lock, builder={HERE: table}), CROSS, access)
    assert "nvvm/bin/cicc" in caught.value.because
    assert not (access.store.toolchains / "made").exists()


# What CMake is told ------------------------------------------------------------------------


def settings_of(text):
    return dict(line.removeprefix("set(").removesuffix('")').split(' "') for line in text.splitlines())


def test_the_toolchain_file(lock, access, machine):
    work = Path("/work folder")
    native = settings_of(toolchain_file(prepare_toolchain(lock, NATIVE, access), NATIVE, work))
    assert native == {
        "CMAKE_C_COMPILER": str(machine.folder / "gcc"),
        "CMAKE_CXX_COMPILER": str(machine.folder / "g++"),
        "CMAKE_CUDA_COMPILER": "/work folder/cuda/bin/nvcc",
        "CMAKE_CUDA_HOST_COMPILER": str(machine.folder / "g++"),
    }
    cross = settings_of(toolchain_file(prepare_toolchain(lock, CROSS, access), CROSS, work))
    assert cross["CMAKE_SYSTEM_PROCESSOR"] == OTHER
    assert cross["CMAKE_SYSTEM_NAME"] == "Linux"
    assert cross["CMAKE_CROSSCOMPILING_EMULATOR"] == "/usr/bin/env"


def test_the_environment_is_made_from_nothing(lock, access, machine, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", "/elsewhere")
    monkeypatch.setenv("CXXFLAGS", "-march=native")
    chain = prepare_toolchain(lock, CROSS, access)
    env = configure_environment(chain, CROSS, Path("/w"), lock)
    assert env == {
        "PATH": os.environ["PATH"],
        "HOME": "/w/build",
        "TMPDIR": "/w/build",
        "LC_ALL": "C",
        "TZ": "UTC",
        "SOURCE_DATE_EPOCH": "946684800",
        "CUDA_TOOLKIT_ROOT": "/w/cuda",
        "CUDA_HOME": "/w/cuda",
        "CUDACXX": "/w/cuda/bin/nvcc",
        "CUDAHOSTCXX": str(chain.cxx),
        "TORCH_CUDA_ARCH_LIST": "12.1a",
        "PYTHONPATH": str(chain.stand_in),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SPARKWRIGHT_TORCH": "/w/torch",
        "VLLM_CUTLASS_SRC_DIR": "/w/deps/cutlass",
        "QUACK_SRC_DIR": "/w/deps/quack",
    }
