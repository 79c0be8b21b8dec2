"""Patchsets and points: order, requirements, and what a point's digest covers."""

from dataclasses import replace as replace_point
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomlkit
from kit import VERSION, write_carry

from sparkwright.base.errors import ConfigError, DependencyOrderError, UnknownNameError
from sparkwright.carries.model import Carry
from sparkwright.carries.patchset import (
    BuildSpec,
    load_patchset,
    make_build_spec,
    with_carry,
    with_next_revision,
)
from sparkwright.lock.model import Artifact, Lock, NativePin, Release
from sparkwright.pipeline.checkout import open_checkout, series_names

ROOT = Path(__file__).parents[3]
SERIES = series_names(ROOT)
PACKAGE = {"filename": "cuda-13.whl", "sha256": "d" * 64, "size": 1}
LOCK = Lock(
    format=1,
    release=Release(
        version="1.0.0", commit="1" * 40, git="https://host/x", requires_python=">=3.10", torch="2"
    ),
    sdist=Artifact(filename="x.tar.gz", sha256="a" * 64, size=1),
    wheels={"aarch64": Artifact(filename="x.whl", sha256="b" * 64, size=1)},
    sources={},
)


def write(root: Path, file: str = "spark", **changes: Any) -> None:
    folder = root / "patchsets"
    folder.mkdir(exist_ok=True)
    tables = {"format": 1, "name": file, "summary": "what it is for", "carries": ["a", "b"], **changes}
    (folder / f"{file}.toml").write_text(tomlkit.dumps({k: v for k, v in tables.items() if v is not None}))


def carries(root: Path, requires: dict[str, list[str]]) -> None:
    for name, names in requires.items():
        write_carry(root / "carries", name, patches={VERSION: name.encode()}, requires=names)


def point(root: Path, requires: dict[str, list[str]], order: list[str], lock: Lock = LOCK) -> BuildSpec:
    carries(root, requires)
    write(root, carries=order)
    return make_build_spec(root, lock, "spark")


def test_a_carry_is_added_before_those_of_kernels(tmp_path: Path) -> None:
    found = point(tmp_path, {"a": [], "b": []}, ["a", "b"])
    kernels = Carry(msgspec.structs.replace(found.carries[1].spec, scope="build"), found.carries[1].folder)
    layouts = {
        'carries = ["a", "b"]': ('carries = ["a", "c", "b"]', 'carries = ["a", "b", "c"]'),
        'carries = [\n  "a",\n  # last\n  "b",\n]': (
            'carries = [\n  "a",\n  "c",\n  # last\n  "b",\n]',
            'carries = [\n  "a",\n  # last\n  "b",\n  "c",\n]',
        ),
    }
    head = 'format = 1\nname = "a"  # not the carry\nsummary = "s"\n'
    for before, afters in layouts.items():
        for last, after in zip((kernels, found.carries[1]), afters, strict=True):
            spec = replace_point(found, carries=(found.carries[0], last))
            assert with_carry(head + before, "c", spec) == head + after
    empty = with_carry(head + "carries = []", "c", replace_point(found, carries=()))
    assert empty == head + 'carries = ["c",]'
    with pytest.raises(ConfigError, match="unusual"):
        with_carry(head + "\"carries\" = ['a', 'b']", "c", found)


def test_unknown_names_are_refused_with_a_suggestion(tmp_path: Path) -> None:
    carries(tmp_path, {"cache-fix": []})
    write(tmp_path, carries=["cash-fix"])
    with pytest.raises(UnknownNameError, match="cash-fix") as caught:
        make_build_spec(tmp_path, LOCK, "spark")
    assert "'cache-fix'" in caught.value.next_step
    with pytest.raises(UnknownNameError, match="patchset 'spork'") as caught:
        make_build_spec(tmp_path, LOCK, "spork")
    assert "'spark'" in caught.value.next_step


