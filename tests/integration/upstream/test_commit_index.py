"""Upstream's index of wheels by commit: what is taken from it, remembered, and refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from commit_kit import MACHINES, CommitIndex, SmallUpstream
from upstream_kit import make_access, offline

from sparkwright.base.digests import sha256_file
from sparkwright.base.errors import DigestError, FetchError, NotInStoreError, WheelError
from sparkwright.upstream import download
from sparkwright.upstream.commits import first_download, has_wheels, nightly_commit
from sparkwright.upstream.download import fetch_artifact
from sparkwright.upstream.index import list_wheels

VERSION = "1.2.1.dev3+g{}"


@pytest.fixture
def upstream(tmp_path):
    return SmallUpstream(tmp_path / "upstream")


@pytest.fixture
def index(tmp_path):
    with CommitIndex(tmp_path / "served") as running:
        yield running


@pytest.fixture
def access(tmp_path, index):
    made = make_access(tmp_path / "home")
    yield replace(made, settings=replace(made.settings, upstream_wheels=index.url))
    made.repository.close()


@pytest.fixture
def commit(upstream):
    return upstream.git("rev-parse", "HEAD")


@pytest.fixture
def wheels(index, upstream, commit):
    """The wheels of *commit*, offered."""
    return dict(zip(MACHINES, index.offer(upstream, commit, VERSION.format(commit[:9])), strict=True))


def test_a_wheel_is_taken_and_its_digest_recorded(access, commit, wheels):
    found = first_download(access, commit, "aarch64")
    assert (found.filename, found.sha256) == (wheels["aarch64"].name, sha256_file(wheels["aarch64"]))
    assert (found.commit, found.trust) == (commit, "first-download")
    assert access.store.find_intact(found.sha256)


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_wheel_of_an_unknown_digest_is_fetched_to_a_limit(access, commit, wheels, monkeypatch, beyond):
    size = wheels["aarch64"].stat().st_size
    monkeypatch.setattr(download, "MOST_WHEEL_BYTES", size - beyond)
    if beyond:
        with pytest.raises(FetchError, match="no wheel has more"):
            first_download(access, commit, "aarch64")
    else:
        assert first_download(access, commit, "aarch64").size == size


def test_what_is_known_asks_nothing_and_works_offline(access, index, commit, wheels):
    found = first_download(access, commit, "aarch64")
    asked = len(index.requests)
    assert first_download(access, commit, "aarch64") == found
    assert first_download(offline(access), commit, "aarch64") == found
    assert len(index.requests) == asked
    with pytest.raises(NotInStoreError):
        first_download(offline(access), commit, "x86_64")
    assert not has_wheels(offline(access), commit, MACHINES)
    assert has_wheels(offline(access), commit, ["aarch64"])


@pytest.mark.parametrize("grown", [b"", b"more"])
def test_the_first_bytes_win(access, commit, wheels, grown):
    found = first_download(access, commit, "aarch64")
    access.store.drop(found.sha256, "the test")
    healthy = wheels["aarch64"].read_bytes()
    wheels["aarch64"].write_bytes(bytes([healthy[0] ^ 1]) + healthy[1:] + grown)
    with pytest.raises(DigestError, match=re.escape(found.filename)):
        fetch_artifact(access.store, found, access.settings)
    assert first_download(access, commit, "aarch64") == found, "and stay recorded"
    wheels["aarch64"].write_bytes(healthy)
    assert sha256_file(fetch_artifact(access.store, found, access.settings)) == found.sha256


def test_a_commit_without_a_wheel(access, index, commit, wheels):
    other = "f" * 40
    assert list_wheels(other, access.settings) == ()
    assert not has_wheels(access, other, ["aarch64"])
    with pytest.raises(FetchError, match=other[:12]):
        first_download(access, other, "aarch64")
    index.list_files(commit, wheels["x86_64"].name)
    with pytest.raises(FetchError, match="aarch64"):
        first_download(access, commit, "aarch64")


def test_nightly_is_the_commit_that_its_page_leads_to(access, index, upstream, commit, wheels):
    assert nightly_commit(access) == commit
    later = upstream.commit("Later (#2)", {"vllm/later.py": "LATER = True\n"})
    assert nightly_commit(access) == commit, "a commit without a wheel is not it"
    index.offer(upstream, later, VERSION.format(later[:9]))
    assert nightly_commit(offline(access)) == commit, "offline, the last that was seen"
    assert nightly_commit(access) == later


def test_a_nightly_that_was_never_seen(access):
    with pytest.raises(NotInStoreError):
        nightly_commit(offline(access))
    with pytest.raises(FetchError):
        nightly_commit(access)


HERE = "../../"
HOSTILE = {
    "another host": "https://example.org/{commit}/{name}",
    "another port": "http://127.0.0.1:9/{commit}/{name}",
    "another scheme": "file:///{commit}/{name}",
    "out of the folder": "../../../../{name}",
    "another commit": "../../../{other}/{name}",
    "not a commit": "../../../nightly/{name}",
    "a folder below": "../../deep/{name}",
    "an escaped way up": "../../..%2F..%2F{name}",
    "an escaped folder": "../../a%2F{name}",
    "a backslash": "../../..%5C{name}",
    "a control character": "../../vllm%00-1.2.0-cp38-abi3-manylinux_2_28_aarch64.whl",
    "no wheel": "../../vllm-1.2.0.tar.gz",
    "no wheel's name": "../../vllm.whl",
    "another project": "../../torch-1.2.0-cp38-abi3-manylinux_2_28_aarch64.whl",
    "no version": "../../vllm-new-cp38-abi3-manylinux_2_28_aarch64.whl",
    "another commit's version": "../../vllm-1.2.1.dev3%2Bgfffffffff-cp38-abi3-manylinux_2_28_aarch64.whl",
    "an untagged version without a commit": "../../vllm-1.2.1.dev3-cp38-abi3-manylinux_2_28_aarch64.whl",
    "another variant": "../../vllm-1.2.0%2Bcu129-cp38-abi3-manylinux_2_28_aarch64.whl",
}  # fmt: skip


@pytest.mark.parametrize("link", HOSTILE.values(), ids=HOSTILE)
def test_a_page_with_a_link_that_does_not_fit_is_refused(access, index, commit, wheels, link):
    name = wheels["aarch64"].name
    href = link.format(commit=commit, other="f" * 40, name=name.replace("+", "%2B"))
    index.page(commit, {HERE + name.replace("+", "%2B"): name, href: name})
    with pytest.raises(FetchError):
        first_download(access, commit, "aarch64")
    assert not [path for path in index.requests if path.endswith(".whl")], "nothing on it is fetched"
    assert not (access.store.records / "commit-wheel").exists()
    index.list_files(commit, name)
    assert first_download(access, commit, "aarch64").filename == name, "its healthy twin is taken"


def test_two_wheels_for_one_machine_are_refused(access, index, commit, wheels):
    name = wheels["aarch64"].name
    index.list_files(commit, name, name.replace("2_28", "2_31"))
    with pytest.raises(FetchError, match="2_31"):
        list_wheels(commit, access.settings)


def test_wheels_for_other_systems_are_no_machines(access, index, commit, wheels):
    name = wheels["aarch64"].name
    index.list_files(commit, name, name.replace("manylinux_2_28_aarch64", "macosx_14_0_arm64"))
    assert [wheel.machine for wheel in list_wheels(commit, access.settings)] == ["aarch64", ""]


def test_a_page_that_redirects_is_refused(access, index, commit, wheels):
    page = index.folder / commit / "cu130" / "vllm" / "index.html"
    page.unlink()
    (page / "below").mkdir(parents=True)  # the server redirects to the folder
    with pytest.raises(FetchError):
        list_wheels(commit, access.settings)


def test_a_wheel_that_says_that_it_is_of_another_commit(access, index, upstream, commit):
    index.offer(upstream, commit, VERSION.format(commit[:9]), stated="f" * 40)
    with pytest.raises(WheelError, match=commit):
        first_download(access, commit, "aarch64")
    with pytest.raises(NotInStoreError):
        first_download(offline(access), commit, "aarch64")


def test_a_wheel_whose_name_states_another_version(access, index, upstream, commit):
    (path,) = index.offer(upstream, commit, VERSION.format(commit[:9]), machines=("aarch64",))
    renamed = path.with_name(path.name.replace("dev3", "dev4"))
    path.rename(renamed)
    index.list_files(commit, renamed.name)
    with pytest.raises(WheelError, match=r"dev4"):
        first_download(access, commit, "aarch64")


def test_the_network_is_never_used_unencrypted(access, commit):
    plain = replace(access, settings=replace(access.settings, upstream_wheels="http://example.org/"))
    with pytest.raises(FetchError, match=r"example\.org"):
        first_download(plain, commit, "aarch64")
