"""Indexes that name what is not theirs, come without end, or are asked for in the clear."""

import hashlib
import os
from pathlib import Path

import pytest
from http_index import DATA, NAME, Fault

from sparkwright.base.errors import DigestError, FetchError
from sparkwright.upstream.download import adopt_copy, fetch_artifact
from sparkwright.upstream.index import find, locate, remote_size
from sparkwright.upstream.network import IndexSettings


@pytest.fixture
def settings(index):
    return IndexSettings(index_url=index.url, timeout_s=1, attempts=2, backoff_s=0.01)


# Local files -------------------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [False, True], ids=["html", "json"])
@pytest.mark.parametrize("target", ["/dev/zero", "/etc/passwd", "right"])
def test_an_index_on_a_network_cannot_name_local_files(
    store, artifact, settings, index, tmp_path, target, as_json
):
    """Not even one that holds the right bytes: an answer would tell the index that it does."""
    index.json = as_json
    right = tmp_path / "right"
    right.write_bytes(DATA)
    index.addresses[NAME] = right.as_uri() if target == "right" else f"file://{target}"
    for ask in (lambda: fetch_artifact(store, artifact, settings), lambda: find("vllm", "1.0", settings)):
        with pytest.raises(FetchError) as caught:
            ask()
        assert hashlib.sha256(Path("/etc/passwd").read_bytes()).hexdigest() not in str(caught.value)
    assert not any(path.is_file() for path in store.files.rglob("*"))


def folder_index(folder: Path, target: Path) -> IndexSettings:
    page = folder / "simple" / "vllm" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="{target.as_uri()}">{NAME}</a>')
    return IndexSettings(index_url=(folder / "simple").as_uri(), attempts=1)


@pytest.mark.parametrize("kind", ["/dev/zero", "pipe", "folder", "missing"])
def test_an_index_in_a_folder_names_plain_files_only(store, artifact, tmp_path, kind):
    target = Path(kind) if kind.startswith("/") else tmp_path / kind
    if kind == "pipe":
        os.mkfifo(target)
    elif kind == "folder":
        target.mkdir()
    settings = folder_index(tmp_path, target)
    with pytest.raises(FetchError):
        fetch_artifact(store, artifact, settings)
    with pytest.raises(FetchError):
        remote_size(locate(artifact, settings), settings)


@pytest.mark.parametrize("change", [b"more", -1])
def test_a_file_of_another_size_is_refused_before_it_is_copied(store, artifact, tmp_path, change):
    target = tmp_path / "file"
    target.write_bytes(DATA + change if isinstance(change, bytes) else DATA[:change])
    with pytest.raises(DigestError):
        adopt_copy(store, target, artifact)
    target.write_bytes(DATA)
    assert adopt_copy(store, target, artifact).read_bytes() == DATA


def test_a_file_that_grows_while_it_is_copied_is_not_followed(store, artifact, tmp_path, monkeypatch):
    target = tmp_path / "file"
    with target.open("wb") as stream:
        stream.truncate(1 << 30)
    state = os.fstat

    def smaller(handle):
        found = list(state(handle))
        found[6] = artifact.size  # st_size
        return os.stat_result(found)

    monkeypatch.setattr("sparkwright.upstream.download.os.fstat", smaller)
    copied = []
    adopt = store.adopt_file

    def look(path, *rest, **options):
        copied.append(path.stat().st_size)
        return adopt(path, *rest, **options)

    monkeypatch.setattr(type(store), "adopt_file", lambda _, *rest, **options: look(*rest, **options))
    with pytest.raises(DigestError):
        adopt_copy(store, target, artifact)
    assert copied[0] <= artifact.size + (2 << 20)


# In the clear ------------------------------------------------------------------------------


def in_the_clear(index):
    """The same server under an address that counts as another machine's."""
    return index.url.replace("127.0.0.1", "0.0.0.0")  # noqa: S104 - asked, not listened on


@pytest.mark.parametrize("trusted", [(), ("other",), ("0.0.0.1",)])
def test_another_machine_is_not_asked_in_the_clear(store, artifact, index, trusted):
    settings = IndexSettings(index_url=in_the_clear(index), attempts=1, trusted_hosts=trusted)
    with pytest.raises(FetchError) as caught:
        fetch_artifact(store, artifact, settings)
    assert caught.value.exit_code == 20
    assert "trusted-host" in caught.value.because
    assert index.requests == []


@pytest.mark.parametrize("port", [False, True])
def test_a_host_that_the_user_told_pip_to_trust_is(store, artifact, index, port):
    address = in_the_clear(index)
    host = address.split("/")[2]
    trusted = (host if port else host.partition(":")[0],)
    settings = IndexSettings(index_url=address, attempts=1, trusted_hosts=trusted)
    assert fetch_artifact(store, artifact, settings).read_bytes() == DATA


def test_neither_a_link_nor_a_redirect_leads_into_the_clear(store, artifact, settings, index):
    elsewhere = in_the_clear(index).replace("/simple/", f"/files/{NAME}")
    index.faults = [Fault(redirect=elsewhere)]
    with pytest.raises(FetchError):
        fetch_artifact(store, artifact, settings)
    index.addresses[NAME] = elsewhere
    with pytest.raises(FetchError):
        fetch_artifact(store, artifact, settings)
    assert len(index.downloads) == 1
    del index.addresses[NAME]
    index.faults = [Fault(redirect=index.url.replace("/simple/", f"/files/{NAME}"))]
    assert fetch_artifact(store, artifact, settings).read_bytes() == DATA


# Without end -------------------------------------------------------------------------------


def test_a_file_that_drips_is_given_up_and_what_came_is_kept(store, artifact, settings, index):
    index.faults = [Fault(drip_s=0.02)]
    with pytest.raises(FetchError) as caught:
        fetch_artifact(store, artifact, settings)
    assert "run again" in caught.value.next_step
    kept = (store.partial / artifact.sha256).stat().st_size
    assert 0 < kept < len(DATA)
    assert fetch_artifact(store, artifact, settings).read_bytes() == DATA
    assert index.downloads[-1] == f"bytes={kept}-"


@pytest.mark.parametrize("as_json", [False, True], ids=["html", "json"])
def test_a_page_that_drips_is_given_up(settings, index, as_json):
    index.json = as_json
    index.page_drip_s = 0.05
    with pytest.raises(FetchError):
        find("vllm", "1.0", settings)


def test_a_page_without_end_is_given_up(settings, index, monkeypatch):
    monkeypatch.setattr("sparkwright.upstream.network._MOST_PAGE_BYTES", 10_000)
    assert find("vllm", "1.0", settings)
    for number in range(300):
        index.add(f"vllm-1.0.{number}.tar.gz", b"x")
    with pytest.raises(FetchError):
        find("vllm", "1.0", settings)


def test_a_page_that_states_a_size_beyond_reason_is_not_waited_for(index):
    index.page_bytes = 10**15
    with pytest.raises(FetchError, match=r"has more than \d+ bytes"):
        find("vllm", "1.0", IndexSettings(index_url=index.url, timeout_s=60, attempts=3))
    assert len(index.requests) == 1
