"""The unit cache: what would compile to the same object hits, and whatever could not, misses."""

import json
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit import Recorder
from unit_kit import COST, FILES, SOURCE, Project, make_toolchain

from sparkwright.base.digests import sha256_bytes
from sparkwright.native.model import Toolchain
from sparkwright.native.units import missing_units, parse_depfile, read_depfile
from sparkwright.store.paths import Store


@pytest.fixture
def toolchain(tmp_path: Path) -> Toolchain:
    return make_toolchain(tmp_path / "machine")


@pytest.fixture
def built(store: Store, tmp_path: Path, toolchain: Toolchain) -> Project:
    """The project as it is, compiled and recorded."""
    project = Project(tmp_path / "built", toolchain)
    project.compile()
    assert project.find(store) is None
    assert project.record(store) == sha256_bytes(project.object.read_bytes())
    return project


def other(tmp_path: Path, toolchain: Toolchain, texts: Mapping[str, str | None], **changes: Any) -> Project:
    """The same project in another folder with some files changed, or (`None`) taken out."""
    merged = {path: text for path, text in {**FILES, **texts}.items() if text is not None}
    return Project(tmp_path / "another" / "place", toolchain, merged, **changes)


# Hits --------------------------------------------------------------------------------------


def test_the_same_files_hit_in_another_folder(store, tmp_path, toolchain, built):
    twin = other(tmp_path, toolchain, {})
    found = twin.find(store)
    assert found is not None
    store.copy_out(found, twin.object)
    assert twin.object.read_bytes() == built.object.read_bytes() == twin.compile()


SHADOWS = "#define LIB 70\n"


@pytest.mark.parametrize(
    "texts",
    [
        {"source/csrc/unrelated.h": "#define UNRELATED 2\n"},
        {"source/csrc/unrelated.h": None},
        {"source/csrc/new.h": "#define NEW 1\n"},
        {"deps/other/lib.hpp": ""},
        {"deps/other/include/lib.h": SHADOWS},
    ],
)
def test_files_that_play_no_part_do_not_matter(store, tmp_path, toolchain, built, texts):
    assert other(tmp_path, toolchain, texts).find(store) is not None


def test_what_is_missing_comes_in_the_order_of_the_units(store, tmp_path, toolchain, built):
    first, third = (Project(tmp_path / flag, toolchain, flags=(flag,)).unit for flag in ("-O2", "-O3"))
    units = [first, built.unit, third]
    assert missing_units(store, units, built.files, "toolchain") == [first, third]


# Misses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "texts",
    [
        {SOURCE: FILES[SOURCE].replace("OPS +", "OPS *")},
        {"source/csrc/ops.h": "#define OPS 7\n"},
        {"deps/lib/detail/deep.h": "#define DEEP 7\n"},
        {"source/csrc/lib.h": SHADOWS},
        {"deps/lib/new/lib.h": SHADOWS},
        {"source/csrc/tool.h": "#define TOOL 70\n"},
        {"source/csrc/stddef.h": "#undef OPS\n#define OPS 70\n"},
        {"source/csrc/inner/more.h": ""},
        {"source/csrc/extra.h": "#define EXTRA 70\n"},
    ],
    ids=[
        "source",
        "header",
        "deep header",
        "lib",
        "name in a tree that is searched",
        "tool",
        "system",
        "no effect",
        "has_include",
    ],
)
def test_a_change_that_may_matter_misses(store, tmp_path, toolchain, built, texts):
    changed = other(tmp_path, toolchain, texts)
    assert changed.find(store) is None
    before, after = set(read_depfile(built.depfile)), b""
    after = changed.compile()
    read = {path.replace(str(changed.work), str(built.work)) for path in read_depfile(changed.depfile)}
    if not texts.keys() & {"source/csrc/inner/more.h", "deps/lib/new/lib.h"}:  # only their names count
        assert after != built.object.read_bytes() or read != before
    assert changed.record(store) is not None
    assert changed.find(store) is not None


def test_a_file_that_was_asked_for_and_goes_misses(store, tmp_path, toolchain):
    """A file that is only looked for is in no dependency file."""
    asks = {
        "source/csrc/ops.h": '#if __has_include("extra.h")\n#define OPS 1\n#else\n#define OPS 2\n#endif\n'
    }
    there = Project(tmp_path / "there", toolchain, {**FILES, **asks, "source/csrc/extra.h": ""})
    gone = other(tmp_path, toolchain, asks)
    there.compile()
    assert not any(path.endswith("extra.h") for path in read_depfile(there.depfile))
    there.record(store)
    assert there.find(store) is not None
    assert gone.find(store) is None


def test_a_missing_file_misses(store: Store, tmp_path: Path, toolchain: Toolchain, built: Project) -> None:
    assert other(tmp_path, toolchain, {"deps/lib/detail/deep.h": None}).find(store) is None
    assert other(tmp_path / "b", toolchain, {SOURCE: None}).find(store) is None


def test_another_flag_or_toolchain_misses(store, tmp_path, toolchain, built):
    assert other(tmp_path, toolchain, {}, flags=("-O2",)).find(store) is None
    assert built.find(store, "another toolchain") is None
    assert built.find(store) is not None


