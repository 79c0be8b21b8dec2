"""Sources are what their tree's id says, whoever brings them; what cannot be had is stood in for."""

import os
from types import SimpleNamespace

import msgspec
import pytest
from kit import UpstreamRepository, make_tree, read_tree
from native_kit import (
    PROGRAM,
    Member,
    make_wheel,
    native_tables,
    offer,
    offer_toolkit,
    with_native,
    with_pins,
)
from small_release import make_release
from upstream_kit import offline

from sparkwright.base.errors import ConfigError, LockMismatchError, UnknownNameError
from sparkwright.git.trees import FileEntry
from sparkwright.lock.model import Candidate, SourcePin
from sparkwright.native.sources import find_sources, gather_sources, keep_source
from sparkwright.pipeline.kernels import gather

pytest_plugins = ["package_access"]

FILES = {"include/a.h": "// a\n", "include/deep/b.h": "// b\n", "CMakeLists.txt": "project(x)\n"}
UNRELATED = {"README.md": "read", "media/large.bin": os.urandom(1 << 20).hex(), "included.h": "no"}
PATHS = ("CMakeLists.txt", "include")


@pytest.fixture
def remote(tmp_path):
    made = UpstreamRepository(tmp_path / "remote")
    made.commit("One", {"include/a.h": "// older\n"})
    made.commit("Two", {**FILES, **UNRELATED})
    made.git("tag", "--annotate", "--message", "4.4.2", "v4.4.2")
    made.commit("Three", {"include/a.h": "// later\n"})
    return made


@pytest.fixture
def tree(access):
    return make_tree(access.repository, FILES)


@pytest.fixture
def lock(index, remote, tree):
    """`cutlass` from git by its tag, with a mount inside of it; nothing compiled from `quack`."""
    base = make_release().lock
    cutlass = msgspec.structs.replace(base.sources["cutlass"], repository=remote.address)
    return with_native(base, native_tables(offer_toolkit(index)), cutlass=cutlass)


def pin(lock, tree, **changes):
    """The lock with its source `cutlass` pinned to *tree*."""
    source = SourcePin(ref="v4.4.2", tree=tree, paths=PATHS)
    return with_pins(lock, cutlass=msgspec.structs.replace(source, **changes))


def cutlass(lock, access):
    return gather_sources(lock, access, wanted=["cutlass"])["cutlass"]


def store(access, files):
    """Keep *files* as a source, as `lock bump --copy` does."""
    entries = {path: FileEntry("100644", text.encode()) for path, text in files.items()}
    return keep_source(access, entries, "a clone")


# Git ---------------------------------------------------------------------------------------


def test_a_tag_at_the_remote(lock, access, tree):
    found = cutlass(pin(lock, tree), access)
    assert (found.tree, found.at_hand, found.missing) == (tree, True, "")
    assert "v4.4.2" in found.origin
    assert read_tree(access.repository, found.tree) == FILES


def test_only_the_files_that_are_wanted_are_transferred(lock, access, remote, tree, heard):
    cutlass(pin(lock, tree), access)
    fetched = [data["name"] for data in heard.of("task.started") if data["name"].startswith("fetch ")]
    assert len(fetched) == 2  # the commit's folders, then the files
    large = remote.git("rev-parse", "v4.4.2:media/large.bin")
    assert not access.repository.has(large)
    assert sum(path.stat().st_size for path in access.store.git.rglob("*") if path.is_file()) < 1 << 19


@pytest.mark.parametrize("refused", ["uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"])
def test_a_remote_that_gives_whole_commits_only(lock, access, remote, tree, refused):
    remote.git("config", refused, "false")
    remote.git("config", "protocol.version", "0")
    assert cutlass(pin(lock, tree), access).tree == tree


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ref": "v9.9.9"}, "has no tag v9.9.9"),
        ({"ref": "f" * 40}, "could not be fetched"),
        ({"tree": "f" * 40}, "is not what the lock names"),
        ({"paths": ("include",)}, "is not what the lock names"),
    ],
)
def test_what_the_remote_does_not_have_is_stood_in_for(lock, access, tree, heard, changes, why):
    found = cutlass(pin(lock, **{"tree": tree, **changes}), access)
    assert not found.at_hand
    assert why in found.missing
    assert [data["name"] for data in heard.of("source.missing")] == ["cutlass"]
    assert not list(access.store.scratch_root.iterdir())


