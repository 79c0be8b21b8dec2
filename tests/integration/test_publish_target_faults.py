"""Faults between a publisher and a target, each planted in a proxy before a real server or in the server."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
import target_kit
from kit import Recorder
from target_kit import FAST, SECRET, FaultProxy, ProxyFault, opened, told
from test_publish_targets import PAGE, WHEEL, credentials, file_of
from wheelkit import sha256

from sparkwright.base.errors import TamperedError, UploadError
from sparkwright.base.ports import free_port
from sparkwright.publish.targets import open_target
from sparkwright.publish.targets.s3 import PART

_numbers = itertools.count()


@pytest.fixture
def proxy(servers: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy before a server with the S3 interface."""
    credentials(monkeypatch)
    with FaultProxy(servers("s3").removeprefix("http://")) as made:
        yield made


@pytest.fixture
def address(proxy: FaultProxy) -> str:
    """The address of an empty target behind the proxy."""
    return f"s3://wheels/p{next(_numbers)}?endpoint=http://{proxy.address}"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return file_of(tmp_path, 1_500_000)


def sent(proxy: FaultProxy) -> int:
    """The bytes of bodies that the server was sent."""
    return sum(size for _, _, size in proxy.seen)


# Failures that pass, and failures that do not --------------------------------------------------------


def test_errors_of_a_server_that_recovers_are_overcome(address: str, proxy: FaultProxy, wheel: Path) -> None:
    target = opened(address)
    proxy.faults = [ProxyFault(status=503), ProxyFault(status=500), ProxyFault(("GET", "HEAD"), status=503)]
    target.put_file(WHEEL, wheel, sha256(wheel))
    proxy.faults = [ProxyFault(status=503)]
    tag = target.replace(PAGE, b"one", expected=None)
    assert (target.read(WHEEL).data, target.read(PAGE).tag) == (wheel.read_bytes(), tag)
    assert proxy.faults == []


def test_errors_that_stay_end_after_some_tries(address: str, proxy: FaultProxy, wheel: Path) -> None:
    proxy.always = ProxyFault(status=503)
    with pytest.raises(UploadError, match="503"):
        opened(address).put_file(WHEEL, wheel, sha256(wheel))
    assert sum(method == "PUT" for method, _, _ in proxy.seen) == FAST.attempts
    proxy.always = None
    assert opened(address).stat(WHEEL) is None
    opened(address).put_file(WHEEL, wheel, sha256(wheel))


def test_an_upload_that_is_cut_off_is_sent_again(address: str, proxy: FaultProxy, wheel: Path) -> None:
    proxy.faults = [ProxyFault(cut_after=500_000)]
    opened(address).put_file(WHEEL, wheel, sha256(wheel))
    assert opened(address).read(WHEEL).data == wheel.read_bytes()
    assert proxy.faults == []


def test_a_lost_answer_is_no_lost_race(address: str, proxy: FaultProxy) -> None:
    target = opened(address)
    first = target.replace(PAGE, b"one", expected=None)
    proxy.faults = [ProxyFault(cut_answer=True)]
    second = target.replace(PAGE, b"two", expected=first)
    assert proxy.faults == []
    assert (target.read(PAGE).data, target.read(PAGE).tag) == (b"two", second)


def test_other_bytes_at_the_server_are_found(address: str, proxy: FaultProxy, wheel: Path) -> None:
    proxy.faults = [ProxyFault(flip=True)]
    with pytest.raises(TamperedError, match="never change"):
        opened(address).put_file(WHEEL, wheel, sha256(wheel))
    assert proxy.faults == []
    with pytest.raises(TamperedError):  # the object is there, and stays refused
        opened(address).put_file(WHEEL, wheel, sha256(wheel))


def test_a_changed_file_is_found_although_it_was_verified(
    address: str, proxy: FaultProxy, wheel: Path, tmp_path: Path
) -> None:
    opened(address).put_file(WHEEL, wheel, sha256(wheel))
    proxy.seen.clear()
    opened(address).put_file(WHEEL, wheel, sha256(wheel))
    assert sent(proxy) == 0  # its note is believed as long as the server's ETag is the same
    other = file_of(tmp_path, 1_500_000, seed=2).read_bytes()
    opened(address)._client.put_object(Bucket="wheels", Key=f"{opened(address).prefix}/{WHEEL}", Body=other)
    with pytest.raises(TamperedError, match="never change"):
        opened(address).put_file(WHEEL, wheel, sha256(wheel))


def test_a_full_server_is_named(address: str, proxy: FaultProxy, wheel: Path) -> None:
    proxy.always = ProxyFault(status=507)
    with pytest.raises(UploadError, match="507"):
        opened(address).put_file(WHEEL, wheel, sha256(wheel))
    with pytest.raises(UploadError, match="507"):
        opened(address).replace(PAGE, b"one", expected=None)
    proxy.always = None
    assert opened(address).list("") == []


