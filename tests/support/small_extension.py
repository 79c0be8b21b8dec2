"""An extension of two C files, compiled by the real gcc; its CMake only writes down commands."""

import ctypes
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
from kit import Recorder
from native_case import lock_of
from native_kit import HERE
from unit_kit import make_toolchain

from sparkwright.base.events import subscribe
from sparkwright.git.repository import Repository
from sparkwright.git.trees import FileEntry, import_files
from sparkwright.lock.model import Artifact, ExtensionSpec, SourcePin
from sparkwright.native.build import Builder, build_extension
from sparkwright.native.model import Extension, Inputs, SourceTree, Target
from sparkwright.store.paths import Store

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


def make_builder(store: Store, repository: Repository, logs: Path) -> Builder:
    """Return a builder of the extension ``_C``, which is compiled from the project and the source ``lib``."""
    lock = lock_of(Artifact(filename="v.whl", sha256="0" * 64, size=1))
    native = msgspec.structs.replace(
        lock.native,
        extensions={"_C": ExtensionSpec(member="vllm/_C.abi3.so", sources=("lib",))},
        sources={"lib": SourcePin(ref="v1", tree="0" * 40, paths=("src",))},
    )
    lock = msgspec.structs.replace(lock, native=native)
    return Builder(store, repository, lock, native, logs)


def make_inputs(repository: Repository, folder: Path) -> Inputs:
    """Return the project's trees in *repository*, and a toolchain below *folder*."""
    chain = make_toolchain(folder / "machine")
    chain = replace(
        chain,
        cmake=program(folder / "cmake", f"#!{sys.executable}\n{CMAKE}"),
        ninja=program(folder / "ninja", f"#!{shutil.which('sh')}\ncat link\n"),
    )
    trees = [
        import_files(repository, [(path, FileEntry("100644", text.encode())) for path, text in files.items()])
        for files in (UPSTREAM, LIB)
    ]
    lib = SourceTree(name="lib", tree=trees[1], origin="made here")
    return Inputs(trees[0], {"lib": lib}, chain, Target(HERE, "12.1a"))


def build(builder: Builder, inputs: Inputs) -> tuple[Extension, list[str]]:
    """Return the extension, and the units that a compiler was started for."""
    heard = Recorder()
    with subscribe(heard):
        built = build_extension(builder, inputs, "_C")
    return built, [event["unit"] for event in heard.of("compile.started")]


def compiled(builder: Builder, inputs: Inputs) -> tuple[int, list[str]]:
    """Return the value of the extension's function, and the units that a compiler was started for."""
    built, units = build(builder, inputs)
    library = ctypes.CDLL(str(builder.store.file_path(built.sha256)))
    return library.ops(), units