@pytest.mark.parametrize("name", ["../patchsets/spark", "/etc/passwd", "", "*", "spark.toml"])
def test_a_name_is_no_path(tmp_path: Path, name: str) -> None:
    write(tmp_path)
    with pytest.raises(UnknownNameError):
        load_patchset(tmp_path / "patchsets", name)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"carries": ["a", "b", "a"]}, "a carry twice"),
        ({"name": None}, "name"),
        ({"summary": ""}, "summary"),
        ({"carries": ["A"]}, "carries[0]"),
        ({"carries": "a"}, "carries"),
        ({"carry": ["a"]}, "carry"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    write(tmp_path, **changes)
    with pytest.raises(ConfigError) as caught:
        load_patchset(tmp_path / "patchsets", "spark")
    assert says in caught.value.because


def test_a_patchset_is_called_as_its_file(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "patchsets" / "spark.toml").rename(tmp_path / "patchsets" / "other.toml")
    with pytest.raises(ConfigError, match=r"other\.toml") as caught:
        load_patchset(tmp_path / "patchsets", "other")
    assert "'spark'" in caught.value.because


@pytest.mark.parametrize(
    ("requires", "order", "says"),
    [
        ({"a": ["b"], "b": ["a"]}, ["a", "b"], "a → b → a"),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, ["a"], "b → c → b"),
        ({"a": ["b"], "b": []}, ["a"], "it requires b"),
        ({"a": ["b"], "b": []}, ["a", "b"], "is listed later"),
        ({"a": ["b"], "b": ["c"], "c": []}, ["b", "a", "c"], "is listed later"),
    ],
)
def test_requirements_that_do_not_hold_are_refused(tmp_path, requires, order, says):
    with pytest.raises(DependencyOrderError) as caught:
        point(tmp_path, requires, order)
    assert says in caught.value.because
    assert caught.value.next_step
    assert caught.value.exit_code == 10


def test_the_digest_changes_with_order_content_and_pin_and_not_with_prose(tmp_path: Path) -> None:
    import msgspec

    requires: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    plain = point(tmp_path, requires, ["a", "b"]).digest
    assert len(plain) == 64
    assert point(tmp_path, requires, ["a", "b"]).digest == plain
    assert point(tmp_path, requires, ["b", "a"]).digest != plain
    assert point(tmp_path, requires, ["a"]).digest != plain
    assert point(tmp_path, requires, ["a", "b", "c"]).digest != plain

    write(tmp_path, carries=["a", "b"], summary="said otherwise")
    write_carry(tmp_path / "carries", "a", patches={VERSION: b"a"}, title="Said otherwise", why="as it is")
    assert make_build_spec(tmp_path, LOCK, "spark").digest == plain
    write_carry(tmp_path / "carries", "c", patches={VERSION: b"not in the patchset"})
    assert make_build_spec(tmp_path, LOCK, "spark").digest == plain

    changed = msgspec.structs.replace
    pins = [
        changed(LOCK, sdist=changed(LOCK.sdist, sha256="c" * 64)),
        changed(LOCK, wheels={"aarch64": changed(LOCK.wheels["aarch64"], sha256="c" * 64)}),
        changed(LOCK, release=changed(LOCK.release, commit="2" * 40)),
        changed(LOCK, release=changed(LOCK.release, version="1.0.1")),
    ]
    digests = {make_build_spec(tmp_path, pin, "spark").digest for pin in pins}
    assert len(digests) == 4
    assert plain not in digests

    write_carry(tmp_path / "carries", "a", patches={VERSION: b"a2"})
    assert make_build_spec(tmp_path, LOCK, "spark").digest != plain
    gone = [{"releases": "==1.0.0", "by": "them", "because": "notes"}]
    write_carry(tmp_path / "carries", "a", patches={VERSION: b"a"}, superseded=gone)
    assert make_build_spec(tmp_path, LOCK, "spark").digest != plain


def test_the_patchsets_name_is_part_of_the_point(tmp_path: Path) -> None:
    one = point(tmp_path, {"a": []}, ["a"])
    write(tmp_path, "other", carries=["a"])
    assert make_build_spec(tmp_path, LOCK, "other").digest != one.digest


# Where kernels come from -------------------------------------------------------------------

NATIVE = msgspec.convert(
    {
        "release": "1.0.0",
        "arch": "12.1a",
        "toolkit": {"cuda": "13.0", "release": PACKAGE, "builder": {}, "target": {}},
        "sources": {"flash": {"ref": "v1", "tree": "1" * 40}, "plain": {"ref": "v2"}},
        "extensions": {"_C": {"member": "vllm/_C.so"}},
        "binaries": {"vllm/_C.so": {"cubins": {"sm_121a": 3}}},
        "costs": {"_C/a.cu": [1.5, 200]},
    },
    NativePin,
)
COMPILING = msgspec.structs.replace(LOCK, native=NATIVE)


