"""Downloads against a real HTTP server that misbehaves, and processes that are killed."""

import signal
from pathlib import Path

import pytest
from http_index import DATA, NAME, Fault, RunningIndex
from killed import stopped
from kit import python

from sparkwright.base.errors import DigestError, FetchError, NotInStoreError, StorageError
from sparkwright.base.events import subscribe
from sparkwright.lock.model import Artifact
from sparkwright.upstream.download import fetch_artifact
from sparkwright.upstream.index import find, locate, remote_size
from sparkwright.upstream.network import IndexSettings


@pytest.fixture
def settings(index):
    return IndexSettings(index_url=index.url, timeout_s=2, attempts=3, backoff_s=0.01)


@pytest.fixture
def events():
    seen = []
    with subscribe(seen.append):
        yield seen


def kinds(events):
    return [event.kind for event in events]


@pytest.mark.parametrize("as_json", [False, True], ids=["html", "json"])
def test_fetches_by_name_and_digest_once(store, artifact, settings, index, events, as_json):
    index.json = as_json
    path = fetch_artifact(store, artifact, settings)
    assert path.read_bytes() == DATA
    assert path == store.find_file(artifact.sha256)
    assert path.stat().st_mode & 0o222 == 0
    assert fetch_artifact(store, artifact, settings) == path
    assert index.downloads == [None]
    started = next(event for event in events if event.kind == "task.started")
    assert started.data["total"] == len(DATA)
    assert started.data["unit"] == "B"
    assert not list(store.partial.iterdir())


def test_resumes_what_a_dropped_connection_left(store, artifact, settings, index, events):
    index.faults = [Fault(drop_after=200_000), Fault(drop_after=100_000)]
    assert fetch_artifact(store, artifact, settings).read_bytes() == DATA
    first, second, third = index.downloads
    assert first is None
    got = [int(header.removeprefix("bytes=").rstrip("-")) for header in (second, third)]
    assert 0 < got[0] <= 200_000
    assert got[0] < got[1] <= 300_000
    assert kinds(events).count("fetch.retry") == 2


@pytest.mark.parametrize(
    "fault",
    [
        Fault(ignore_range=True), Fault(shift_range=10), Fault(status=416), Fault(status=503),
        Fault(status=429), Fault(silence_s=2.5),
    ],
    ids=["ignores-range", "other-range", "range-refused", "503", "429", "silent"],
)  # fmt: skip
def test_recovers_when_the_second_request_goes_wrong(store, artifact, settings, index, fault):
    index.faults = [Fault(drop_after=130_000), fault]
    assert fetch_artifact(store, artifact, settings).read_bytes() == DATA
    assert len(index.downloads) >= 2


def test_keeps_what_came_when_it_gives_up(store, artifact, settings, index):
    index.faults = [Fault(drop_after=130_000)] + [Fault(status=503)] * 5
    with pytest.raises(FetchError, match="503") as caught:
        fetch_artifact(store, artifact, settings)
    assert "run again" in caught.value.next_step
    kept = (store.partial / artifact.sha256).stat().st_size
    assert 0 < kept <= 130_000
    index.faults = []
    assert fetch_artifact(store, artifact, settings).read_bytes() == DATA
    assert index.downloads[-1] == f"bytes={kept}-"


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_is_not_asked_again(store, artifact, settings, index, status):
    index.faults = [Fault(status=status)] * 5
    with pytest.raises(FetchError, match=str(status)):
        fetch_artifact(store, artifact, settings)
    assert len(index.downloads) == 1


def test_wrong_bytes_never_enter_the_store(store, artifact, settings, index):
    index.faults = [Fault(flip=True)]
    with pytest.raises(DigestError, match=NAME):
        fetch_artifact(store, artifact, settings)
    assert store.find_file(artifact.sha256) is None
    assert not (store.partial / artifact.sha256).exists()


