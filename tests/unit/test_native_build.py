"""From sources to an extension in the store, with the real gcc and a CMake that only writes down commands."""

from dataclasses import replace
from pathlib import Path

import pytest
from small_extension import compiled, make_builder, make_inputs

from sparkwright.git import FileEntry, Repository, patch_tree
from sparkwright.native.build import Builder, configured, forecast
from sparkwright.native.model import Inputs, SourceTree
from sparkwright.store import Store, open_store


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


def test_no_record_names_the_folder_that_was_configured_in(builder, inputs, tmp_path):
    configuration = configured(builder, inputs).configuration
    assert str(tmp_path) not in repr([(unit.output, unit.argv) for unit in configuration.units])
    again = replace(builder, store=open_store(tmp_path / "another"))
    assert configured(again, inputs).configuration == configuration


def test_another_folder_and_an_edit_there_cost_one_unit(builder, inputs, repository):
    compiled(builder, inputs)
    edited = patch_tree(
        repository, inputs.sources["lib"].tree, {"src/lib.h": FileEntry("100644", b"#define LIB 3\n")}
    )
    lib = SourceTree(name="lib", tree=edited, origin="made here")
    assert compiled(builder, replace(inputs, sources={"lib": lib})) == (13, ["_C/deps/lib/src/lib.c"])
    assert compiled(builder, inputs) == (12, [])
