"""One release from every source: the index, real git remotes, and every kind of folder."""

import shutil

import msgspec
import pytest
from kit import git
from small_release import artifact, make_release, make_sdist, sdist_files
from upstream_kit import GENERATED, make_access, make_upstream, offline, write_files

from sparkwright.base.errors import (
    ArchiveError,
    DigestError,
    FetchError,
    LockMismatchError,
    NotInStoreError,
    UnknownNameError,
)
from sparkwright.git.remotes import fetch
from sparkwright.upstream import releases as source_module
from sparkwright.upstream.releases import UpstreamSource, open_source, other_release

pytest_plugins = ["package_access"]


@pytest.fixture
def upstream(tmp_path):
    """Upstream's repository; `pinned` is the commit of its release."""
    folder = tmp_path / "upstream"
    make_upstream(folder)
    return folder


@pytest.fixture
def pinned(upstream):
    return git(upstream, "rev-parse", "v1.2.0^{commit}")


@pytest.fixture
def release(upstream, pinned):
    return make_release(commit=pinned, git=upstream.as_uri())


def with_commit(lock, commit):
    return msgspec.structs.replace(lock, release=msgspec.structs.replace(lock.release, commit=commit))


def contents(access, tree):
    files = access.repository.files(tree)
    return {path: access.repository.blob(entry.blob) for path, entry in files.items()}


# The index --------------------------------------------------------------------------------


def test_the_index_gives_the_sdists_files(access, lock):
    pristine = open_source("index", access).pristine(lock)
    assert contents(access, pristine.tree) == sdist_files(commit=lock.release.commit)
    assert pristine.commit is None
    assert lock.sdist.filename in pristine.origin


def test_a_tree_is_imported_once_and_outlives_the_sdist(access, lock, index):
    first = open_source("index", access).pristine(lock)
    asked = len(index.requests)
    access.store.file_path(lock.sdist.sha256).unlink()
    assert open_source("index", offline(access)).pristine(lock) == first
    assert len(index.requests) == asked


def test_a_remembered_tree_that_git_lost_is_imported_again(access, lock, tmp_path):
    first = open_source("index", access).pristine(lock)
    access.repository.close()
    shutil.rmtree(access.repository.path)
    again = make_access(tmp_path / "home", access.settings.index_url)
    assert not again.repository.has(first.tree)
    assert open_source("index", again).pristine(lock) == first
    assert again.repository.has(first.tree)
    again.repository.close()


def test_a_harmful_sdist_leaves_nothing_behind(access, lock, index):
    data = make_sdist({"vllm/../../x": b"", **sdist_files()})
    index.add(lock.sdist.filename, data)
    evil = msgspec.structs.replace(lock, sdist=artifact(lock.sdist.filename, data))
    with pytest.raises(ArchiveError):
        open_source("index", access).pristine(evil)
    assert access.store.find_record("sdist-tree", evil.sdist.sha256) is None


def test_offline_without_anything_is_named(access, lock):
    with pytest.raises(NotInStoreError, match=lock.sdist.filename):
        open_source("index", offline(access)).pristine(lock)
    with pytest.raises(NotInStoreError, match="aarch64"):
        open_source("index", offline(access)).wheel(lock, "aarch64")


@pytest.mark.parametrize("spec", ["index", "git"])
def test_wheels_come_from_the_index(access, lock, release, spec):
    path = open_source(spec, access).wheel(lock, "x86_64")
    assert path.read_bytes() == release.files[lock.wheels["x86_64"].filename]
    with pytest.raises(UnknownNameError, match="riscv64"):
        open_source(spec, access).wheel(lock, "riscv64")


# A git remote -----------------------------------------------------------------------------


def test_git_gives_the_pinned_commit_without_history(access, lock, pinned):
    pristine = open_source("git", access).pristine(lock)
    assert pristine.commit == pinned
    assert not pristine.history
    assert contents(access, pristine.tree) == {"README.md": b"first\n"} | {
        path: data for path, data in sdist_files().items() if path not in GENERATED
    }
    assert access.repository.command("rev-list", "--count", pinned).text == "1"


def test_git_and_the_sdist_give_the_same_blobs(access, lock):
    by_git = access.repository.files(open_source("git", access).pristine(lock).tree)
    by_index = access.repository.files(open_source("index", access).pristine(lock).tree)
    assert set(by_index) - set(by_git) == set(GENERATED)
    assert {path: by_index[path] for path in by_git if path in by_index} == {
        path: entry for path, entry in by_git.items() if path in by_index
    }