# What cannot be cached ---------------------------------------------------------------------


def refused(project: Project, store: Store, heard: Recorder) -> str:
    """Why *project*'s object was not recorded; it is warned of once, and stays where it is."""
    assert project.record(store) is None
    assert project.record(store) is None
    assert project.find(store) is None
    assert project.object.is_file()
    assert not (store.records / "unit").exists()
    first, second = heard.of("unit.not-cached")
    assert first == second
    assert len(heard.warnings) == 1
    assert first["because"] in heard.warnings[0]
    return str(first["because"])


OPS, DEEP = "source/csrc/ops.h", "deps/lib/detail/deep.h"
# name: files of the trees, what is written into the work folder besides, and what the reason names
UNSEEN: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "from elsewhere": ({OPS: '#include "HOME/foo.h"\n'}, {"../../foo.h": "#define OPS 1\n"}, "HOME/foo.h"),
    "made by the build": ({OPS: "#include <made.h>\n"}, {"build/made.h": "#define OPS 1\n"}, "made.h"),
    "in no tree": ({OPS: '#include "made.h"\n'}, {"source/csrc/made.h": "#define OPS 1\n"}, "csrc/made.h"),
    "not what the tree has": ({}, {OPS: "#define OPS 9\n"}, f"{OPS} is not "),
    "assembles a file": (
        {DEEP: '#define DEEP 2\n#if 0\nasm(".incbin \\"x\\"");\n#endif\n'}, {}, "deep.h embeds a file",
    ),
    "embeds a file": ({DEEP: "#define DEEP 2\n#if 0\n#embed <x>\n#endif\n"}, {}, "deep.h embeds a file"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSEEN)
def test_what_reads_a_file_that_no_tree_vouches_for_is_never_cached(store, tmp_path, toolchain, heard, case):
    texts, written, named = UNSEEN[case]
    texts = {path: text.replace("HOME", str(tmp_path)) for path, text in texts.items()}
    project = Project(tmp_path / "p", toolchain, {**FILES, **texts})
    for path, text in written.items():
        (project.work / path).write_text(text)
    project.compile()
    assert named.replace("HOME", str(tmp_path)) in refused(project, store, heard)


def test_a_file_behind_a_link_is_never_cached(store, tmp_path, toolchain, heard):
    """Its blob in the tree is the link's text, which says nothing of what is behind it."""
    project = Project(tmp_path / "p", toolchain)
    header = project.work / "source/csrc/ops.h"
    header.rename(header.with_name("real.h"))
    header.symlink_to("real.h")
    project.compile()
    assert "ops.h" in refused(project, store, heard)


@pytest.mark.parametrize("text", [None, "", "ops.o:", "ops.o: /usr/include/stdio.h\n", "ops.o: cut/off/na"])
def test_a_dependency_file_that_is_missing_or_cut_off_is_never_believed(
    store, tmp_path, toolchain, heard, text
):
    project = Project(tmp_path / "p", toolchain)
    project.compile()
    project.depfile.unlink()
    if text is not None:
        project.depfile.write_text(text)
    assert ("No such file" in refused(project, store, heard)) is (text is None)


# The toolchain -----------------------------------------------------------------------------


def test_every_spelling_of_a_file_of_the_toolchain_is_covered(tmp_path, toolchain, built):
    reader = built.reader
    covered = {
        f"{built.work}/cuda/include/tool.h",
        f"{built.work}/cuda/bin/../include/tool.h",
        f"{toolchain.cuda}/include/tool.h",
        f"{toolchain.cuda.resolve()}/include/inner/more.h",
        "/usr/include/stdio.h",
        "/usr/lib/gcc/x86_64-linux-gnu/12/include/stddef.h",
        "/usr/lib/gcc-cross/aarch64-linux-gnu/12/../../../../aarch64-linux-gnu/include/stdio.h",
        "/usr/aarch64-linux-gnu/include/stdio.h",
    }
    foreign = {
        f"{tmp_path}/package/include/tool.h",
        f"{built.work}/build/x.h",
        f"{built.work}/cuda/../build/x.h",
        f"{built.work}x/cuda/x.h",
        "/usr/include/../../home/x.h",
        "/usr/local/include/x.h",
        "/usr/share/x.h",
        "/home/usr/include/x.h",
        "x.h",
    }
    assert {path for path in covered | foreign if reader.covered(path)} == covered


def test_the_folders_that_the_compiler_searches_are_covered_wherever_it_is_installed(
    tmp_path, toolchain, built
):
    folder = tmp_path.resolve() / "opt" / "gcc-13" / "include"
    path = f"{folder}/../include/c++/13/vector"
    assert not built.reader.covered(path)
    elsewhere = replace(built.reader, toolchain=replace(toolchain, headers=(str(folder),)))
    assert elsewhere.covered(path)
    assert not elsewhere.covered(f"{folder}x/vector")


