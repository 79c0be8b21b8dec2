"""Each check fires on a planted lie, and is silent on the truth."""

import dataclasses
from pathlib import Path

import msgspec
import pytest
from small_release import COMMIT, MACHINES, make_release, metadata, sdist_files, version_file

from sparkwright.lock.check import check, disagreement, flatten, unconfirmed
from sparkwright.lock.model import Lock
from sparkwright.lock.statements import ReleaseEvidence, WheelEvidence, is_evidence
from sparkwright.pipeline.checkout import open_checkout

RELEASE = make_release()
LOCK = RELEASE.lock


def evidence(**changes) -> ReleaseEvidence:
    texts = {path: data for path, data in sdist_files().items() if is_evidence(path)}
    wheels = tuple(
        WheelEvidence(
            file=LOCK.wheels[machine],
            metadata=metadata("1.2.0", "2.11.0").encode(),
            wheel=f"Wheel-Version: 1.0\nTag: cp38-abi3-linux_{machine}\n".encode(),
            version_file=version_file("1.2.0", COMMIT).encode(),
        )
        for machine in MACHINES
    )
    return dataclasses.replace(ReleaseEvidence(sdist=LOCK.sdist, texts=texts, wheels=wheels), **changes)


def lying(key: str, value: object) -> Lock:
    """The lock with one dotted *key* changed, added or (`None`) removed."""
    tables = msgspec.to_builtins(LOCK)
    *parents, last = key.split(".")
    table = tables
    for parent in parents:
        table = table.setdefault(parent, {})
    if value is None:
        del table[last]
    else:
        table[last] = value
    return msgspec.convert(tables, Lock)


# Read out of git, where a release's own files state nine digits only. Moving the pin adds one.
COMMITS = {"0.24.0": "ee0da84ab9e04ac7610e28580af62c365e898389"}


def test_the_pinned_commit_is_the_one_that_git_has():
    release = open_checkout(Path(__file__).parents[3], "0.24").lock.release
    assert release.commit == COMMITS[release.version]


STATED = COMMIT[:9]


@pytest.mark.parametrize(
    ("witness", "stated"),
    [
        ({}, STATED),
        ({"tag_commit": COMMIT}, COMMIT),
        ({"commit": COMMIT}, COMMIT),
        ({"tag_commit": STATED + "f" * 31}, STATED),
    ],
)
def test_digits_that_nothing_states_are_unconfirmed(witness, stated):
    assert unconfirmed(LOCK, evidence(**witness)) == COMMIT.removeprefix(stated)


def test_an_abbreviated_commit_leaves_nothing_unconfirmed():
    assert unconfirmed(lying("release.commit", STATED), evidence()) == ""


def test_a_repository_that_has_another_commit_is_a_finding():
    (finding,) = check(LOCK, evidence(commit=STATED + "f" * 31))
    assert (finding.key, finding.locked) == ("release.commit", COMMIT)


def test_is_silent_on_the_truth():
    assert check(LOCK, evidence()) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("release.commit", COMMIT[:9]),
        ("release.git", "https://example.org/vllm-project/vllm"),
        ("release.requires-python", "<3.15,>=3.10"),
        ("release.version", "1.2"),
    ],
)
def test_is_silent_where_only_the_spelling_differs(key, value):
    assert check(lying(key, value), evidence()) == []


LIES = {
    "release.version": "1.2.1",
    "release.commit": "f" * 40,
    "release.git": "https://example.org/fork/vllm.git",
    "release.requires-python": ">=3.9,<3.15",
    "release.torch": "2.12.0",
    "sdist.filename": "vllm-1.2.1.tar.gz",
    "sdist.sha256": "0" * 64,
    "sdist.size": 1,
    "wheels.aarch64.filename": "vllm-1.2.0-cp38-abi3-manylinux_2_17_aarch64.whl",
    "wheels.aarch64.sha256": "0" * 64,
    "wheels.aarch64.size": 2,
    "wheels.x86_64.filename": "vllm-1.2.0-cp39-abi3-manylinux_2_28_x86_64.whl",
    "wheels.x86_64.sha256": "1" * 64,
    "wheels.x86_64.size": 3,
    "sources.cutlass.repository": "https://example.org/other.git",
    "sources.cutlass.ref": "v4.5.0",
    "sources.cutlass.declared-in": "cmake/cutlass.cmake",
    "sources.cutlass.override": "CUTLASS_SRC_DIR",
    "sources.quack.repository": "https://example.org/other.git",
    "sources.quack.ref": "0" * 40,
    "sources.quack.declared-in": "CMakeLists.txt",
    "sources.quack.override": "CUTLASS_SRC_DIR",
}


def test_every_key_of_the_lock_has_a_lie():
    assert set(LIES) == set(flatten(LOCK))


@pytest.mark.parametrize(("key", "value"), LIES.items(), ids=LIES.keys())
def test_fires_on_a_lie_in_the_lock(key, value):
    findings = check(lying(key, value), evidence())
    assert {finding.key for finding in findings} == {key}
    assert {finding.locked for finding in findings} == {str(value)}
    assert all(finding.released and finding.witness for finding in findings)


def test_fires_on_a_source_that_the_lock_lacks_or_invents():
    missing = check(lying("sources.quack", None), evidence())
    assert [(f.key, f.locked) for f in missing] == [
        (f"sources.quack.{field}", None) for field in ("repository", "ref", "declared-in", "override")
    ]
    invented = check(
        lying("sources.duck", {"repository": "r", "ref": "v", "declared-in": "d", "override": "o"}),
        evidence(),
    )
    assert [(f.key.split(".")[1], f.released) for f in invented] == [("duck", None)] * 4


