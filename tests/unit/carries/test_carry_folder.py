"""carry.toml and its folder: what is taken, and everything that is refused with its reason."""

from pathlib import Path
from typing import Any

import pytest
import tomlkit
from kit import DIGEST, VERSION, make_carry, revision, spec, write_carry

from sparkwright.base.errors import ConfigError, PatchError, unknown_name
from sparkwright.carries.model import Carry, load_carries, load_carry
from sparkwright.git.repository import Repository

PULL = {"repository": "https://host/x", "number": 7, "head": "1" * 40, "base": "2" * 40}
PROBE = {"file": "carry.toml", "seconds": 1, "memory-mib": 1}
LATER = {"release": "2.0.0", "file": "carry.toml"}
SUPERSEDED = [{"releases": ">=0.26,<0.27", "by": "them", "because": "notes"}]


def own(root: Path, folder: str = "fix", changes: dict[str, Any] | None = None) -> Path:
    """A sound folder of a carry of our own, with *changes* to its TOML; `None` leaves a key out."""
    place = write_carry(root, folder, patches={VERSION: b"x"})
    tables = {**spec(folder, revision=[revision()]), **(changes or {})}
    text = tomlkit.dumps({key: value for key, value in tables.items() if value is not None})
    (place / "carry.toml").write_text(text)
    return place


def load(root: Path, **changes: Any) -> Carry:
    return load_carry(own(root, changes=changes))


def test_a_sound_carry_is_read_whole(tmp_path: Path) -> None:
    upstream = [{"pull": 7, "author": "a", "state": "open", "relation": "the same"}]
    folder = write_carry(
        tmp_path, "fix", patches={"1.0.0": b"x", "1.1.0rc1": b"y"}, probe="def probe(): ...\n",
        upstream=upstream, superseded=SUPERSEDED, requires=["other"],
    )  # fmt: skip
    carry = load_carry(folder)
    assert carry.name == "fix"
    assert carry.spec.requires == ("other",)
    assert not carry.spec.upstream[0].absorbs
    assert carry.probe_path == folder / "probe.py"
    assert [entry.release for entry in carry.spec.revision] == ["1.0.0", "1.1.0rc1"]
    assert load_carry(own(tmp_path, "plain")).probe_path is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "other"}, "in a folder called 'fix'"),
        ({"kind": "pull"}, "go together"),
        ({"pull": PULL}, "go together"),
        ({"kind": "pull", "pull": PULL}, "no other kind has any"),
        ({"revision": None}, "needs at least one"),
        ({"revision": [revision(), revision()]}, "two revisions name the same release"),
        ({"revision": [{**revision(), "patch": "gone.patch"}]}, "'gone.patch' does not exist"),
        ({"requires": ["fix"]}, "requires itself"),
        ({"probe": {**PROBE, "memory_mib": 1}}, "memory_mib"),
        ({"probe": {**PROBE, "file": "gone.py"}}, "'gone.py' does not exist"),
        ({"probe": {**PROBE, "file": "a" * 300}}, "does not exist"),
        ({"revision": [{**revision(), "patch": "9" * 300}]}, "does not exist"),
        ({"probe": {**PROBE, "helpers": ["gone.py"]}}, "'gone.py' does not exist"),
        ({"probe": {**PROBE, "helpers": ["../up.py"]}}, "probe.helpers[0]"),
        (
            {"probe": {**PROBE, "later": [{"release": "2.0.0", "file": "gone.py"}]}},
            "'gone.py' does not exist",
        ),
        ({"probe": {**PROBE, "later": [LATER, LATER]}}, "two probes name the same release"),
        ({"revision": [{**revision(), "release": "not a version"}]}, "Invalid version"),
        ({"superseded": [{**SUPERSEDED[0], "releases": "always"}]}, "Invalid specifier"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=r"carry\.toml") as caught:
        load(tmp_path, **changes)
    assert says in caught.value.because