def test_a_path_of_the_sources_has_one_name(built: Project) -> None:
    (built.work / "source" / "linked").symlink_to("csrc")
    spelled = {
        "source/csrc/ops.h": "source/csrc/ops.h",
        "deps/lib/include/../detail/deep.h": "deps/lib/detail/deep.h",
        "source/linked/ops.h": None,
        "source/linked/../csrc/ops.h": "source/csrc/ops.h",
        "source/../build/ops.h": None,
        "sources/ops.h": None,
        "source": None,
    }
    found = {path: built.reader.hashed(f"{built.work}/{path}") for path in spelled}
    assert found == spelled
    assert built.reader.absolute("x.h") == f"{built.work}/build/x.h"


# Damage ------------------------------------------------------------------------------------


def only(folder: Path) -> Path:
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    return path


def heal(store: Store, built: Project) -> None:
    """Compiling again makes up for what was damaged."""
    assert built.find(store) is None
    assert built.record(store) is not None
    assert built.find(store) is not None


def test_a_record_cut_anywhere_is_a_miss_and_healed(store: Store, built: Project) -> None:
    record = only(store.records / "unit")
    data = record.read_bytes()
    for length in range(0, len(data) - 2, 101):
        record.write_bytes(data[:length])
        assert built.find(store) is None
    heal(store, built)


@pytest.mark.parametrize("damage", ["gone", "empty", "half", "folder"])
def test_an_object_that_is_gone_or_half_written_is_a_miss_and_healed(store, built, damage):
    path = only(store.files)
    data = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
        assert built.find(store) is None
        path.rmdir()
    elif damage != "gone":
        path.write_bytes(data[: len(data) // 2] if damage == "half" else b"")
    heal(store, built)
    assert only(store.files).read_bytes() == data


# Many states -------------------------------------------------------------------------------


def test_a_record_keeps_the_newest_states(store: Store, tmp_path: Path, toolchain: Toolchain) -> None:
    made = []
    for number in range(20):
        texts = {**FILES, "source/csrc/ops.h": f"#define OPS {number}\n"}
        project = Project(tmp_path / str(number), toolchain, texts)
        project.object.write_bytes(b"%d" % number)
        project.depfile.write_text(f"ops.o: {project.work}/{SOURCE} {project.work}/source/csrc/ops.h\n")
        assert project.record(store) == sha256_bytes(b"%d" % number)
        made.append(project)
    assert [project.find(store) is not None for project in made] == [False] * 4 + [True] * 16
    assert only(store.records / "unit").stat().st_size < 10_000


def test_the_cost_is_kept(store: Store, built: Project) -> None:
    (manifest,) = json.loads(only(store.records / "unit").read_bytes())["manifests"]
    assert manifest["states"][0]["cost"] == {"seconds": COST.seconds, "mib": COST.mib}
    assert manifest["paths"] == sorted(set(FILES) - {"source/csrc/unrelated.h"})
    assert {"tool.h", "more.h", "stddef.h", "extra.h"} <= set(manifest["names"])


# Dependency files, as the real gcc writes them --------------------------------------------


NAMES = [
    "plain.h", "a b.h", "two  spaces.h", "tab\t.h", "a#b.h", "a$b.h", "$$.h", "a\\b.h", "a\\ b.h",
    "a\\\\ b.h", "a\\#b.h", "c:d.h", "c: d.h", "é\u2028.h", "%p'q.h",
]  # fmt: skip


def test_every_name_that_gcc_quotes_comes_back(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).touch()
    source = tmp_path / "the source.c"
    source.write_text("".join(f'#include "{name}"\n' for name in NAMES))
    subprocess.run(
        ["gcc", "-MD", "-MP", "-MF", "out.d", "-MT", "one.o two.o", "-MQ", "three $.o", "-c", source.name],
        cwd=tmp_path,
        check=True,
    )
    found = read_depfile(tmp_path / "out.d")
    assert found[0] == source.name
    assert [name for name in found if not name.startswith("/")] == [source.name, *NAMES]


def test_each_file_once_in_the_order_of_all_rules() -> None:
    text = "a.o b.o: x.c \\\n  y.h \\\n z.h\nc.o : y.h w.h\n\nz.h:\ny.h:\n# no rule\n"
    assert parse_depfile(text) == ("x.c", "y.h", "z.h", "w.h")


@pytest.mark.parametrize("text", ["", "\n", "a.o", "a.o b.h", "a.o:", "a.o: \\\n"])
def test_what_is_no_whole_rule_names_nothing(text: str) -> None:
    assert parse_depfile(text) == ()


def test_builds_at_once_lose_none_of_each_others_states(store, tmp_path, toolchain):
    projects = []
    for number in range(16):
        texts = {**FILES, "source/csrc/ops.h": f"#define OPS {number}"}
        project = Project(tmp_path / str(number), toolchain, texts)
        project.object.write_bytes(b"%d" % number)
        project.depfile.write_text(f"o: {project.work}/{SOURCE} {project.work}/source/csrc/ops.h")
        projects.append(project)
    with ThreadPoolExecutor(4) as pool:
        kept = list(pool.map(lambda project: project.record(Store(store.home)), projects))
    assert kept == [sha256_bytes(b"%d" % number) for number in range(16)]
    assert [project.find(store) for project in projects] == kept