def test_the_digest_with_upstreams_kernels_is_what_it_always_was(tmp_path: Path) -> None:
    golden = "ad4d338954d8e24c1c4583fde1a951c54215812e783445572c47c0708d5c6cf3"
    assert point(tmp_path, {"a": [], "b": ["a"]}, ["a", "b"]).digest == golden
    assert make_build_spec(tmp_path, COMPILING, "spark").digest == golden
    write_carry(tmp_path / "carries", "c", patches={VERSION: b"c"}, scope="build")
    write_carry(tmp_path / "carries", "d", patches={VERSION: b"d"}, requires=["c"])
    write(tmp_path, carries=["c", "a", "d", "b"])
    with_build = make_build_spec(tmp_path, LOCK, "spark")
    assert with_build.digest == golden
    assert [carry.name for carry in with_build.deciding] == ["a", "b"]
    assert [carry.name for carry in with_build.carries] == ["c", "a", "d", "b"]
    assert with_build.left_out["c"].startswith("it changes how kernels are compiled")
    assert with_build.left_out["d"] == "it requires c, which is left out"


def test_the_digest_with_native_kernels_covers_what_decides_them(tmp_path: Path) -> None:
    replace = msgspec.structs.replace
    write_carry(tmp_path / "carries", "a", patches={VERSION: b"a"}, scope="build")
    write(tmp_path, carries=["a"])

    def digest(lock: Lock = COMPILING, arch: str = "12.1a") -> str:
        found = make_build_spec(tmp_path, lock, "spark", arch=arch)
        assert found.left_out == {}
        return found.digest

    plain = digest()
    assert plain != make_build_spec(tmp_path, COMPILING, "spark").digest
    assert digest(arch="9.0a") != plain
    moved = replace(NATIVE, sources={"flash": replace(NATIVE.sources["flash"], tree="2" * 40)})
    newer = replace(NATIVE, toolkit=replace(NATIVE.toolkit, cuda="13.1"))
    fewer = replace(NATIVE, extensions={})
    assert len({digest(replace(LOCK, native=native)) for native in (moved, newer, fewer)} - {plain}) == 3
    slower = replace(NATIVE, costs={"_C/a.cu": (9.0, 900)}, binaries={})
    assert digest(replace(LOCK, native=slower)) == plain
    write_carry(tmp_path / "carries", "a", patches={VERSION: b"a2"}, scope="build")
    assert digest() != plain


def test_a_source_that_the_lock_does_not_have(tmp_path: Path) -> None:
    based = {"release": VERSION, "source-ref": "v1", "patch": f"{VERSION}.patch"}
    write_carry(
        tmp_path / "carries", "a", patches={VERSION: b"a"}, scope="build", source="flesh", revision=[based]
    )
    write(tmp_path, carries=["a"])
    with pytest.raises(UnknownNameError, match="'flesh'") as caught:
        make_build_spec(tmp_path, COMPILING, "spark")
    assert "'flash'" in caught.value.next_step


@pytest.mark.parametrize("series", SERIES)
def test_the_carried_patchset_is_the_same_without_its_build_carries(series: str) -> None:
    """Its digest stays, whatever is added for those who compile."""
    found = open_checkout(ROOT, series).build_spec()
    built = [carry.name for carry in found.carries if carry.spec.scope == "build"]
    assert built == list(found.left_out)
    assert [carry.name for carry in found.carries][-len(built) :] == built, "prefixes of the rest stay stable"
    rest = tuple(carry for carry in found.carries if carry.name not in built)
    assert replace_point(found, carries=rest).digest == found.digest


@pytest.mark.parametrize("series", SERIES)
def test_the_carried_patchset_has_a_revision_of_its_own(series: str) -> None:
    found = open_checkout(ROOT, series).build_spec()
    assert found.revision, "the pin or a carry changed: sparkwright patchset bump"


def bumped(root: Path, found: BuildSpec, lock: Lock = LOCK) -> BuildSpec:
    """The same point once it has the next revision."""
    path = root / "patchsets" / "spark.toml"
    path.write_text(with_next_revision(path.read_text(), found))
    return make_build_spec(root, lock, "spark")