@pytest.mark.parametrize(
    "changes",
    [
        {"surprise": 1},
        {"title": ""},
        {"drop-when": None},
        {"kind": "theirs"},
        {"requires": ["Not A Name"]},
        {"requires": ["ends-\n"]},
        {"evidence": {"level": "sure", "demonstrated": [], "claimed": []}},
        {"revision": [{**revision(), "sdist-sha256": DIGEST + "\n"}]},
        {"revision": [{**revision(), "patch": "../x.patch"}]},
        {"revision": [{**revision(), "patch": ".hidden"}]},
        {"revision": [{**revision(), "patch": "x.patch\n"}]},
        {"kind": "pull", "revision": None, "pull": {**PULL, "head": "1" * 40 + "\n"}},
        {"probe": {**PROBE, "file": "/etc/passwd"}},
        {"scope": "all"},
        {"runner": "v3"},
        {"requires": "other"},
        {"evidence": {"level": "cpu", "demonstrated": [""], "claimed": []}},
        {"upstream": [{"pull": 1, "author": "a", "state": "lost", "relation": "r"}]},
        {"revision": [{**revision(), "sdist-sha256": "0" * 63}]},
        {"revision": [{**revision(), "runner": "v3"}]},
        {"kind": "pull", "revision": None, "pull": {**PULL, "head": "1" * 12}},
        {"kind": "pull", "revision": None, "pull": {**PULL, "number": "7"}},
        {"probe": {**PROBE, "triton": "on"}},
    ],
)
def test_what_is_no_such_value_is_refused_with_its_place(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"carry\.toml") as caught:
        load(tmp_path, **changes)
    assert (
        "`$" in caught.value.because
        or "unknown field" in caught.value.because
        or "missing" in caught.value.because
    )


def test_a_revision_may_reach_another_runner(tmp_path: Path) -> None:
    folder = own(tmp_path)
    (folder / "2.0.0.patch").write_bytes(b"y")
    tables = spec("fix", runner="v1", revision=[revision(), revision("2.0.0", runner="both")])
    (folder / "carry.toml").write_text(tomlkit.dumps(tables))
    carry = load_carry(folder)
    assert [carry.at(version).spec.runner for version in (VERSION, "2.0.0", "2.1.0.dev3+g1a2b3c4")] == [
        "v1",
        "both",
        "both",
    ]
    assert load(tmp_path / "plain").at("2.0.0").spec.runner == "both"


def test_the_twin_with_a_pull_request_is_taken(tmp_path: Path) -> None:
    carry = load(tmp_path, kind="pull", revision=None, pull=PULL)
    assert carry.spec.pull is not None
    assert carry.spec.pull.number == 7
    assert carry.revision_for("1.0") is None


def test_a_folder_without_its_toml_is_refused_or_overlooked(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "README.md").touch()
    with pytest.raises(ConfigError, match="does not exist"):
        load_carry(tmp_path / "empty")
    own(tmp_path, "b-b")
    own(tmp_path, "a2")
    assert list(load_carries(tmp_path)) == ["a2", "b-b"]
    assert load_carries(tmp_path / "none") == {}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.9", "1.0"), ("1.0", "1.0"), ("1.9.9", "1.0"), ("1.10.0rc1", "1.0"), ("1.10", "1.10"),
        ("2.5", "1.10"),
    ],
)  # fmt: skip
def test_the_nearest_revision_not_after_the_pin_is_taken(tmp_path: Path, version: str, expected: str) -> None:
    carry = load_carry(write_carry(tmp_path, "fix", patches={"1.10": b"", "1.0": b""}))
    found = carry.revision_for(version)
    assert found is not None
    assert found.release == expected


@pytest.mark.parametrize(
    ("version", "superseded"), [("0.25", False), ("0.26.0rc1", False), ("0.26.2", True), ("0.27", False)]
)
def test_superseded_follows_the_specifier(tmp_path: Path, version: str, superseded: bool) -> None:  # noqa: FBT001
    assert (load(tmp_path, superseded=SUPERSEDED).superseded_in(version) is not None) is superseded


