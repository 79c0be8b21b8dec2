"""The remote tier on real servers: nginx with WebDAV's PUT, and a server with the S3 interface."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kit import Recorder
from store_servers import nginx_store

from sparkwright.base.digests import digest_of, sha256_bytes
from sparkwright.base.errors import ToolError
from sparkwright.store.paths import Store, open_store
from sparkwright.store.remote.client import RemoteFailure, RemoteLimits, RemoteSettings
from sparkwright.store.remote.tier import RemoteTier

KEY = digest_of("a key")
SECRET = "planted-secret-key"  # noqa: S105
LIMITS = RemoteLimits(stall_s=20)


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with nginx_store(tmp_path_factory.mktemp("nginx"), most="30m") as url:
        yield f"{url}/team"


@pytest.fixture(scope="module")
def bucket(s3: str) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patched:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            patched.delenv(name, raising=False)
        patched.setenv("AWS_ENDPOINT_URL", s3)
        patched.setenv("AWS_ACCESS_KEY_ID", "key-id")
        patched.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patched.setenv("AWS_REGION", "us-east-1")
        yield "s3://wheels/team"


@pytest.fixture(params=["nginx", "bucket"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def machine(tmp_path: Path, url: str) -> Callable[[str], Store]:
    settings = RemoteSettings(url=url, key_file=tmp_path / "key.pem", limits=LIMITS)
    return lambda name: open_store(tmp_path / name, RemoteTier(settings))


def add(store: Store, data: bytes) -> str:
    with store.scratch() as scratch:
        (scratch / "made").write_bytes(data)
        store.adopt_file(scratch / "made", sha256_bytes(data))
    return sha256_bytes(data)


@pytest.mark.parametrize("size", [0, 1, 12_000_000])
def test_a_file_and_its_record_travel(machine, size: int) -> None:
    data = random.Random(size).randbytes(size)
    first = machine("first")
    record = {"sha256": add(first, data), "size": size}
    key = digest_of(size)
    first.put_record("extension", key, record)
    assert (first.remote.report.stopped, first.remote.report.written) == ("", 2)
    second = machine("second")
    assert second.find_record("extension", key) == record
    assert second.find_file(record["sha256"], size=size).read_bytes() == data


def test_a_system_without_certificates(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a bare container is; those of the Python package are taken."""
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", "/dev/null")
    found = machine("first").remote.examine()
    assert (found["read"], found["write"]) == ("yes", "yes")


def test_what_is_not_there(machine, heard: Recorder) -> None:
    store = machine("first")
    assert store.find_file("0" * 64) is None
    assert store.find_record("unit", "0" * 64) is None
    assert store.remote.report.misses == 2
    assert store.remote.client.has(f"cas/{'0' * 64}") is False
    assert heard.of("warning") == []


def test_a_record_is_replaced_as_a_whole(machine) -> None:
    for number in range(3):
        machine(str(number)).put_record("proof", KEY, {"number": number})
        assert machine(f"reader {number}").find_record("proof", KEY) == {"number": number}


def test_an_address_without_such_a_bucket(bucket: str, tmp_path: Path, heard: Recorder) -> None:
    settings = RemoteSettings(url="s3://absent/team", key_file=tmp_path / "key.pem", limits=LIMITS)
    store = open_store(tmp_path / "store", RemoteTier(settings))
    with pytest.raises(RemoteFailure) as caught:
        store.remote.client.put("cas/x", b"x")
    assert SECRET not in str(caught.value)
    assert "key-id" not in str(caught.value)
    assert store.remote.examine()["write"] != "yes"


def test_a_bucket_that_cannot_be_reached(bucket, tmp_path, monkeypatch, heard):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    limits = replace(LIMITS, stall_s=2)
    settings = RemoteSettings(url=bucket, key_file=tmp_path / "key.pem", limits=limits)
    store = open_store(tmp_path / "store", RemoteTier(settings))
    for number in range(5):
        assert store.find_file(digest_of(number)) is None
    assert store.remote.report.stopped
    assert SECRET not in str(heard.events)


def test_obstore_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(ToolError, match="s3://") as caught:
        RemoteTier(RemoteSettings(url="s3://shared/team", key_file=tmp_path / "key.pem"))
    assert "sparkwright[remote]" in caught.value.next_step
