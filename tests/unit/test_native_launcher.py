"""ccache before the compilers: a second store gets its objects from there, and no wrong ones."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from kit import Recorder
from native_case import lock_of
from unit_kit import FILES, Project, make_toolchain

from sparkwright.errors import ConfigError, ToolError
from sparkwright.events import subscribe
from sparkwright.git import FileEntry, import_files
from sparkwright.lock import Artifact
from sparkwright.native.build import Builder, Configured, compile_units
from sparkwright.native.costs import Costs
from sparkwright.native.launcher import choose_launcher, find_launcher, state_of, was_found
from sparkwright.native.model import WORK, Configuration, Inputs, Target
from sparkwright.process import run
from sparkwright.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sparkwright.git import Repository
    from sparkwright.native.launcher import Launcher

TARGET = Target("x86_64", "12.1a")
FLAGS = ("-O1", "-g", f"-ffile-prefix-map={WORK}=/sparkwright")
needs_ccache = pytest.mark.skipif(shutil.which("ccache") is None, reason="no ccache")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    for name in [name for name in os.environ if name.startswith("CCACHE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
    return tmp_path / "ccache"


class World:
    """A project that is compiled into one new store after another."""

    def __init__(self, folder: Path, repository: Repository) -> None:
        self.folder, self.repository = folder, repository
        self.toolchain = make_toolchain(folder / "machine")
        self.built = 0

    def build(self, launcher: Launcher | None, texts: Mapping[str, str] = FILES) -> tuple[bytes, list[str]]:
        """Compile the one unit into a new store; returns the object, and the units that were in the cache."""
        self.built += 1
        project = Project(self.folder / f"p{self.built}", self.toolchain, texts, FLAGS)
        tree = import_files(
            self.repository, [(path, FileEntry("100644", text.encode())) for path, text in texts.items()]
        )
        self.store = open_store(self.folder / f"home-{self.built}")
        lock = lock_of(Artifact(filename="v.whl", sha256="0" * 64, size=1))
        assert lock.native is not None
        builder = Builder(
            self.store, self.repository, lock, lock.native, self.folder / "logs", launcher=launcher
        )
        known = Configured(Configuration((project.unit,), (), {}), tree, project.files)
        inputs = Inputs(tree, {}, self.toolchain, TARGET)
        heard = Recorder()
        with subscribe(heard):
            objects = compile_units(builder, inputs, known, [project.unit])
        (told,) = heard.of("native.compiled")
        self.learned = Costs(self.store, TARGET).learned(project.unit.name)
        return self.store.file_path(objects[project.unit.output]).read_bytes(), told["from_cache"]


@pytest.fixture
def world(tmp_path: Path, repository: Repository) -> World:
    return World(tmp_path, repository)


@needs_ccache
def test_an_empty_store_gets_its_object_from_the_cache(world: World, folder: Path) -> None:
    plain, _ = world.build(None)
    first, missed = world.build(find_launcher())
    assert missed == []
    assert world.learned is not None
    second, found = world.build(find_launcher())
    assert found == ["_C/csrc/ops.c"]
    assert plain == first == second
    assert str(folder.parent).encode() not in second
    assert world.learned is None, "copying an object says nothing of what compiling it takes"
    counted = dict(line.split("\t") for line in run(["ccache", "--print-stats"]).text.splitlines())
    assert (counted["direct_cache_hit"], counted["cache_miss"]) == ("1", "1")


@needs_ccache
@pytest.mark.parametrize(
    "texts",
    [
        {"deps/lib/detail/deep.h": "#define DEEP 20\n"},
        {"source/csrc/lib.h": "#define LIB 70\n"},
        {"source/csrc/extra.h": "int extra = 1;\n"},
    ],
    ids=["a header that was read", "one that takes another's place", "one that was asked for in vain"],
)
def test_what_would_compile_to_something_else_is_not_found(world: World, texts: dict[str, str]) -> None:
    """The last two are what ccache by itself would take for the same."""
    before, _ = world.build(find_launcher())
    plain, _ = world.build(None, {**FILES, **texts})
    after, found = world.build(find_launcher(), {**FILES, **texts})
    assert found == []
    assert after == plain != before


@needs_ccache
def test_other_toolchains_share_nothing(world: World) -> None:
    world.build(find_launcher())
    world.toolchain = replace(world.toolchain, key="another")
    assert world.build(find_launcher())[1] == []


@needs_ccache
def test_the_users_folder_and_limits_are_kept(folder: Path) -> None:
    folder.mkdir()
    (folder / "ccache.conf").write_text("max_size = 30G\n")
    found = find_launcher()
    assert found.folder == str(folder)
    told = run(["ccache", "--get-config", "max_size"], env={"PATH": os.environ["PATH"], **found.settings})
    assert told.text.strip().startswith("30")


def test_a_log_tells_what_became_of_a_call(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert was_found(log) is None
    log.write_text("# a.cu\n")
    assert was_found(log) is None
    log.write_text("# a.cu\ncache_miss\ndirect_cache_miss\nlocal_storage_write\n")
    assert was_found(log) is False
    log.write_text("# a.cu\ndirect_cache_hit\nlocal_storage_hit\n")
    assert was_found(log) is True


def test_every_name_counts() -> None:
    one = state_of("chain", ["b.h", "a.h"])
    assert one == state_of("chain", ["a.h", "b.h"])
    assert len({one, state_of("chain", ["a.h"]), state_of("other", ["a.h", "b.h"])}) == 3


class TestChoice:
    @pytest.fixture
    def programs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        (tmp_path / "bin").mkdir()
        return tmp_path / "bin"

    @staticmethod
    def install(programs: Path, text: str) -> None:
        (programs / "ccache").write_text(f"#!/bin/sh\n{text}\n")
        (programs / "ccache").chmod(0o755)

    def test_without_ccache(self, programs: Path) -> None:
        assert choose_launcher("auto", isolate=False) is None
        with pytest.raises(ToolError, match="'ccache' was not found"):
            choose_launcher("ccache", isolate=False)

    def test_with_ccache(self, programs: Path) -> None:
        self.install(programs, 'case "$1" in --version) echo "ccache version 4.9";; *) echo "$2";; esac')
        found = choose_launcher("auto", isolate=False)
        assert found is not None
        assert (found.version, found.folder) == ("4.9", "cache_dir")
        assert found == choose_launcher("ccache", isolate=False)
        assert choose_launcher("none", isolate=False) is None

    def test_one_that_does_not_answer(self, programs: Path) -> None:
        self.install(programs, "echo broken >&2; exit 1")
        assert choose_launcher("auto", isolate=False) is None
        with pytest.raises(ToolError, match="does not answer"):
            choose_launcher("ccache", isolate=False)

    def test_an_isolated_build_uses_none(self, programs: Path) -> None:
        self.install(programs, 'echo "ccache version 4.9"')
        assert choose_launcher("auto", isolate=True) is None
        with pytest.raises(ConfigError, match="isolated build"):
            choose_launcher("ccache", isolate=True)
