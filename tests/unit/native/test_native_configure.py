"""How CMake is asked to configure upstream's project."""

from dataclasses import replace
from pathlib import Path

import pytest
from kit import make_tree
from native_case import lock_of
from unit_kit import make_toolchain

from sparkwright.git.repository import Repository
from sparkwright.git.trees import FileEntry, patch_tree
from sparkwright.lock.model import Artifact, SourcePin
from sparkwright.native import configure
from sparkwright.native.configure import (
    Workspace,
    _abstract,
    configuration_key,
    configure_command,
    native_tree,
    open_workspace,
)
from sparkwright.native.model import Inputs, SourceTree, Target, Toolchain


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


# The tree that is compiled, the folder that it is laid out in, and what configuring depends on


@pytest.fixture
def toolchain(tmp_path: Path) -> Toolchain:
    """Folders with one file each; nothing here starts a program."""
    made = replace(make_toolchain(tmp_path), cross=True)
    for folder in (made.cuda, made.torch, made.python_include):
        (folder / "there").touch()
    return made


LOCK = lock_of(Artifact(filename="v.whl", sha256="0" * 64, size=1))
UPSTREAM = {
    "CMakeLists.txt": "project(tiny)",
    "cmake/utils.cmake": "# helpers",
    "csrc/kernel.cu": "one",
    "csrc/generate.py": "print()",
    "vllm/__init__.py": "",
    "setup.py": "",
}
HEADERS = {"include/math.h": "#define M 1"}
ATTENTION = {"CMakeLists.txt": "# attention", "csrc/attention.cu": "two"}
PINS = {
    "headers": SourcePin(ref="v1", tree="0" * 40, paths=("include",)),
    "attention": SourcePin(ref="v1", tree="0" * 40, paths=("csrc",)),
    "above-headers": SourcePin(ref="v1", tree="0" * 40, paths=("include",), mount="attention:csrc/headers"),
}


@pytest.fixture
def inputs(repository: Repository, toolchain: Toolchain) -> Inputs:
    trees = {"headers": HEADERS, "attention": ATTENTION, "above-headers": HEADERS}
    sources = {
        name: SourceTree(name=name, tree=make_tree(repository, files), origin="made here")
        for name, files in trees.items()
    }
    return Inputs(make_tree(repository, UPSTREAM), sources, toolchain, Target("aarch64", "12.1a"))


def test_the_compiled_tree_holds_native_inputs_and_dependencies_and_nothing_else(repository, inputs):
    assert set(repository.files(native_tree(repository, inputs, PINS))) == {
        "source/CMakeLists.txt",
        "source/cmake/utils.cmake",
        "source/csrc/kernel.cu",
        "source/csrc/generate.py",
        "deps/headers/include/math.h",
        "deps/attention/CMakeLists.txt",
        "deps/attention/csrc/attention.cu",
        "deps/attention/csrc/headers/include/math.h",
    }


def key_after(repository: Repository, inputs: Inputs, change: dict[str, bytes | None]) -> str:
    files = {path: None if data is None else FileEntry("100644", data) for path, data in change.items()}
    tree = patch_tree(repository, native_tree(repository, inputs, PINS), files)
    return configuration_key(repository, tree, inputs, LOCK)


@pytest.mark.parametrize(
    ("change", "reconfigures"),
    [
        ({"source/csrc/kernel.cu": b"edited"}, False),
        ({"deps/headers/include/math.h": b"#define M 2"}, False),
        ({"source/CMakeLists.txt": b"project(other)"}, True),
        ({"source/csrc/generate.py": b"print(1)"}, True),
        ({"source/csrc/added.cu": b""}, True),
        ({"source/csrc/kernel.cu": None}, True),
        ({"deps/attention/CMakeLists.txt": b"# other"}, True),
    ],
    ids=[
        "kernel", "header", "project", "generator", "added kernel", "removed kernel", "a dependency's project"
    ],
)  # fmt: skip
def test_what_cmake_reads_or_lists_configures_anew_and_nothing_else(repository, inputs, change, reconfigures):
    assert (key_after(repository, inputs, change) != key_after(repository, inputs, {})) is reconfigures


def test_target_toolchain_and_arguments_configure_anew_and_places_do_not(
    repository, inputs, tmp_path, monkeypatch
):
    chain = inputs.toolchain
    elsewhere = replace(chain, cmake=tmp_path / "usr/bin/cmake", cuda=tmp_path / "opt/cuda")
    before = key_after(repository, inputs, {})
    assert key_after(repository, replace(inputs, toolchain=elsewhere), {}) == before
    for changes in (
        {"target": Target("aarch64", "9.0a")},
        {"target": Target("x86_64", "12.1a")},
        {"toolchain": replace(chain, key="another")},
    ):
        assert key_after(repository, replace(inputs, **changes), {}) != before

    def command(*given: object) -> list[str]:
        return [*configure_command(*given), "-DCMAKE_UNITY_BUILD=ON"]  # type: ignore[arg-type]

    monkeypatch.setattr(configure, "configure_command", command)
    assert key_after(repository, inputs, {}) != before


def test_a_workspace_is_laid_out_and_taken_away(store, repository, inputs, toolchain):
    tree = native_tree(repository, inputs, PINS)
    with open_workspace(store, repository, tree, toolchain) as work:
        root = work.root
        assert (work.source / "csrc/kernel.cu").read_text() == "one"
        assert (root / "deps/attention/csrc/headers/include/math.h").is_file()
        assert all((root / name / "there").is_file() for name in ("cuda", "torch", "python"))
        assert list(work.build.iterdir()) == []
        (work.source / "csrc/generated.cu").write_text("")  # configuring writes beside the sources
    assert not root.exists()
    assert (toolchain.cuda / "there").is_file(), "what links led to was removed"


def test_commands_name_no_place(store, repository, inputs, toolchain):
    tree = native_tree(repository, inputs, PINS)
    told = []
    for _ in range(2):
        with open_workspace(store, repository, tree, toolchain) as work:
            line = f"{work.root}/cuda/bin/nvcc -I{work.source}/csrc -L{toolchain.torch.resolve()}/lib"
            told.append(work.abstract(line))
            assert Path(work.expand(tuple(told[-1].split()))[0]) == work.root / "cuda/bin/nvcc"
    assert told == ["{work}/cuda/bin/nvcc -I{work}/source/csrc -L{work}/torch/lib"] * 2
