"""What one machine compiled is not compiled on another one, and never taken for another toolchain's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from small_extension import UPSTREAM, build, compiled, make_builder, make_inputs
from store_servers import nginx_store
from unit_kit import FILES, Project, make_toolchain

from sparkwright.git.repository import Repository, open_repository
from sparkwright.git.trees import FileEntry, patch_tree
from sparkwright.native.build import Builder
from sparkwright.native.model import Inputs
from sparkwright.store.paths import Store, open_store
from sparkwright.store.remote.client import RemoteSettings
from sparkwright.store.remote.tier import RemoteTier


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with nginx_store(tmp_path / "nginx") as address:
        yield address


@dataclass
class Machine:
    """A machine of its own: store, repository and toolchain in folders that no other one has."""

    store: Store
    repository: Repository
    builder: Builder
    inputs: Inputs

    def edited(self, path: str, text: str) -> Inputs:
        """The inputs with another content of one file of the project."""
        tree = patch_tree(self.repository, self.inputs.tree, {path: FileEntry("100644", text.encode())})
        return replace(self.inputs, tree=tree)


@pytest.fixture
def machine(tmp_path: Path, url: str) -> Iterator[Callable[[str], Machine]]:
    opened: list[Repository] = []

    def make(name: str) -> Machine:
        folder = tmp_path / name
        folder.mkdir()
        settings = RemoteSettings(url=url, key_file=tmp_path / "key.pem")
        store = open_store(folder / "store", RemoteTier(settings))
        opened.append(open_repository(folder / "git"))
        builder = make_builder(store, opened[-1], folder / "logs")
        return Machine(store, opened[-1], builder, make_inputs(opened[-1], folder))

    yield make
    for repository in opened:
        repository.close()


UNITS = ["_C/csrc/ops.c", "_C/deps/lib/src/lib.c"]


def test_an_empty_store_gets_the_extension_without_a_compiler(machine) -> None:
    first, second = machine("first"), machine("second")
    built, units = build(first.builder, first.inputs)
    assert units == UNITS
    again, units = build(second.builder, second.inputs)
    assert (units, again) == ([], built)
    assert (
        second.store.file_path(built.sha256).read_bytes() == first.store.file_path(built.sha256).read_bytes()
    )
    assert second.store.remote.report.hits == 2, "one record and one file"


def test_an_edit_costs_one_unit_and_the_others_objects_come_from_there(machine) -> None:
    first, second = machine("first"), machine("second")
    build(first.builder, first.inputs)
    text = UPSTREAM["csrc/ops.c"].replace("10", "20")
    assert compiled(second.builder, second.edited("csrc/ops.c", text)) == (22, ["_C/csrc/ops.c"])
    assert compiled(first.builder, first.edited("csrc/ops.c", text)) == (22, [])


class TestOneRecordOfManyMachines:
    """The record of one command and source grows on every machine, each with its own state of the headers."""

    def project(self, folder: Path, text: str) -> Project:
        texts = {**FILES, "deps/lib/detail/deep.h": text}
        return Project(folder, make_toolchain(folder), texts)

    def test_no_state_is_lost(self, machine, tmp_path: Path) -> None:
        texts = [f"#define DEEP {number}\n" for number in range(3)]
        objects = []
        for number, text in enumerate(texts):
            one = machine(str(number))
            project = self.project(tmp_path / f"project {number}", text)
            assert project.find(one.store) is None
            project.compile()
            objects.append(project.record(one.store))
        last = machine("last")
        found = [
            self.project(tmp_path / f"again {number}", text).find(last.store)
            for number, text in enumerate(texts)
        ]
        assert found == objects
        assert len(set(objects)) == 3

    def test_nor_where_two_compile_at_the_same_time(self, machine, tmp_path: Path) -> None:
        first, second, third = machine("first"), machine("second"), machine("third")
        projects = [self.project(tmp_path / name, f"#define DEEP {name}\n") for name in "12"]
        for one, project in zip((first, second), projects, strict=True):
            assert project.find(one.store) is None
        for one, project in zip((first, second), projects, strict=True):
            project.compile()
            project.record(one.store)
        assert None not in {project.find(third.store) for project in projects}

    def test_a_machine_with_an_older_record_asks_for_newer_states(self, machine, tmp_path: Path) -> None:
        first, second = machine("first"), machine("second")
        old = self.project(tmp_path / "old", "#define DEEP 1\n")
        old.compile()
        assert old.record(first.store) is not None
        new = self.project(tmp_path / "new", "#define DEEP 2\n")
        new.compile()
        made = new.record(second.store)
        later = open_store(first.store.home, RemoteTier(first.store.remote.settings))
        assert new.find(later) == made
        alone = open_store(first.store.home)
        assert new.find(alone) == made, "it is local from now on"
        assert old.find(alone) is not None