def test_a_damaged_partial_file_costs_one_restart(store, artifact, settings, index, events):
    (store.partial / artifact.sha256).write_bytes(b"\0" * 100_000)
    assert fetch_artifact(store, artifact, settings).read_bytes() == DATA
    assert index.downloads == ["bytes=100000-", None]
    assert "fetch.restarted" in kinds(events)


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
def test_another_size_than_the_lock_names_is_refused_at_once(store, artifact, settings, index, size):
    wrong = Artifact(filename=NAME, sha256=artifact.sha256, size=size)
    with pytest.raises(DigestError, match="bytes, not"):
        fetch_artifact(store, wrong, settings)
    assert len(index.downloads) == 1


def test_a_body_without_length_may_not_grow_past_the_size(store, artifact, settings, index):
    index.faults = [Fault(longer=200_000)]
    with pytest.raises(DigestError, match="more bytes"):
        fetch_artifact(store, artifact, settings)
    assert (store.partial / artifact.sha256).stat().st_size <= len(DATA)


def test_another_digest_on_the_index_is_refused_before_any_download(store, artifact, settings, index):
    index.digests[NAME] = "0" * 64
    with pytest.raises(DigestError, match="on the index"):
        fetch_artifact(store, artifact, settings)
    assert index.downloads == []


def test_a_page_without_digests_still_serves_verified_files(store, artifact, settings, index):
    index.digests[NAME] = None
    assert fetch_artifact(store, artifact, settings).read_bytes() == DATA
    index.files[NAME] = DATA[::-1]
    with pytest.raises(DigestError):
        fetch_artifact(store, Artifact(filename=NAME, sha256="1" * 64, size=len(DATA)), settings)


def test_offline_names_what_is_missing(store, artifact, settings, index):
    offline = IndexSettings(index_url=index.url, offline=True)
    with pytest.raises(NotInStoreError) as caught:
        fetch_artifact(store, artifact, offline)
    assert NAME in str(caught.value)
    assert artifact.sha256 in str(caught.value)
    assert index.requests == []
    fetch_artifact(store, artifact, settings)
    assert fetch_artifact(store, artifact, offline).read_bytes() == DATA


def test_a_full_disk_is_named_before_the_download(store, artifact, settings, index):
    huge = Artifact(filename=NAME, sha256=artifact.sha256, size=1 << 60)
    with pytest.raises(StorageError, match="MiB free"):
        fetch_artifact(store, huge, settings)
    assert index.downloads == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the kernel's always-full device is Linux's")
def test_a_disk_that_fills_up_midway_is_named(store, artifact, settings, index):
    (store.partial / artifact.sha256).symlink_to("/dev/full")
    with pytest.raises(StorageError, match="no space left") as caught:
        fetch_artifact(store, artifact, settings)
    assert "kept" in str(caught.value)
    assert len(index.downloads) == 1


def child(store, artifact, index):
    """A process of its own that fetches *artifact*."""
    code = (
        "import sys; from pathlib import Path\n"
        "from sparkwright.lock.model import Artifact; from sparkwright.store.paths import open_store\n"
        "from sparkwright.upstream.download import fetch_artifact\n"
        "from sparkwright.upstream.network import IndexSettings\n"
        "home, name, sha256, size, url = sys.argv[1:]\n"
        "artifact = Artifact(filename=name, sha256=sha256, size=int(size))\n"
        "print(fetch_artifact(open_store(Path(home)), artifact, IndexSettings(index_url=url)))\n"
    )
    arguments = [store.home, artifact.filename, artifact.sha256, artifact.size, index.url]
    return python(code, *arguments)


def test_a_killed_run_is_resumed_by_the_next(store, artifact, settings, index):
    index.faults = [Fault(pause_s=0.2)]
    partial = store.partial / artifact.sha256
    begun = lambda: partial.exists() and partial.stat().st_size >= 150_000  # noqa: E731
    stopped(child(store, artifact, index), signal.SIGKILL, begun)
    kept = partial.stat().st_size
    assert kept < len(DATA)
    assert store.find_file(artifact.sha256) is None
    assert fetch_artifact(store, artifact, settings).read_bytes() == DATA
    assert index.downloads == [None, f"bytes={kept}-"]


