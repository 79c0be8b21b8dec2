"""From sources to an extension in the store, with the real gcc and a CMake that only writes down commands."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from kit import Recorder
from small_extension import CMAKE, compiled, make_builder, make_inputs, program

from sparkwright.base.events import subscribe
from sparkwright.git.repository import Repository
from sparkwright.git.trees import FileEntry, patch_tree
from sparkwright.native.build import Builder, build_extension, compile_units, configured, forecast
from sparkwright.native.model import Inputs, SourceTree
from sparkwright.store.paths import Store, open_store

# Of the same sources, a second extension.
_TWO = """
twice = commands + [{key: text.replace("_C.dir", "_D.dir") for key, text in one.items()} for one in commands]
with open("compile_commands.json", "w") as stream:
    json.dump(twice, stream)
"""


@pytest.fixture
def builder(store: Store, repository: Repository, tmp_path: Path) -> Builder:
    return make_builder(store, repository, tmp_path / "logs")


@pytest.fixture
def inputs(repository: Repository, tmp_path: Path) -> Inputs:
    return make_inputs(repository, tmp_path)


def test_a_source_outside_the_project_is_compiled_and_linked(builder: Builder, inputs: Inputs) -> None:
    assert compiled(builder, inputs) == (12, ["_C/csrc/ops.c", "_C/deps/lib/src/lib.c"])
    told = forecast(builder, inputs, "_C")
    assert told is not None
    assert (told.units, told.missing) == (2, 0)


def test_another_folder_and_an_edit_there_cost_one_unit(builder, inputs, repository):
    compiled(builder, inputs)
    edited = patch_tree(
        repository, inputs.sources["lib"].tree, {"src/lib.h": FileEntry("100644", b"#define LIB 3\n")}
    )
    lib = SourceTree(name="lib", tree=edited, origin="made here")
    assert compiled(builder, replace(inputs, sources={"lib": lib})) == (13, ["_C/deps/lib/src/lib.c"])
    assert compiled(builder, inputs) == (12, [])


def test_units_of_another_extension_are_compiled_along_and_not_again(builder, inputs, tmp_path):
    native = builder.native
    both = {"_C": native.extensions["_C"], "_D": native.extensions["_C"]}
    native = msgspec.structs.replace(native, extensions=both)
    builder = replace(builder, native=native, lock=msgspec.structs.replace(builder.lock, native=native))
    chain = replace(
        inputs.toolchain,
        cmake=program(tmp_path / "cmake2", f"#!{sys.executable}\n{CMAKE}{_TWO}"),
        ninja=program(tmp_path / "ninja2", f'#!{shutil.which("sh")}\nexec sed "s/_C/$3/g" link\n'),
    )
    inputs = replace(inputs, toolchain=chain)
    heard, later = Recorder(), Recorder()
    with subscribe(heard):
        known = configured(builder, inputs)
        objects = compile_units(builder, inputs, known, known.configuration.units)
        first = build_extension(builder, inputs, "_C", objects=objects)
    with subscribe(later):
        second = build_extension(builder, inputs, "_D")
    units = sorted(event["unit"] for event in heard.of("compile.started"))
    assert units == [f"{name}/{unit}" for name in both for unit in ("csrc/ops.c", "deps/lib/src/lib.c")]
    assert later.of("compile.started") == []
    alone = replace(builder, store=open_store(tmp_path / "alone"))
    assert [build_extension(alone, inputs, name).sha256 for name in both] == [first.sha256, second.sha256]


def test_units_are_expected_by_the_size_of_their_sources_wherever_they_are_compiled(
    builder, inputs, repository
):
    large = {"csrc/ops.c": FileEntry("100644", b"// a comment of some length\n" * 9000)}
    inputs = replace(inputs, tree=patch_tree(repository, inputs.tree, large))
    known, told = configured(builder, inputs), []

    def elsewhere(_builder, _inputs, _known, units, expected, _learn):
        told.append(expected)
        return {unit.output: "" for unit in units}

    there = replace(builder, elsewhere=elsewhere)
    compile_units(there, inputs, known, known.configuration.units)
    with subscribe(heard := Recorder()):
        compile_units(builder, inputs, known, known.configuration.units)
    here = {event["unit"]: event["expected_seconds"] for event in heard.of("compile.finished")}
    assert here == {name: pytest.approx(cost.seconds, abs=1e-3) for name, cost in told[0].items()}
    assert here["_C/csrc/ops.c"] > here["_C/deps/lib/src/lib.c"] + 60
