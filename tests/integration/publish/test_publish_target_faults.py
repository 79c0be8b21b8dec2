"""Faults between a publisher and a target, each planted in a proxy before a real server or in the server."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
import requests
import target_kit
from kit import Recorder
from store_servers import s3_server
from target_kit import FAST, SECRET, FaultProxy, ProxyFault, opened, told
from test_publish_targets import FILE as WHEEL
from test_publish_targets import PAGE, credentials, file_of
from wheelkit import sha256

from sparkwright.base.errors import TamperedError, UploadError
from sparkwright.publish import s3_target

_numbers = itertools.count()


@pytest.fixture
def proxy(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy before a server with the S3 interface."""
    credentials(monkeypatch)
    with FaultProxy(s3.removeprefix("http://")) as made:
        yield made


@pytest.fixture
def address(proxy: FaultProxy) -> str:
    """The address of an empty target behind the proxy."""
    return f"s3://wheels/p{next(_numbers)}?endpoint=http://{proxy.address}"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return file_of(tmp_path, 1_500_000)


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
    assert opened(address).read(WHEEL) is None
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


def test_a_changed_file_is_found_although_it_was_verified(
    address: str, proxy: FaultProxy, wheel: Path, tmp_path: Path
) -> None:
    opened(address).put_file(WHEEL, wheel, sha256(wheel))
    proxy.seen.clear()
    opened(address).put_file(WHEEL, wheel, sha256(wheel))
    assert [method for method, _, _ in proxy.seen] == ["HEAD"]
    other = file_of(tmp_path, 1_500_000, seed=2)
    client = target_kit.s3_client(f"http://{proxy.address}")
    client.put_object(Bucket="wheels", Key=f"{opened(address).prefix}/{WHEEL}", Body=other.read_bytes())
    with pytest.raises(TamperedError, match="never change"):
        opened(address).put_file(WHEEL, wheel, sha256(wheel))


def test_a_slow_server_is_given_up(address: str, proxy: FaultProxy, wheel: Path) -> None:
    proxy.always = ProxyFault(("GET", "HEAD", "PUT"), silence_s=3)
    started = time.monotonic()
    with pytest.raises(UploadError, match=r"timed out|timeout"):
        opened(address, timeout_s=0.3, attempts=2).read(PAGE)
    assert time.monotonic() - started < 60
    proxy.always = ProxyFault(silence_s=3)
    with pytest.raises(UploadError, match=r"timed out|timeout"):
        opened(address, timeout_s=0.3, attempts=2).put_file(WHEEL, wheel, sha256(wheel))


def test_an_endpoint_without_https_counts_in_the_address_alone(
    address: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{proxy.address}")
    with pytest.raises(UploadError) as raised:
        opened("s3://wheels/p").read(PAGE)
    assert "?endpoint=" in raised.value.because
    assert opened(address).read(PAGE) is None


# Sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 11])
def test_a_pointer_beyond_reason_is_not_read(
    address: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_target, "MOST_BYTES", 10)
    target = opened(address)
    target.replace(PAGE, b"1" * size, expected=None)
    if size > 10:
        with pytest.raises(UploadError, match="was not read"):
            target.read(PAGE)
    else:
        assert target.read(PAGE)


def test_a_store_that_lists_its_first_page_again_is_given_up(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_target, "_MOST_FILES", 10)
    target, of = opened(address), obstore.list
    target.replace(PAGE, b"one", expected=None)
    assert list(target.files("")) == [PAGE]
    monkeypatch.setattr(obstore, "list", lambda *words: itertools.cycle(of(*words)))
    with pytest.raises(UploadError, match="given up"):
        target.files("")


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
    heard: Recorder, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials(monkeypatch)
    with s3_server() as server:
        requests.post(f"{server}/moto-api/reset-auth", b"0", timeout=60).raise_for_status()
        target = opened(f"s3://wheels/p?endpoint={server}")
        with pytest.raises(UploadError, match="403") as raised:
            target.put_file(WHEEL, wheel, sha256(wheel))
        assert SECRET not in told(raised, heard) + repr(target)
        assert "AWS_ACCESS_KEY_ID" in raised.value.next_step
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(UploadError, match=r"credentials|403") as raised:
        opened(f"s3://wheels/p?endpoint={server}").read(WHEEL)
    assert "AWS_ACCESS_KEY_ID" in raised.value.next_step
