"""Faults between a publisher and a target, each planted in a proxy before a real server or in the server."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
import requests
import target_kit
from kit import small_disk
from target_kit import FAST, SECRET, FaultProxy, ProxyFault, opened, told
from test_publish_targets import PAGE, WHEEL, credentials, file_of
from wheelkit import sha256

from sparkwright.base.errors import LostRaceError, TamperedError, UploadError
from sparkwright.base.ports import free_port
from sparkwright.publish.targets import open_target
from sparkwright.publish.targets.s3 import PART

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kit import Recorder

_numbers = itertools.count()


@pytest.fixture(params=["s3", "nginx"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def proxy(
    kind: str, servers: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultProxy]:
    """A proxy before a server."""
    credentials(monkeypatch)
    with contextlib.ExitStack() as stack:
        if kind == "s3":
            server = servers("s3").removeprefix("http://")
        else:
            (tmp_path / "server").mkdir()
            server = stack.enter_context(target_kit.nginx(tmp_path / "server"))
        yield stack.enter_context(FaultProxy(server))


@pytest.fixture
def address(kind: str, proxy: FaultProxy) -> str:
    """The address of an empty target behind the proxy."""
    if kind == "s3":
        return f"s3://wheels/p{next(_numbers)}?endpoint=http://{proxy.address}"
    return f"dav://{proxy.address}"


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


def test_a_lost_answer_is_no_lost_race(kind: str, address: str, proxy: FaultProxy) -> None:
    target = opened(address)
    first = target.replace(PAGE, b"one", expected=None)
    if kind == "s3":
        proxy.faults = [ProxyFault(cut_answer=True)]
    else:  # the lock's move, its upload's, and the pointer's
        proxy.faults = [ProxyFault(("MOVE",), cut_answer=True), ProxyFault(("MOVE",), cut_answer=True)]
    second = target.replace(PAGE, b"two", expected=first)
    assert proxy.faults == []
    assert (target.read(PAGE).data, target.read(PAGE).tag) == (b"two", second)


def test_other_bytes_at_the_server_are_found(address: str, proxy: FaultProxy, wheel: Path) -> None:
    proxy.faults = [ProxyFault(flip=True)]
    with pytest.raises(TamperedError, match="never change"):
        opened(address).put_file(WHEEL, wheel, sha256(wheel))
    assert proxy.faults == []
    if address.startswith("dav"):
        assert opened(address).list("") == []
        opened(address).put_file(WHEEL, wheel, sha256(wheel))
    else:  # the object is there, and stays refused
        with pytest.raises(TamperedError):
            opened(address).put_file(WHEEL, wheel, sha256(wheel))


def test_a_changed_file_is_found_although_it_was_verified(
    kind: str, address: str, proxy: FaultProxy, wheel: Path, tmp_path: Path
) -> None:
    opened(address).put_file(WHEEL, wheel, sha256(wheel))
    proxy.seen.clear()
    opened(address).put_file(WHEEL, wheel, sha256(wheel))
    assert sent(proxy) == 0  # its note is believed as long as the server's ETag is the same
    other = file_of(tmp_path, 1_500_000, seed=2).read_bytes()
    if kind == "s3":
        opened(address)._client.put_object(
            Bucket="wheels", Key=f"{opened(address).prefix}/{WHEEL}", Body=other
        )
    else:
        at = tmp_path / "server/www" / WHEEL
        at.write_bytes(other)
        os.utime(at, (1, 1))
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
        opened(f"dav://127.0.0.1:{port}/wheels").read(PAGE)
    assert "same command" in raised.value.next_step


def test_a_disk_that_is_full_at_the_server_is_named(tmp_path: Path) -> None:
    """The real thing: nginx on a file system of 1 MiB."""
    root, folder = tmp_path / "small", tmp_path / "server"
    folder.mkdir()
    with target_kit.nginx(folder, root=root, prefix=small_disk(root, "1m")) as server:
        large = file_of(tmp_path, 3_000_000)
        with pytest.raises(UploadError, match=r"507|500"):
            opened(f"dav://{server}").put_file(WHEEL, large, sha256(large))
        small = file_of(tmp_path, 100_000)
        opened(f"dav://{server}").put_file(WHEEL, small, sha256(small))
        assert opened(f"dav://{server}").list("") == [WHEEL]


# Interrupted runs ------------------------------------------------------------------------------------

_PUT = """
import sys
from pathlib import Path
from sparkwright.publish.targets import open_target
address, path, file, sha256 = sys.argv[1:]
open_target(address).put_file(path, Path(file), sha256)
"""


def test_a_killed_upload_is_continued(kind: str, address: str, proxy: FaultProxy, tmp_path: Path) -> None:
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
    if kind == "s3":
        assert sent(proxy) < 2 * PART + 10_000  # the first two parts are not sent again


@pytest.mark.parametrize("kind", ["s3"], indirect=True)
def test_an_upload_of_another_file_is_not_continued(address: str, tmp_path: Path) -> None:
    target = opened(address)
    first, second = (file_of(tmp_path, 2 * PART, seed=seed) for seed in (1, 2))
    where = {"Bucket": "wheels", "Key": f"{target.prefix}/{WHEEL}"}
    upload = target._client.create_multipart_upload(**where)["UploadId"]
    part = first.read_bytes()[:PART]
    target._client.upload_part(**where, UploadId=upload, PartNumber=1, Body=part)
    target.put_file(WHEEL, second, sha256(second))
    assert target.digest(WHEEL) == sha256(second)


@pytest.mark.parametrize("kind", ["s3"], indirect=True)
def test_parts_with_other_bytes_are_refused(address: str, proxy: FaultProxy, tmp_path: Path) -> None:
    large = file_of(tmp_path, PART + 1000)
    proxy.faults = [ProxyFault(("PUT",), flip=True)]
    with pytest.raises(UploadError, match="InvalidPart"):
        opened(address).put_file(WHEEL, large, sha256(large))
    assert opened(address).stat(WHEEL) is None
    opened(address).put_file(WHEEL, large, sha256(large))


# Conditions and locks --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["s3"], indirect=True)
def test_a_store_without_conditions_is_refused(address: str, proxy: FaultProxy) -> None:
    for dropped in ("If-Match", "If-None-Match"):
        proxy.dropped = (dropped,)
        with pytest.raises(UploadError, match="ignores"):
            opened(address).replace(PAGE, b"one", expected=None)
        assert opened(address).read(PAGE) is None
    proxy.dropped = ()
    opened(address).replace(PAGE, b"one", expected=None)


@pytest.fixture
def dav(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "server"
    folder.mkdir()
    with target_kit.nginx(folder) as server:
        yield f"dav://{server}"


def with_lease(address: str, lease_s: float):
    return dataclasses.replace(opened(address), lease_s=lease_s)


def test_the_lock_of_a_dead_publisher_is_taken_over(dav: str, heard: Recorder) -> None:
    first = opened(dav).replace(PAGE, b"one", expected=None)
    dead = opened(dav)._locked(PAGE)
    dead.__enter__()  # and never left, as after kill -9
    with_lease(dav, 2).replace(PAGE, b"two", expected=first)
    taken = [event.data for event in heard.events if event.kind == "publish.lock-taken-over"]
    assert [data["path"] for data in taken] == [PAGE]
    assert taken[0]["age_s"] > 2
    # The publisher that was taken for dead wakes up while another one has the lock, which has to stay.
    lock = PAGE.replace("index.json", ".index.json.lock/")
    with opened(dav)._locked(PAGE):
        owner = opened(dav)._holder(lock)
        dead.__exit__(None, None, None)
        assert owner is not None
        assert opened(dav)._holder(lock)[0] == owner[0]
    assert opened(dav)._holder(lock) is None


def test_a_pointer_is_not_written_late(dav: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(dav).replace(PAGE, b"one", expected=None)
    slow = with_lease(dav, 2)
    read = type(slow).read
    monkeypatch.setattr(type(slow), "read", lambda *given: (read(*given), time.sleep(1.2))[0])
    with pytest.raises(LostRaceError, match="held for more than 1 s"):
        slow.replace(PAGE, b"late", expected=first)
    monkeypatch.undo()
    assert opened(dav).read(PAGE).data == b"one"


def test_nothing_is_left_beside_a_pointer(dav: str, tmp_path: Path) -> None:
    first = opened(dav).replace(PAGE, b"one", expected=None)
    with pytest.raises(LostRaceError):
        opened(dav).replace(PAGE, b"two", expected="stale")
    opened(dav).replace(PAGE, b"two", expected=first)
    folder = (tmp_path / "server/www" / PAGE).parent
    assert [at.name for at in folder.iterdir()] == ["index.json"]


# Credentials -----------------------------------------------------------------------------------------


def test_webdav_asks_for_a_password_and_never_shows_it(
    tmp_path: Path, heard: Recorder, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "nginx").mkdir()
    users = "publisher:{PLAIN}" + SECRET + "\n"
    with target_kit.nginx(tmp_path / "nginx", users=users) as server:
        for name, password in (("", ""), ("publisher", f"wrong-{SECRET}")):
            given = {"SPARKWRIGHT_DAV_USER": name, "SPARKWRIGHT_DAV_PASSWORD": password}
            target = open_target(f"dav://{server}", environment=given)
            with pytest.raises(UploadError, match="401") as raised:
                target.put_file(WHEEL, wheel, sha256(wheel))
            assert SECRET not in told(raised, heard) + repr(target)
            assert "netrc" in raised.value.next_step
        given = {"SPARKWRIGHT_DAV_USER": "publisher", "SPARKWRIGHT_DAV_PASSWORD": SECRET}
        open_target(f"dav://{server}", environment=given).put_file(WHEEL, wheel, sha256(wheel))
        (tmp_path / ".netrc").write_text(f"machine 127.0.0.1 login publisher password {SECRET}\n")
        (tmp_path / ".netrc").chmod(0o600)
        open_target(f"dav://{server}", environment={}).replace(PAGE, b"one", expected=None)
    assert SECRET not in " ".join(event.to_json() for event in heard.events)


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


def test_a_password_crosses_no_network_unencrypted(heard: Recorder) -> None:
    given = {"SPARKWRIGHT_DAV_USER": "publisher", "SPARKWRIGHT_DAV_PASSWORD": SECRET}
    with pytest.raises(UploadError, match="not encrypted") as raised:
        open_target("dav://192.0.2.1/wheels", environment=given).read(PAGE)
    assert SECRET not in told(raised, heard)


# A web server that is only read ----------------------------------------------------------------------


def test_a_plain_web_server_is_read_and_never_written(dav: str, wheel: Path) -> None:
    opened(dav).put_file(WHEEL, wheel, sha256(wheel))
    target = opened(dav.replace("dav://", "http://"))
    assert target.read(WHEEL).data == wheel.read_bytes()
    assert target.stat(WHEEL) == opened(dav).stat(WHEEL)
    assert (target.read("none"), target.stat("none")) == (None, None)
    for refused in (
        lambda: target.put_file("a.whl", wheel, sha256(wheel)),
        lambda: target.replace(PAGE, b"", expected=None),
        lambda: target.list(""),
    ):
        with pytest.raises(UploadError, match="plain web server") as raised:
            refused()
        assert "davs://" in raised.value.next_step
