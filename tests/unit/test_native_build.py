"""From sources to an extension in the store, with the real gcc and a CMake that only writes down commands."""

from __future__ import annotations

import ctypes
import shutil
import stat
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest
from kit import Recorder
from native_case import lock_of
from native_kit import HERE
from unit_kit import make_toolchain

from sparkwright.base.events import subscribe
from sparkwright.git import FileEntry, import_files, patch_tree
from sparkwright.lock import Artifact
from sparkwright.lock.native import ExtensionSpec, SourcePin
from sparkwright.native.build import Builder, build_extension, configured, forecast
from sparkwright.native.model import Inputs, SourceTree, Target
from sparkwright.store import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from sparkwright.git import Repository
    from sparkwright.store import Store

UPSTREAM = {
    "CMakeLists.txt": "project(tiny)",
    "csrc/ops.c": "int lib(void);\nint ops(void) { return 10 + lib(); }\n",
    "vllm/__init__.py": "",
}
LIB = {"src/lib.c": '#include "lib.h"\nint lib(void) { return LIB; }\n', "src/lib.h": "#define LIB 2\n"}
# A source outside the project gets its object below its whole path, as real CMake does it.
CMAKE = """\
import json, os, sys
build = os.getcwd()
work = os.path.dirname(build)
sources = [work + "/source/csrc/ops.c", work + "/deps/lib/src/lib.c"]
objects = ["CMakeFiles/_C.dir/csrc/ops.c.o", "CMakeFiles/_C.dir" + sources[1] + ".o"]
commands = [
    {"file": file, "output": output,
     "command": f"gcc -fPIC -ffile-prefix-map={work}=/sparkwright -o {output} -c {file}"}
    for file, output in zip(sources, objects)
]
with open("compile_commands.json", "w") as stream:
    json.dump(commands, stream)
with open("link", "w") as stream:
    stream.write(": && gcc -shared -o _C.abi3.so " + " ".join(objects) + " && :")
"""


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def builder(store: Store, repository: Repository, tmp_path: Path) -> Builder:
    lock = lock_of(Artifact(filename="v.whl", sha256="0" * 64, size=1))
    native = msgspec.structs.replace(
        lock.native,
        extensions={"_C": ExtensionSpec(member="vllm/_C.abi3.so", sources=("lib",))},
        sources={"lib": SourcePin(ref="v1", tree="0" * 40, paths=("src",))},
    )
    lock = msgspec.structs.replace(lock, native=native)
    return Builder(store, repository, lock, native, tmp_path / "logs")


@pytest.fixture
def inputs(repository: Repository, tmp_path: Path) -> Inputs:
    chain = make_toolchain(tmp_path / "machine")
    chain = replace(
        chain,
        cmake=program(tmp_path / "cmake", f"#!{sys.executable}\n{CMAKE}"),
        ninja=program(tmp_path / "ninja", f"#!{shutil.which('sh')}\ncat link\n"),
    )
    trees = [
        import_files(repository, [(path, FileEntry("100644", text.encode())) for path, text in files.items()])
        for files in (UPSTREAM, LIB)
    ]
    lib = SourceTree(name="lib", tree=trees[1], origin="made here")
    return Inputs(trees[0], {"lib": lib}, chain, Target(HERE, "12.1a"))


def compiled(builder: Builder, inputs: Inputs) -> tuple[int, list[str]]:
    """What the extension's function returns, and the units that a compiler was started for."""
    heard = Recorder()
    with subscribe(heard):
        built = build_extension(builder, inputs, "_C")
    library = ctypes.CDLL(str(builder.store.file_path(built.sha256)))
    return library.ops(), [event["unit"] for event in heard.of("compile.started")]


def test_a_source_outside_the_project_is_compiled_and_linked(builder: Builder, inputs: Inputs) -> None:
    assert compiled(builder, inputs) == (12, ["_C/csrc/ops.c", "_C/deps/lib/src/lib.c"])
    told = forecast(builder, inputs, "_C")
    assert told is not None
    assert (told.units, told.missing) == (2, 0)


def test_no_record_names_the_folder_that_was_configured_in(
    builder: Builder, inputs: Inputs, tmp_path: Path
) -> None:
    configuration = configured(builder, inputs).configuration
    assert str(tmp_path) not in repr([(unit.output, unit.argv) for unit in configuration.units])
    again = replace(builder, store=open_store(tmp_path / "another"))
    assert configured(again, inputs).configuration == configuration


def test_another_folder_and_an_edit_there_cost_one_unit(
    builder: Builder, inputs: Inputs, repository: Repository
) -> None:
    compiled(builder, inputs)
    edited = patch_tree(
        repository, inputs.sources["lib"].tree, {"src/lib.h": FileEntry("100644", b"#define LIB 3\n")}
    )
    lib = SourceTree(name="lib", tree=edited, origin="made here")
    assert compiled(builder, replace(inputs, sources={"lib": lib})) == (13, ["_C/deps/lib/src/lib.c"])
    assert compiled(builder, inputs) == (12, [])