def test_a_fetched_commit_needs_no_remote(access, lock, upstream):
    first = open_source("git", access).pristine(lock)
    upstream.rename(upstream.with_name("gone"))
    assert open_source("git", offline(access)).pristine(lock) == first


def test_an_abbreviated_commit_is_found_by_its_tag(access, lock, pinned, upstream):
    for spec in ("git", str(upstream)):
        assert open_source(spec, access).pristine(with_commit(lock, pinned[:9])).commit == pinned


def test_a_remote_that_serves_no_commits_by_id_is_asked_for_the_tag(access, lock, pinned, monkeypatch):
    def refusing(repository, address, wanted, **options):
        if wanted == [pinned]:
            raise FetchError("Server does not allow request for unadvertised object")
        fetch(repository, address, wanted, **options)

    monkeypatch.setattr(source_module, "fetch", refusing)
    assert open_source("git", access).pristine(lock).commit == pinned


@pytest.mark.parametrize("length", [40, 9])
def test_a_tag_that_is_another_commit_is_refused(access, lock, length):
    with pytest.raises(LockMismatchError, match=r"v1\.2\.0"):
        open_source("git", access).pristine(with_commit(lock, "f" * length))


def test_offline_asks_no_remote(access, lock, pinned):
    with pytest.raises(NotInStoreError, match=pinned):
        open_source("https://example.org/vllm.git", offline(access)).pristine(lock)


def test_what_a_killed_fetch_left_is_no_obstacle(access, lock, pinned):
    (access.repository.path / "shallow.lock").touch()
    assert open_source("git", access).pristine(lock).commit == pinned


# Folders ----------------------------------------------------------------------------------


def test_a_clone_gives_the_pinned_commit_with_its_history(access, lock, upstream, pinned):
    write_files(upstream, {"vllm/__init__.py": b"uncommitted\n"})
    source = open_source(str(upstream), access)
    pristine = source.pristine(lock)
    assert (pristine.commit, pristine.history) == (pinned, True)
    assert contents(access, pristine.tree)["vllm/__init__.py"] == b""
    assert access.repository.command("rev-list", "--count", pinned).text == "2"


def test_a_shallow_clone_says_that_it_has_no_history(access, lock, upstream, tmp_path):
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth=1", "--branch=v1.2.0", upstream.as_uri(), str(clone))
    pristine = open_source(str(clone), access).pristine(lock)
    assert not pristine.history


def test_a_bare_repository_will_do(access, lock, upstream, tmp_path, pinned):
    git(tmp_path, "clone", "--quiet", "--bare", str(upstream), "bare.git")
    assert open_source(str(tmp_path / "bare.git"), access).pristine(lock).commit == pinned


def test_a_clone_without_the_commit_is_named(access, lock, upstream):
    with pytest.raises(LockMismatchError, match=str(upstream)) as caught:
        open_source(str(upstream), access).pristine(with_commit(lock, "f" * 40))
    assert lock.release.commit in caught.value.because
    git(upstream, "tag", "--delete", "v1.2.0")
    with pytest.raises(FetchError, match=f"{upstream} has neither"):
        open_source(str(upstream), access).pristine(with_commit(lock, "f" * 40))


@pytest.fixture
def mirror(tmp_path, release):
    folder = tmp_path / "mirror"
    folder.mkdir()
    write_files(folder, release.files)
    return folder


def test_a_mirror_works_offline(access, lock, mirror, release, index):
    source = open_source(str(mirror), offline(access))
    pristine = source.pristine(lock)
    assert contents(access, pristine.tree) == sdist_files(commit=lock.release.commit)
    for machine, wheel in lock.wheels.items():
        assert source.wheel(lock, machine).read_bytes() == release.files[wheel.filename]
    assert index.requests == []
    assert sorted(path.name for path in mirror.iterdir()) == sorted(release.files)


def test_a_mirror_with_other_bytes_is_refused(access, lock, mirror):
    for name in (lock.sdist.filename, lock.wheels["aarch64"].filename):
        with (mirror / name).open("ab") as file:
            file.write(b"!")
    source = open_source(str(mirror), access)
    with pytest.raises(DigestError, match=lock.sdist.filename):
        source.pristine(lock)
    with pytest.raises(DigestError, match="aarch64"):
        source.wheel(lock, "aarch64")
    assert (mirror / lock.sdist.filename).is_file()