# Packages ----------------------------------------------------------------------------------


def packaged(lock, index, tree, files=FILES, **changes):
    members = {f"thing/data/cutlass/{path}": Member(text.encode(), PROGRAM) for path, text in files.items()}
    other = {"thing/data/cutlass/README.md": "read", "thing/__init__.py": ""}
    package = offer(index, "thing_python-0.6.9-py3-none-any.whl", make_wheel({**members, **other}))
    return pin(lock, tree, package=package, folder="thing/data/cutlass", **changes)


def test_a_package_is_taken_before_git(lock, access, index, tree, heard):
    found = cutlass(packaged(lock, index, tree, repository="https://localhost/none.git"), access)
    assert (found.tree, found.origin) == (tree, "thing_python 0.6.9")
    assert read_tree(access.repository, found.tree) == FILES
    assert not [data for data in heard.of("task.started") if data["name"].startswith("fetch ")]


def test_a_package_with_other_files_is_not_believed(lock, access, index, tree):
    other = {**FILES, "include/a.h": "// changed"}
    found = cutlass(packaged(lock, index, tree, other), access)
    assert (found.tree, "v4.4.2" in found.origin) == (tree, True)  # git had the right ones
    nowhere = packaged(lock, index, make_tree(access.repository, {"x": "y"}), other, ref="v0")
    missing = cutlass(nowhere, access).missing
    assert "thing_python 0.6.9 is not what the lock names" in missing
    assert "has no tag v0" in missing


# The store ---------------------------------------------------------------------------------


def test_what_was_brought_once_is_not_asked_for_again(lock, access, index, tree):
    wanted = packaged(lock, index, tree)
    assert find_sources(wanted, access) is None
    first = gather_sources(wanted, access)
    index.requests.clear()
    again = gather_sources(wanted, offline(access))
    assert again == first == find_sources(wanted, offline(access))
    assert index.requests == []


def test_without_a_network(lock, access, index, tree):
    wanted = packaged(lock, index, tree, repository="https://localhost/none.git")
    found = cutlass(wanted, offline(access))
    assert not found.at_hand
    assert "the network is off" in found.missing


def test_a_tree_that_the_repository_lost_is_brought_again(lock, access, remote, tree):
    access.store.put_record("source-tree", "e" * 40, {"origin": "long ago"})
    assert find_sources(pin(lock, "e" * 40), access) is None


# Candidates --------------------------------------------------------------------------------

OLDER = {**FILES, "include/a.h": "// a of the candidate\n"}


@pytest.fixture
def candidate(access):
    return Candidate(ref="v4.4.1", tree=make_tree(access.repository, OLDER), attested={"_C": (2, 2)})


def test_a_candidate_is_taken_where_the_pin_cannot_be_had(lock, access, candidate, tmp_path):
    wanted = pin(lock, None, candidate=candidate)
    assert not cutlass(wanted, access).at_hand  # its remote does not have it
    assert find_sources(wanted, access) is None
    assert store(access, OLDER) == candidate.tree
    found = cutlass(wanted, access)
    assert (found.tree, found.is_candidate) == (candidate.tree, True)
    assert found.missing.startswith("the lock has no tree of cutlass v4.4.2 yet")
    assert find_sources(wanted, access)["cutlass"] == found
    # Also where the lock names a pin that does not answer.
    gone = pin(lock, "f" * 40, repository=(tmp_path / "gone").as_uri(), candidate=candidate)
    assert cutlass(gone, access).is_candidate


