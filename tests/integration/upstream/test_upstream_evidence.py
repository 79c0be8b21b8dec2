"""The lock, checked and moved with files that a real index and a real git remote serve."""

import io
import zipfile

import msgspec
import pytest
from kit import git
from small_release import COMMIT, artifact, make_release, make_wheel
from upstream_kit import make_access, make_upstream, offline

from sparkwright.base.errors import DigestError, FetchError, NotInStoreError, UnknownNameError, WheelError
from sparkwright.base.events import subscribe
from sparkwright.lock.bump import rewrite
from sparkwright.lock.check import check
from sparkwright.upstream import evidence as evidence_module
from sparkwright.upstream.evidence import gather, propose_lock, read_wheel
from sparkwright.upstream.releases import open_source

TEXT = """\
format = 1

[release]
version = "{r.version}"
commit = "{r.commit}"  # the tag
git = "{r.git}"
requires-python = "{r.requires_python}"
torch = "{r.torch}"
"""


def as_text(lock) -> str:
    def table(name, model):
        fields = msgspec.to_builtins(model).items()
        return f"\n[{name}]\n" + "".join(
            f"{key} = {value}\n" if isinstance(value, int) else f'{key} = "{value}"\n'
            for key, value in fields
        )

    return (
        TEXT.format(r=lock.release)
        + table("sdist", lock.sdist)
        + "".join(table(f"wheels.{name}", wheel) for name, wheel in lock.wheels.items())
        + "".join(table(f"sources.{name}", source) for name, source in lock.sources.items())
    )


@pytest.fixture
def upstream(tmp_path):
    make_upstream(tmp_path / "upstream")
    return tmp_path / "upstream"


@pytest.fixture
def release(upstream):
    # The small release's metadata names its home page; the remote that tests ask is the folder here.
    return make_release(commit=git(upstream, "rev-parse", "v1.2.0^{commit}"))


@pytest.fixture
def access(tmp_path, index, upstream, monkeypatch):
    real = evidence_module.list_remote

    def redirected(repository, address, patterns, **options):
        folder = upstream if upstream.is_dir() else "file:///nowhere"
        assert address == "https://example.org/vllm-project/vllm.git"
        return real(repository, str(folder), patterns, **options)

    monkeypatch.setattr(evidence_module, "list_remote", redirected)
    access = make_access(tmp_path / "home", index.url)
    yield access
    access.repository.close()


@pytest.fixture
def unverified():
    seen = []
    with subscribe(
        lambda event: seen.append(event.data["what"]) if event.kind == "lock.unverified" else None
    ):
        yield seen


def lying(lock, table, **changes):
    return msgspec.structs.replace(lock, **{table: msgspec.structs.replace(getattr(lock, table), **changes)})


def test_the_right_lock_passes_with_every_witness(access, lock, upstream, unverified):
    pristine = open_source(upstream.as_uri(), access).pristine(lock)
    evidence = gather(access, lock, pristine=pristine)
    assert check(lock, evidence) == []
    assert evidence.tag_commit == lock.release.commit
    assert evidence.tree
    assert len(evidence.wheels) == 2
    assert unverified == []


def test_the_tag_reaches_where_the_release_states_nine_digits_only(access, lock):
    wrong = lying(lock, "release", commit=lock.release.commit[:9] + "f" * 31)
    (finding,) = check(wrong, gather(access, wrong))
    assert finding.released == lock.release.commit


def test_a_remote_that_does_not_answer_leaves_a_note(access, lock, upstream, unverified):
    upstream.rename(upstream.with_name("gone"))
    assert check(lock, gather(access, lock)) == []
    assert len(unverified) == 1
    assert "commit" in unverified[0]


def test_the_commit_and_the_sdist_must_be_one_source(access, lock, upstream):
    moved = lying(lock, "release", commit=git(upstream, "rev-parse", "v1.2.0~1"))
    pristine = open_source(upstream.as_uri(), access).pristine(moved)
    witnesses = {finding.witness for finding in check(moved, gather(access, moved, pristine=pristine))}
    assert any("CMakeLists.txt" in witness for witness in witnesses)


def test_a_wrong_name_is_found_though_the_file_is_here(access, lock):
    gather(access, lock)
    renamed = dict(lock.wheels)
    wrong = "vllm-1.2.0-cp38-abi3-manylinux_2_17_aarch64.whl"
    renamed["aarch64"] = msgspec.structs.replace(lock.wheels["aarch64"], filename=wrong)
    lie = msgspec.structs.replace(lock, wheels=renamed)
    findings = check(lie, gather(access, lie))
    assert {finding.key for finding in findings} == {"wheels.aarch64.filename"}
    assert findings[0].released == lock.wheels["aarch64"].filename