def test_what_a_mirror_lacks_comes_from_the_index(access, lock, mirror, release):
    wheel = lock.wheels["aarch64"]
    (mirror / wheel.filename).unlink()
    assert (
        open_source(str(mirror), access).wheel(lock, "aarch64").read_bytes() == release.files[wheel.filename]
    )
    with pytest.raises(NotInStoreError):
        open_source(str(mirror), offline(access)).wheel(
            msgspec.structs.replace(
                lock, wheels={"aarch64": msgspec.structs.replace(wheel, sha256="0" * 64)}
            ), "aarch64",
        )  # fmt: skip


def test_a_folder_of_something_else_is_named(access, lock, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FetchError, match="holds no vllm") as caught:
        open_source(str(tmp_path / "empty"), access).pristine(lock)
    assert "a clone" in caught.value.next_step


# Names and other releases -----------------------------------------------------------------


def test_sources_are_known_by_their_names(access, tmp_path, monkeypatch):
    assert open_source("index", access) == UpstreamSource(access)
    assert open_source("git", access) == UpstreamSource(access, by_commit=True)
    for address in ("https://example.org/v.git", "ssh://git@example.org/v.git", "git@example.org:v.git"):
        assert open_source(address, access) == UpstreamSource(access, address, by_commit=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for spec in ("here", "~/here"):
        assert open_source(spec, access) == UpstreamSource(access, folder=tmp_path / "here")
    git(tmp_path / "here", "init", "--quiet")
    clone = tmp_path / "here"
    assert open_source("here", access) == UpstreamSource(access, str(clone), clone, by_commit=True)


@pytest.mark.parametrize(
    "spec", ["", "nowhere", "/no/such/folder", "http://example.org/v.git", "--upload-pack=x"]
)
def test_what_is_no_source_is_named(access, spec):
    with pytest.raises(UnknownNameError, match="there is no source"):
        open_source(spec, access)


def test_another_release_is_found_and_remembered(access, index):
    data = make_sdist(sdist_files("1.3.0"), "1.3.0")
    index.add("vllm-1.3.0.tar.gz", data)
    pristine = other_release(access, "1.3.0")
    assert contents(access, pristine.tree) == sdist_files("1.3.0")
    asked = len(index.requests)
    assert other_release(offline(access), "1.3.0") == pristine
    assert open_source("index", offline(access)).release("1.3.0") == pristine
    assert len(index.requests) == asked


def test_another_release_keeps_the_digest_that_was_first_stated(access, index, tmp_path):
    index.add("vllm-1.3.0.tar.gz", make_sdist(sdist_files("1.3.0"), "1.3.0"))
    index.faults = []
    other_release(access, "1.3.0")
    access.repository.close()
    shutil.rmtree(access.store.files)
    shutil.rmtree(access.repository.path)
    index.add("vllm-1.3.0.tar.gz", make_sdist(sdist_files("1.3.0", "f" * 40), "1.3.0"))
    again = make_access(tmp_path / "home", index.url)
    with pytest.raises(DigestError, match=r"1\.3\.0"):
        other_release(again, "1.3.0")
    again.repository.close()


@pytest.mark.parametrize(
    ("version", "kind", "why"),
    [("9.9.9", FetchError, "no index has"), ("x.y", UnknownNameError, "Invalid version")],
)
def test_a_release_that_does_not_exist_is_named(access, version, kind, why):
    with pytest.raises(kind) as caught:
        other_release(access, version)
    assert why in caught.value.because


def test_a_release_without_a_digest_is_refused(access, index, lock):
    index.digests[lock.sdist.filename] = None
    with pytest.raises(FetchError, match="cannot be pinned"):
        other_release(access, "1.2.0")


def test_a_mirror_gives_other_releases_too(access, mirror, index):
    (mirror / "vllm-1.3.0.tar.gz").write_bytes(make_sdist(sdist_files("1.3.0"), "1.3.0"))
    pristine = open_source(str(mirror), offline(access)).release("1.3.0")
    assert contents(access, pristine.tree) == sdist_files("1.3.0")
    assert index.requests == []
    assert (
        open_source(str(mirror), access).release("1.2.0").tree
        == open_source("index", access).release("1.2.0").tree
    )