def test_two_runs_at_once_download_once(store, artifact, index):
    index.faults = [Fault(pause_s=0.1)]
    with child(store, artifact, index) as one, child(store, artifact, index) as two:
        answers = {one.communicate()[0].strip(), two.communicate()[0].strip()}
    assert one.returncode == two.returncode == 0
    assert answers == {str(store.file_path(artifact.sha256))}
    assert index.downloads == [None]


def test_finds_the_files_of_one_version(settings, index):
    wheel = "vllm-1.0-cp38-abi3-manylinux_2_28_aarch64.whl"
    index.add(wheel, b"wheel")
    index.add("vllm-1.0.1.tar.gz", b"other")
    found = {file.filename: file for file in find("vllm", "1.0", settings)}
    assert set(found) == {NAME, wheel}
    assert found[NAME].is_sdist
    assert not found[wheel].is_sdist
    assert found[wheel].sha256 == index.digests[wheel]
    assert find("vllm", "3.0", settings) == []


@pytest.mark.parametrize("as_json", [False, True], ids=["from-the-server", "from-the-page"])
def test_the_size_is_stated_without_a_download(settings, index, as_json):
    index.json = as_json
    (file,) = find("vllm", "1.0", settings)
    assert remote_size(file, settings) == len(DATA)
    assert index.downloads == []


def test_index_pages_are_asked_again_when_the_server_is_busy(settings, index, events):
    index.page_faults = [503, 502]
    assert [file.filename for file in find("vllm", "1.0", settings)] == [NAME]
    assert kinds(events).count("fetch.retry") == 2


def test_a_further_index_fills_in_and_may_be_absent(tmp_path, artifact, index, events):
    with RunningIndex() as empty:
        settings = IndexSettings(
            index_url=empty.url, extra_index_urls=(tmp_path.as_uri(), index.url), attempts=1, backoff_s=0.01
        )
        assert locate(artifact, settings).sha256 == artifact.sha256
    skipped = [event.data["index"] for event in events if event.kind == "index.skipped"]
    assert skipped == [empty.url, tmp_path.as_uri()]


def test_a_release_is_never_mixed_from_two_indexes(index):
    with RunningIndex() as other:
        other.add("vllm-1.0-py3-none-any.whl", b"planted")
        settings = IndexSettings(index_url=index.url, extra_index_urls=(other.url,))
        assert [file.filename for file in find("vllm", "1.0", settings)] == [NAME]
        assert other.requests == []


def test_a_folder_can_be_an_index(tmp_path, store):
    project = tmp_path / "simple" / "vllm"
    project.mkdir(parents=True)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / NAME).write_bytes(DATA)
    project.joinpath("index.html").write_text(f'<a href="../../files/{NAME}">{NAME}</a>')
    settings = IndexSettings(index_url=(tmp_path / "simple").as_uri())
    import hashlib

    artifact = Artifact(filename=NAME, sha256=hashlib.sha256(DATA).hexdigest(), size=len(DATA))
    assert fetch_artifact(store, artifact, settings).read_bytes() == DATA
    assert (tmp_path / "files" / NAME).is_file()


def test_credentials_in_an_address_are_not_shown(index, events):
    secret = index.url.replace("http://", "http://user:secret@")
    with pytest.raises(FetchError) as caught:
        locate(
            Artifact(filename="other-1.0.tar.gz", sha256="0" * 64, size=1),
            IndexSettings(index_url=secret, attempts=1),
        )
    index.page_faults = [500]
    with pytest.raises(FetchError) as refused:
        find("vllm", "1.0", IndexSettings(index_url=secret, attempts=1))
    texts = [str(caught.value), str(refused.value), *(str(event.data) for event in events)]
    assert not [text for text in texts if "secret" in text]