def test_a_wrong_digest_stops_before_anything_is_believed(access, lock):
    lie = lying(lock, "sdist", sha256="0" * 64)
    with pytest.raises(DigestError):
        gather(access, lie)


def test_a_wrong_size_is_found_though_the_file_is_here(access, lock):
    gather(access, lock)
    lie = lying(lock, "sdist", size=lock.sdist.size + 1)
    (finding,) = check(lie, gather(access, lie))
    assert (finding.key, finding.released) == ("sdist.size", str(lock.sdist.size))


def test_offline_checks_what_is_here(access, lock, index, unverified):
    gather(access, lock)
    asked = len(index.requests)
    assert check(lock, gather(offline(access), lock)) == []
    assert len(index.requests) == asked


def test_the_index_is_not_asked_offline_nor_for_what_is_no_version(access, lock, index):
    with pytest.raises(NotInStoreError):
        propose_lock(offline(access), lock, "1.3.0")
    with pytest.raises(UnknownNameError, match="no version of vllm"):
        propose_lock(access, lock, "next")
    assert index.requests == []


NEXT = "fedcba9876543210fedcba9876543210fedcba98"


@pytest.fixture
def successor(index):
    release = make_release("1.3.0", NEXT, "2.13.0")
    for name, data in release.files.items():
        index.add(name, data)
    return release.lock


def test_a_bumped_lock_passes_its_check(access, lock, successor, unverified):
    bumped = rewrite(as_text(lock), propose_lock(access, lock, "1.3.0"))
    assert check(bumped.lock, gather(access, bumped.lock)) == []
    assert bumped.lock.wheels == successor.wheels
    assert bumped.lock.release.commit == NEXT[:9]
    assert "# the tag" in bumped.text
    assert any("abbreviated" in note for note in bumped.notes)
    assert unverified


def test_a_bump_takes_the_full_commit_from_the_tag(access, lock, upstream, index):
    head = git(upstream, "rev-parse", "HEAD")
    git(upstream, "tag", "v1.3.0")
    for name, data in make_release("1.3.0", head).files.items():
        index.add(name, data)
    bumped = rewrite(as_text(lock), propose_lock(access, lock, "1.3.0"))
    assert bumped.lock.release.commit == head
    assert bumped.notes == ()


def test_a_bump_needs_exactly_one_file_of_each_kind(access, lock, successor, index):
    extra = "vllm-1.3.0-cp39-abi3-manylinux_2_28_aarch64.whl"
    index.add(extra, make_wheel("aarch64", "1.3.0"))
    with pytest.raises(FetchError, match="not one aarch64") as caught:
        propose_lock(access, lock, "1.3.0")
    assert extra in caught.value.because
    del index.files[extra]
    del index.files[successor.wheels["x86_64"].filename]
    with pytest.raises(FetchError, match="not one x86_64"):
        propose_lock(access, lock, "1.3.0")


def without(member: str) -> bytes:
    source = zipfile.ZipFile(io.BytesIO(make_wheel("aarch64")))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for name in source.namelist():
            if not name.endswith(member):
                target.writestr(name, source.read(name))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [b"no zip", make_wheel("aarch64")[:-40], without("METADATA"), without("WHEEL"), without("_version.py")],
    ids=["no-zip", "cut", "no-metadata", "no-wheel", "no-version"],
)
def test_a_wheel_that_cannot_be_read_is_named(tmp_path, data):
    name = "vllm-1.2.0-cp38-abi3-manylinux_2_28_aarch64.whl"
    good, bad = tmp_path / "good.whl", tmp_path / "bad.whl"
    good.write_bytes(make_wheel("aarch64"))
    assert COMMIT[:9].encode() in read_wheel(good, artifact(name, b"")).version_file
    bad.write_bytes(data)
    with pytest.raises(WheelError, match=name):
        read_wheel(bad, artifact(name, data))


def test_a_wheel_with_an_absurd_text_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.whl"
    path.write_bytes(make_wheel("aarch64"))
    monkeypatch.setattr(evidence_module, "_MAX_TEXT_BYTES", 100)
    with pytest.raises(WheelError, match="could not be read"):
        read_wheel(path, artifact("vllm-1.2.0-cp38-abi3-manylinux_2_28_aarch64.whl", b""))