def test_a_candidate_is_left_alone_where_the_pin_can_be_had(lock, access, tree, candidate):
    store(access, OLDER)
    assert cutlass(pin(lock, None, candidate=candidate), access).is_candidate
    found = cutlass(pin(lock, tree, candidate=candidate), access)
    assert (found.tree, found.is_candidate, found.missing) == (tree, False, "")
    assert pin(lock, tree, candidate=candidate).native.sources["cutlass"].trees == (tree, candidate.tree)


@pytest.mark.parametrize(
    ("attested", "content", "fetched"),
    [((2, 2), OLDER, True), ((1, 2), OLDER, False), ((2, 2), {"include/a.h": "// another\n"}, False)],
    ids=["whole", "not whole", "another tree"],
)
def test_a_candidate_is_fetched_if_all_units_of_an_extension_are_attested(
    lock, access, remote, candidate, attested, content, fetched
):
    remote.commit("Older", content)
    remote.git("tag", "v4.4.1")
    wanted = pin(lock, None, candidate=msgspec.structs.replace(candidate, attested={"_C": attested}))
    assert (find_sources(wanted, access) is None) == (attested == (2, 2))
    found = cutlass(wanted, access)
    assert (found.is_candidate, found.at_hand) == (fetched, fetched)
    assert found.missing.startswith("the lock has no tree of cutlass v4.4.2 yet")
    if fetched:
        assert (found.tree, read_tree(access.repository, found.tree)) == (candidate.tree, OLDER)


def test_a_pin_that_arrived_meanwhile_is_no_candidate(lock, access, tree, tmp_path):
    """Within the hour in which what is still missing is not asked for again."""
    gone = SourcePin(ref="v1", tree="f" * 40, paths=PATHS, repository=(tmp_path / "gone").as_uri())
    wanted = with_pins(pin(lock, tree, repository=(tmp_path / "gone").as_uri()), quack=gone)
    options = SimpleNamespace(require_native=False)
    job = SimpleNamespace(
        spec=SimpleNamespace(lock=wanted),
        native=wanted.native,
        access=access,
        store=access.store,
        options=options,
    )
    first = gather(job).make()
    assert not first["cutlass"].at_hand
    assert store(access, FILES) == tree
    later = gather(job).find()
    assert later["cutlass"].missing == ""
    assert not later["cutlass"].is_candidate
    assert later["quack"].missing == first["quack"].missing


# Stand-ins, the lock --------------------------------------------------------------


def test_what_stands_in_has_the_files_that_configuring_reads(lock, access, tree):
    found = gather_sources(pin(lock, tree), access)
    quack = found["quack"]
    assert (quack.at_hand, quack.missing) == (False, "nothing is compiled from it")
    assert read_tree(access.repository, quack.tree) == {"STANDS-IN": "", "q/duck.py": ""}
    # One that is compiled from, and that the lock has no tree of, is asked for by its own name.
    pins = {name: msgspec.structs.replace(one, tree=None) for name, one in lock.native.sources.items()}
    unknown = with_pins(lock, **pins)
    missing = gather_sources(unknown, access)["cutlass"].missing
    assert missing.startswith("the lock has no tree of cutlass v4.4.2 yet")
    assert "--copy cutlass=FOLDER" in missing
    # A folder without any file would not even be there when the tree is laid out.
    empty = cutlass(pin(lock, "f" * 40), access)
    assert read_tree(access.repository, empty.tree) == {"STANDS-IN": ""}


def test_names_and_tables_that_are_not_there(lock, access, tree):
    with pytest.raises(UnknownNameError, match="no source that kernels are compiled from in the lock 'duck'"):
        gather_sources(pin(lock, tree), access, wanted=["duck"])
    with pytest.raises(ConfigError):
        gather_sources(with_native(lock, None), access)
    with pytest.raises(LockMismatchError):
        gather_sources(with_native(lock, msgspec.structs.replace(lock.native, release="1.1.0")), access)
