"""An installed toolkit, torch and tools are taken where they are asked for and will do."""

import shutil
import sys

import msgspec
import pytest
from native_kit import HERE, OTHER, Machine, native_tables, offer_toolkit, with_native
from small_release import make_release

from sparkwright.base.errors import ToolError
from sparkwright.native.installed import find_tool, find_toolkit, find_torch
from sparkwright.native.model import Target
from sparkwright.native.toolchain import find_toolchain, prepare_toolchain

pytest_plugins = ["package_access"]

NATIVE, CROSS = Target(HERE, "12.1a"), Target(OTHER, "12.1a")


@pytest.fixture
def toolkit(index):
    return offer_toolkit(index)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path / "bin")
    made.add("g++")
    made.add(f"{OTHER}-linux-gnu-g++", OTHER)
    (made.folder / "git").symlink_to(shutil.which("git"))
    monkeypatch.setenv("PATH", str(made.folder))
    return made


@pytest.fixture
def installed(tmp_path):
    """A CUDA toolkit as its installer leaves it, for this machine and another."""
    cuda = Machine(tmp_path / "cuda-13.0" / "bin")
    cuda.script("nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")
    root = cuda.folder.parent
    programs = ("nvcc.profile", "cudafe++", "fatbinary", "ptxas", "nvlink", "cuobjdump")
    files = [f"bin/{name}" for name in programs]
    files += ["nvvm/bin/cicc", "nvvm/libdevice/libdevice.10.bc"]
    files += [
        f"include/{name}.h" for name in ("cuda_runtime", "cublas_v2", "cusolverDn", "cusparse", "deep/x")
    ]
    other = "sbsa-linux" if OTHER == "aarch64" else f"{OTHER}-linux"
    for folder in ("lib64", f"targets/{other}/lib"):
        files += [f"{folder}/lib{name}.so" for name in ("cudart", "cublas", "nvrtc")]
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def torch_for(machine, version, *, record="torch/__init__.py,sha256=abc,1\n"):
    """An interpreter with a torch that nobody may import."""
    site = machine.folder.parent / f"site-{version}"
    for path, text in {
        "torch/__init__.py": "raise RuntimeError('imported')\n",
        "torch/include/ATen/ATen.h": "// ATen",
        "torch/utils/cpp_extension.py": "COMMON_NVCC_FLAGS = ['-DINSTALLED']\n",
        f"torch-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        f"torch-{version}.dist-info/RECORD": record,
    }.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    # -I would hide a folder that PYTHONPATH names; a site folder of the interpreter's own it does not.
    lines = f"import sys; sys.path.insert(0, {str(site)!r}); exec(sys.argv.pop(1))"
    python = machine.script(f"python-{version}", f'shift; shift; exec {sys.executable} -I -c "{lines}" "$@"')
    return python, site


def test_an_installed_toolkit_is_described(installed, toolkit, machine):
    found = find_toolkit(installed, NATIVE, toolkit)
    assert (found.folder, found.version) == (installed, "13.0.88")
    assert find_toolkit(installed, NATIVE, toolkit) == found
    assert find_toolkit(installed, CROSS, toolkit).folder == installed


@pytest.mark.parametrize("name", ["bin/ptxas", "nvvm/bin/cicc", "include/deep/x.h", "lib64/libcudart.so"])
def test_its_digest_covers_what_compiles(installed, toolkit, machine, name):
    before = find_toolkit(installed, NATIVE, toolkit).digest
    (installed / name).write_text("another")
    assert find_toolkit(installed, NATIVE, toolkit).digest != before


@pytest.mark.parametrize(
    "name", ["bin/nvlink", "nvvm/bin/cicc", "include/cusparse.h", "lib64/libcudart.so", "lib64/libnvrtc.so"]
)
def test_an_incomplete_toolkit(installed, toolkit, machine, name):
    (installed / name).unlink()
    with pytest.raises(ToolError, match="no whole CUDA toolkit") as caught:
        find_toolkit(installed, NATIVE, toolkit)
    assert caught.value.because == f"it lacks {name}"


def test_a_toolkit_without_the_targets_libraries(installed, toolkit, machine):
    shutil.rmtree(installed / "targets")
    find_toolkit(installed, NATIVE, toolkit)
    with pytest.raises(ToolError, match=f"for {OTHER}"):
        find_toolkit(installed, CROSS, toolkit)


def test_a_toolkit_of_another_version(installed, toolkit, machine):
    with pytest.raises(ToolError, match="not the one that the lock names") as caught:
        find_toolkit(installed, NATIVE, msgspec.structs.replace(toolkit, cuda="13.1"))
    assert caught.value.because == "its nvcc is 13.0.88, and the lock has 13.1"


def test_torch_is_found_without_importing_it(machine):
    python, site = torch_for(machine, "2.11.0")
    assert find_torch(python, "2.11.0").folder == site / "torch"
    assert find_torch(python, "2.12.0") is None
    local, _ = torch_for(machine, "2.11.0+cu130")
    assert find_torch(local, "2.11.0") is not None
    (site / "torch/include/ATen/ATen.h").unlink()
    assert find_torch(python, "2.11.0") is None
    assert find_torch(machine.script("python-none", "exit 1"), "2.11.0") is None


def test_torch_is_known_by_its_record(machine):
    python, site = torch_for(machine, "2.11.0")
    before = find_torch(python, "2.11.0").digest
    (site / "torch-2.11.0.dist-info/RECORD").write_text("torch/__init__.py,sha256=def,1\n")
    assert find_torch(python, "2.11.0").digest != before


@pytest.mark.parametrize(
    ("banner", "found"),
    [("cmake version 3.31.10", "3.31.10"), ("cmake version 3.25.1", None), ("no idea", None)],
)
def test_cmake_has_to_be_new_enough(machine, banner, found):
    assert find_tool("cmake") is None
    machine.script("cmake", f"echo '{banner}'")
    tool = find_tool("cmake")
    assert (tool and tool[1]) == found


def test_what_is_installed_is_taken_instead_of_packages(installed, toolkit, machine, access, index):
    lock = with_native(make_release().lock, native_tables(toolkit))
    machine.script("cmake", "echo 'cmake version 3.30.0'")
    packaged = prepare_toolchain(lock, NATIVE, access)
    index.requests.clear()
    python, site = torch_for(machine, "2.11.0")
    assert find_toolchain(lock, NATIVE, access, system=installed, python=python) is None
    chain = prepare_toolchain(lock, NATIVE, access, system=installed, python=python)
    assert index.requests == []
    assert chain.cuda == installed
    assert chain.torch == site / "torch"
    assert chain.cmake == machine.folder / "cmake"
    assert chain.ninja == packaged.ninja  # none is installed
    assert chain.key != packaged.key
    assert "['-DINSTALLED']" in (chain.stand_in / "torch/utils/cpp_extension.py").read_text()
    assert find_toolchain(lock, NATIVE, access, system=installed, python=python) == chain
    cross = prepare_toolchain(lock, CROSS, access, system=installed, python=python)
    assert cross.torch != chain.torch  # what runs here is not what the target has
    assert cross.cuda == installed