def test_fires_on_a_wheel_under_the_wrong_machine():
    swapped = msgspec.structs.replace(
        LOCK, wheels={"aarch64": LOCK.wheels["x86_64"], "x86_64": LOCK.wheels["aarch64"]}
    )
    assert {finding.key.split(".")[1] for finding in check(swapped, evidence())} == set(MACHINES)


def test_fires_on_a_key_that_nothing_speaks_about():
    findings = check(LOCK, evidence(wheels=evidence().wheels[:1]))
    assert {finding.key for finding in findings} == {
        f"wheels.x86_64.{field}" for field in ("filename", "sha256", "size")
    }
    assert {finding.released for finding in findings} == {None}


def with_text(path, old, new):
    texts = dict(evidence().texts)
    assert old.encode() in texts[path]
    texts[path] = texts[path].replace(old.encode(), new.encode())
    return evidence(texts=texts)


DISSENT = {
    "PKG-INFO version": ("PKG-INFO", "Version: 1.2.0", "Version: 1.3.0", "release.version"),
    "PKG-INFO name": ("PKG-INFO", "Name: vllm", "Name: other", "sdist.filename"),
    "PKG-INFO python": ("PKG-INFO", ">=3.10", ">=3.11", "release.requires-python"),
    "PKG-INFO address": ("PKG-INFO", "vllm-project", "fork", "release.git"),
    "PKG-INFO no address": ("PKG-INFO", "Homepage", "Docs", "release.git"),
    "_version.py version": ("vllm/_version.py", "'1.2.0'", "'1.2.0.dev1'", "release.version"),
    "_version.py commit": ("vllm/_version.py", "g0123", "g9999", "release.commit"),
    "_version.py none": ("vllm/_version.py", "__commit_id__", "__other__", "release.commit"),
    "pyproject python": ("pyproject.toml", ">=3.10,<3.15", ">=3.10", "release.requires-python"),
    "pyproject torch": ("pyproject.toml", "torch == 2.11.0", "torch == 2.11.1", "release.torch"),
    "pyproject torch open": ("pyproject.toml", "torch == 2.11.0", "torch >= 2.11.0", "release.torch"),
    "pyproject no torch": ("pyproject.toml", "torch == 2.11.0", "ninja", "release.torch"),
    "pyproject broken": ("pyproject.toml", "requires = [", "requires = ", "release.torch"),
    "requirements": ("requirements/cuda.txt", "\ntorch==2.11.0", "\ntorch==2.10.0", "release.torch"),
    "requirements none": ("requirements/cuda.txt", "\ntorch==2.11.0", "\n", "release.torch"),
    "build requirements": ("requirements/build/cuda.txt", "2.11.0", "2.10.0", "release.torch"),
    "cmake ref": ("CMakeLists.txt", '"v4.4.2"', '"v4.5.0"', "sources.cutlass.ref"),
    "cmake unreadable": ("CMakeLists.txt", "GIT_TAG ${CUTLASS_REVISION}", "", "sources"),
}


@pytest.mark.parametrize(("path", "old", "new", "key"), DISSENT.values(), ids=DISSENT.keys())
def test_fires_on_each_file_of_the_sdist_that_disagrees(path, old, new, key):
    findings = check(LOCK, with_text(path, old, new))
    assert key in {finding.key for finding in findings}
    (finding, *_) = [finding for finding in findings if finding.key == key]
    assert path in finding.witness


@pytest.mark.parametrize(
    ("field", "old", "new", "key"),
    [
        ("metadata", "Version: 1.2.0", "Version: 1.3.0", "release.version"),
        ("metadata", "torch==2.11.0", "torch==2.12.0", "release.torch"),
        ("metadata", "torch==2.11.0", "torch>=2.11.0", "release.torch"),
        ("metadata", "Requires-Dist: torch==2.11.0\n", "", "release.torch"),
        ("metadata", ">=3.10", ">=3.9", "release.requires-python"),
        ("metadata", "Name: vllm", "Name: other", "wheels.aarch64.filename"),
        ("wheel", "cp38-abi3", "cp312-cp312", "wheels.aarch64.filename"),
        ("wheel", "linux_aarch64", "linux_ppc64le", "wheels.linux_ppc64le.filename"),
        ("wheel", "Tag:", "Gat:", "wheels"),
        ("version_file", "g0123", "g9999", "wheels.aarch64.built-from"),
    ],
)
def test_fires_on_each_file_of_a_wheel_that_disagrees(field, old, new, key):
    wheel, other = evidence().wheels
    data = getattr(wheel, field)
    assert old.encode() in data
    changed = dataclasses.replace(wheel, **{field: data.replace(old.encode(), new.encode())})
    findings = check(LOCK, evidence(wheels=(changed, other)))
    assert key in {finding.key for finding in findings}


def test_fires_when_the_tag_or_the_tree_is_another():
    assert check(LOCK, evidence(tag_commit=COMMIT)) == []
    (finding,) = check(LOCK, evidence(tag_commit="f" * 40))
    assert (finding.key, finding.released) == ("release.commit", "f" * 40)
    generated = {"PKG-INFO", "vllm/_version.py"}
    tree = {path: data for path, data in evidence().texts.items() if path not in generated}
    assert check(LOCK, evidence(tree=tree)) == []
    (finding,) = check(LOCK, evidence(tree={**tree, "CMakeLists.txt": b"other"}))
    assert finding.key == "release.commit"
    assert "CMakeLists.txt" in finding.witness


def test_a_disagreement_is_one_error_that_names_every_finding():
    findings = check(lying("release.torch", "2.12.0"), evidence())
    error = disagreement(findings)
    assert all(str(finding) in str(error) for finding in findings)
    assert all(
        part in str(findings[0]) for part in ("release.torch", "2.12.0", "2.11.0", findings[0].witness)
    )
    assert "lock bump" in error.next_step