def test_revisions_are_counted_from_one_and_belong_to_one_content(tmp_path: Path) -> None:
    fresh = point(tmp_path, {"a": [], "b": []}, ["a", "b"])
    assert fresh.revision == 0
    first = bumped(tmp_path, fresh)
    assert (first.revision, first.content) == (1, fresh.content)
    text = (tmp_path / "patchsets" / "spark.toml").read_text()
    assert with_next_revision(text, first) == text
    write_carry(tmp_path / "carries", "a", patches={VERSION: b"another"})
    edited = make_build_spec(tmp_path, LOCK, "spark")
    assert edited.revision == 0
    assert edited.content != first.content
    assert bumped(tmp_path, edited).revision == 2
    write_carry(tmp_path / "carries", "a", patches={VERSION: b"a"})
    undone = make_build_spec(tmp_path, LOCK, "spark")
    assert (undone.content, undone.revision) == (first.content, 0), "it came later, so it is newer"
    assert bumped(tmp_path, undone).revision == 3


def test_a_revision_keeps_comments_and_is_no_part_of_a_digest(tmp_path: Path) -> None:
    path = tmp_path / "patchsets" / "spark.toml"
    fresh = point(tmp_path, {"a": []}, ["a"])
    path.write_text(f"# Why these.\n{path.read_text()}")
    found = bumped(tmp_path, fresh)
    assert path.read_text().startswith("# Why these.\n")
    assert (found.digest, found.content) == (fresh.digest, fresh.content)


def test_the_pin_and_carries_are_content_and_the_choice_of_kernels_is_not(tmp_path: Path) -> None:
    carries(tmp_path, {"a": []})
    write_carry(tmp_path / "carries", "k", patches={VERSION: b"k"}, scope="build")
    write(tmp_path, carries=["a", "k"])
    upstream, native, foreign = (
        make_build_spec(tmp_path, COMPILING, "spark", arch=arch) for arch in (None, "12.1a", "10.0a")
    )
    assert upstream.content == native.content == foreign.content
    assert len({upstream.digest, native.digest, foreign.digest}) == 3
    assert [found.foreign_card for found in (upstream, native, foreign)] == ["", "", "sm100a"]
    moved = msgspec.structs.replace(
        COMPILING, release=msgspec.structs.replace(COMPILING.release, commit="2" * 40)
    )
    assert COMPILING.native is not None
    toolkit = msgspec.structs.replace(COMPILING.native.toolkit, cuda="13.1")
    rebuilt = msgspec.structs.replace(
        COMPILING, native=msgspec.structs.replace(COMPILING.native, toolkit=toolkit)
    )
    write_carry(tmp_path / "carries", "k", patches={VERSION: b"another"}, scope="build")
    assert make_build_spec(tmp_path, COMPILING, "spark").content != upstream.content
    for lock in (moved, rebuilt):
        assert replace_point(upstream, lock=lock).content != upstream.content


def test_the_digest_of_a_commit_covers_its_tree_and_the_commit_of_its_wheel(tmp_path: Path) -> None:
    carries(tmp_path, {"a": []})
    write(tmp_path, carries=["a"])

    def pinned(commit: str, tree: str = "3" * 40) -> dict[str, Any]:
        file = msgspec.structs.replace(LOCK.wheels["aarch64"], commit=commit, trust="first-download")
        release = msgspec.structs.replace(LOCK.release, tree=tree)
        lock = msgspec.structs.replace(LOCK, release=release, sdist=None, wheels={"aarch64": file})
        pin: dict[str, Any] = make_build_spec(tmp_path, lock, "spark").describe()["pin"]
        return pin

    common = {"version": "1.0.0", "commit": "1" * 40, "wheels": {"aarch64": "b" * 64}, "tree": "3" * 40}
    assert pinned("1" * 40) == common
    assert pinned("2" * 40) == {**common, "wheels-of": {"aarch64": "2" * 40}}


@pytest.mark.parametrize(
    "released",
    [
        {"revision": 0, "digest": "a" * 64},
        {"revision": 1, "digest": "a" * 63},
        {"revision": 1},
        {"digest": "a" * 64},
    ],
)
def test_revisions_that_do_not_fit_are_refused(tmp_path: Path, released: dict[str, Any]) -> None:
    write(tmp_path, released=released)
    with pytest.raises(ConfigError) as caught:
        load_patchset(tmp_path / "patchsets", "spark")
    assert "released" in caught.value.because