def test_a_slow_server_is_given_up(address: str, proxy: FaultProxy, wheel: Path) -> None:
    proxy.always = ProxyFault(("GET", "HEAD", "PUT"), silence_s=3)
    started = time.monotonic()
    with pytest.raises(UploadError, match=r"timed out|timeout"):
        opened(address, timeout_s=0.3, attempts=2).read(PAGE)
    assert time.monotonic() - started < 60
    proxy.always = ProxyFault(silence_s=3)
    with pytest.raises(UploadError, match=r"timed out|timeout"):
        opened(address, timeout_s=0.3, attempts=2).put_file(WHEEL, wheel, sha256(wheel))


def test_an_absent_server_is_named() -> None:
    port = free_port()
    with pytest.raises(UploadError, match="refused") as raised:
        opened(f"http://127.0.0.1:{port}/wheels").read(PAGE)
    assert "same command" in raised.value.next_step


# Interrupted runs ------------------------------------------------------------------------------------

_PUT = """
import sys
from pathlib import Path
from sparkwright.publish.targets import open_target
address, path, file, sha256 = sys.argv[1:]
open_target(address).put_file(path, Path(file), sha256)
"""


def test_a_killed_upload_is_continued(address: str, proxy: FaultProxy, tmp_path: Path) -> None:
    large = file_of(tmp_path, 3 * PART + 1000)
    proxy.always = ProxyFault(("PUT",), silence_s=0.5)
    child = subprocess.Popen([sys.executable, "-c", _PUT, address, WHEEL, str(large), sha256(large)])
    deadline = time.monotonic() + 120
    while sent(proxy) < 2 * PART and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    proxy.always = None
    time.sleep(1)  # what the proxy had read goes on to the server
    assert opened(address).stat(WHEEL) is None
    assert opened(address).list("") == []
    proxy.seen.clear()
    opened(address).put_file(WHEEL, large, sha256(large))
    assert opened(address).digest(WHEEL) == sha256(large)
    assert sent(proxy) < 2 * PART + 10_000  # the first two parts are not sent again


def test_an_upload_of_another_file_is_not_continued(address: str, tmp_path: Path) -> None:
    target = opened(address)
    first, second = (file_of(tmp_path, 2 * PART, seed=seed) for seed in (1, 2))
    where = {"Bucket": "wheels", "Key": f"{target.prefix}/{WHEEL}"}
    upload = target._client.create_multipart_upload(**where)["UploadId"]
    part = first.read_bytes()[:PART]
    target._client.upload_part(**where, UploadId=upload, PartNumber=1, Body=part)
    target.put_file(WHEEL, second, sha256(second))
    assert target.digest(WHEEL) == sha256(second)


def test_parts_with_other_bytes_are_refused(address: str, proxy: FaultProxy, tmp_path: Path) -> None:
    large = file_of(tmp_path, PART + 1000)
    proxy.faults = [ProxyFault(("PUT",), flip=True)]
    with pytest.raises(UploadError, match="InvalidPart"):
        opened(address).put_file(WHEEL, large, sha256(large))
    assert opened(address).stat(WHEEL) is None
    opened(address).put_file(WHEEL, large, sha256(large))


# Conditions --------------------------------------------------------------------------------


def test_a_store_without_conditions_is_refused(address: str, proxy: FaultProxy) -> None:
    for dropped in ("If-Match", "If-None-Match"):
        proxy.dropped = (dropped,)
        with pytest.raises(UploadError, match="ignores"):
            opened(address).replace(PAGE, b"one", expected=None)
        assert opened(address).read(PAGE) is None
    proxy.dropped = ()
    opened(address).replace(PAGE, b"one", expected=None)


# Credentials -----------------------------------------------------------------------------------------


def test_s3_refuses_wrong_credentials_without_showing_them(
    tmp_path: Path, heard: Recorder, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials(monkeypatch)
    with target_kit.s3_server(tmp_path) as server:
        requests.post(f"{server}/moto-api/reset-auth", b"0", timeout=60).raise_for_status()
        target = opened(f"s3://wheels/p?endpoint={server}")
        with pytest.raises(UploadError, match="403") as raised:
            target.put_file(WHEEL, wheel, sha256(wheel))
        assert SECRET not in told(raised, heard) + repr(target)
        assert "AWS_ACCESS_KEY_ID" in raised.value.next_step
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(UploadError, match="credentials") as raised:
        opened(f"s3://wheels/p?endpoint={server}").stat(WHEEL)
    assert "AWS_ACCESS_KEY_ID" in raised.value.next_step


# A web server that is only read ----------------------------------------------------------------------


def test_a_plain_web_server_is_read_and_never_written(tmp_path: Path, wheel: Path) -> None:
    folder = open_target(str(tmp_path / "published"))
    folder.put_file(WHEEL, wheel, sha256(wheel))
    with target_kit.web_server(tmp_path / "published") as server:
        target = opened(server)
        assert target.read(WHEEL).data == wheel.read_bytes()
        assert target.stat(WHEEL).tag == sha256(wheel)
        assert (target.read("none"), target.stat("none")) == (None, None)
        for refused in (
            lambda: target.put_file("a.whl", wheel, sha256(wheel)),
            lambda: target.replace(PAGE, b"", expected=None),
            lambda: target.list(""),
        ):
            with pytest.raises(UploadError, match="plain web server") as raised:
                refused()
            assert "s3://" in raised.value.next_step