def test_a_patch_is_parsed_once_and_its_faults_are_named(tmp_path: Path, repository: Repository) -> None:
    carry = make_carry(tmp_path, repository, "fix", {"f": "1\n"}, {"f": "2\n"})
    (entry,) = carry.spec.revision
    assert carry.patch(entry) is carry.patch(entry)
    broken = load(tmp_path / "b")
    with pytest.raises(PatchError, match=r"fix/1\.0\.0\.patch"):
        broken.patch(broken.spec.revision[0])
    (broken.folder / "1.0.0.patch").unlink()
    for read in (lambda: broken.patch(broken.spec.revision[0]), lambda: broken.content_id("1.0")):
        with pytest.raises(ConfigError, match="could not be read"):
            read()


def test_the_content_id_is_of_content_and_not_of_prose(tmp_path: Path) -> None:
    def content(version: str = "1.0.0", patch: bytes = b"x", **changes: Any) -> str:
        return load_carry(write_carry(tmp_path, "fix", patches={VERSION: patch}, **changes)).content_id(
            version
        )

    plain = content()
    assert content(title="Another", why="why not", upstream=[]) == plain
    assert content(superseded=SUPERSEDED) == plain
    assert content(version="9.0") == plain  # the same revision still
    assert content(patch=b"y") != plain
    assert content(revision=[revision(**{"sdist-sha256": "1" * 64})]) != plain
    assert content(requires=["low"]) == plain
    assert content(version="0.26.1", superseded=SUPERSEDED) != plain


def test_the_content_id_of_a_pull_request_is_its_pin(tmp_path: Path) -> None:
    def content(**changes: Any) -> str:
        return load(tmp_path, kind="pull", revision=None, pull={**PULL, **changes}).content_id("1.0")

    ids = [
        content(),
        content(head="3" * 40),
        content(base="3" * 40),
        content(number=8),
        content(repository="https://y"),
    ]
    assert len(set(ids)) == 5
    assert content() == ids[0]


def test_an_unknown_name_suggests_the_nearest() -> None:
    assert "did you mean 'cache-fix'?" in unknown_name("carry", "cash-fix", ["cache-fix", "other"]).next_step
    assert unknown_name("carry", "xyz", ["b", "a"]).next_step == "known: b, a"
    assert unknown_name("carry", "xyz", []).next_step == "known: none"
    assert unknown_name("carry", "xyz", []).exit_code == 10


# A change to a dependency's source ---------------------------------------------------------

SOURCE = {"scope": "build", "source": "vllm-flash-attn"}
BASED = {"release": VERSION, "source-ref": "8030ab", "patch": f"{VERSION}.patch"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({**SOURCE}, "no source-ref"),
        ({**SOURCE, "revision": [{**BASED, "sdist-sha256": DIGEST}]}, "changes vllm-flash-attn"),
        ({"revision": [{**revision(), "source-ref": "8030ab"}]}, "changes vLLM's own tree"),
        ({"revision": [BASED]}, "no sdist-sha256"),
        ({**SOURCE, "revision": [BASED], "scope": "runtime"}, "scope = 'build'"),
        ({**SOURCE, "revision": None, "kind": "pull", "pull": PULL}, "kind = 'own'"),
        ({**SOURCE, "revision": [{**BASED, "source-ref": "--upload-pack=x"}]}, "source-ref"),
        ({**SOURCE, "revision": [BASED], "source": "../deps"}, "source"),
    ],
)
def test_a_base_in_the_wrong_tree_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, **changes)
    assert says in caught.value.because


def test_content_in_another_tree_is_other_content(tmp_path: Path) -> None:
    plain = load_carry(own(tmp_path, "plain")).content_id(VERSION)
    ids = {plain}
    for name, ref in (("one", "8030ab"), ("two", "8030ac")):
        tables = {**SOURCE, "revision": [{**BASED, "source-ref": ref}]}
        ids.add(load_carry(own(tmp_path, name, tables)).content_id(VERSION))
    other = {**SOURCE, "source": "qutlass", "revision": [BASED]}
    ids.add(load_carry(own(tmp_path, "three", other)).content_id(VERSION))
    assert len(ids) == 4
