"""How CMake is asked to configure upstream's project."""

from pathlib import Path

import pytest
from unit_kit import make_toolchain

from sparkwright.native.configure import Workspace, _abstract, configure_command
from sparkwright.native.model import Toolchain


@pytest.fixture
def chain(tmp_path: Path) -> Toolchain:
    return make_toolchain(tmp_path)


def settings(chain: Toolchain, root: str) -> dict[str, str]:
    words = configure_command(chain, root)
    return dict(word.removeprefix("-D").split("=", 1) for word in words if word.startswith("-D"))


def test_cmake_finds_all_of_cutlass_in_the_work_folder(chain: Toolchain) -> None:
    """For sm_90 upstream's project runs CUTLASS's Python package, which it looks for below CUTLASS_DIR."""
    found = settings(chain, "/build-folder")
    assert found["CUTLASS_DIR"] == "/build-folder/deps/cutlass"
    assert found["CUTLASS_INCLUDE_DIR"] == f"{found['CUTLASS_DIR']}/include"
    assert found["CUTLASS_TOOLS_UTIL_INCLUDE_DIR"] == f"{found['CUTLASS_DIR']}/tools/util/include"


def test_nothing_is_downloaded_and_no_path_of_the_machine_stays_in_what_is_built(chain):
    found = settings(chain, "/build-folder")
    assert found["FETCHCONTENT_FULLY_DISCONNECTED"] == "ON"
    for flags in ("CMAKE_CXX_FLAGS", "CMAKE_CUDA_FLAGS"):
        assert "-ffile-prefix-map=/build-folder=/sparkwright" in found[flags]
    assert found["CMAKE_SKIP_RPATH"] == "ON"


def test_an_object_of_a_source_elsewhere_loses_the_work_folder(chain: Toolchain, tmp_path: Path) -> None:
    """CMake puts the whole path of such a source below its folder for the target."""
    work = Workspace(tmp_path / "w", chain)
    root = tmp_path / "w"
    command = (
        f"nvcc -I{root}/source/csrc -c {root}/deps/q/a.cu -o CMakeFiles/_q.dir{root}/deps/q/a.cu.o "
        f"-DHERE={root}/build"
    )
    words = [_abstract(work, word) for word in command.split()]
    assert words[1:] == [
        "-I{work}/source/csrc", "-c", "{work}/deps/q/a.cu", "-o", "CMakeFiles/_q.dir/deps/q/a.cu.o",
        "-DHERE={work}/build",
    ]  # fmt: skip
