"""Channels behind a plain static server, as a reader verifies them."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest
from channel_kit import POLICY, ChannelWorld, now
from static_server import Handler, served

from sparkwright.base.errors import ConfigError, FetchError, NotInStoreError, TamperedError
from sparkwright.publish import places as mirrors
from sparkwright.publish.places import HttpMirror, open_mirror
from sparkwright.publish.target import FolderTarget
from sparkwright.publish.trust import place_of
from sparkwright.upstream.network import IndexSettings

SETTINGS = IndexSettings(timeout_s=30.0, attempts=2, backoff_s=0.01)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> ChannelWorld:
    """``nightly`` has three wheels, the newest yanked; ``stable`` has the oldest."""
    world = ChannelWorld(tmp_path_factory.mktemp("clients"))
    for version in ("0.24.0+spark.9.ffffffff", "0.24.0+spark.10.10000001", "0.24.0+spark.11.aaaaaaaa"):
        world.promote(version)
    world.promote_file(world.dist / "vllm-0.24.0+spark.9.ffffffff-py3-none-any.whl", "stable")
    world.publisher().rollback("nightly", POLICY, now(), to=None, reason="crashes at 64 requests")
    return world


def http_mirror(place: str, settings: IndexSettings = SETTINGS) -> tuple[object, str]:
    return open_mirror(place, settings)


@pytest.mark.parametrize("tail", ["", "/", "/timestamp.json", "/states/x.json"])
def test_a_channel_is_verified_over_http(published: ChannelWorld, tail: str) -> None:
    with served(published.published) as (address, asked):
        mirror, name = http_mirror(f"{address}/channels/nightly{tail}")
        assert name == "nightly"
        verified = published.verify(name, mirror=mirror, wheels="newest")
    assert [file.version for file in verified.wheels] == ["0.24.0+spark.10.10000001"]
    assert len([path for path in asked if path.endswith(".whl")]) == 1
    assert any("%2B" in path for path in asked)


class _Bucket(Handler):
    """Answers as S3 does to those who may not list a bucket."""

    def answer(self) -> None:
        if Path(self.translate_path(self.path)).is_file():
            super().answer()
        else:
            self.send_error(403)


def test_a_public_bucket_that_hides_what_is_missing_is_verified(published: ChannelWorld) -> None:
    with served(published.published, _Bucket) as (address, _):
        assert published.verify(mirror=HttpMirror(address, SETTINGS), wheels="none").state.generation == 4
        assert HttpMirror(address, SETTINGS).read("channels/other/timestamp.json") is None


class _Endless(Handler):
    def answer(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.close_connection = True
        try:
            while True:
                self.wfile.write(bytes(1 << 16))
        except OSError:
            pass


class _Silent(Handler):
    def answer(self) -> None:
        threading.Event().wait(4)


class _Broken(Handler):
    def answer(self) -> None:
        self.send_error(503)


@pytest.mark.parametrize(
    ("handler", "says", "timeout_s"),
    [(_Endless, "more than", 30), (_Silent, "timed out", 0.3), (_Broken, "503", 30)],
)
def test_a_server_that_misbehaves_is_given_up(
    published: ChannelWorld,
    monkeypatch: pytest.MonkeyPatch,
    handler: type[Handler],
    says: str,
    timeout_s: float,
) -> None:
    monkeypatch.setattr(mirrors, "MOST_BYTES", 1 << 20)
    settings = IndexSettings(timeout_s=timeout_s, attempts=1, backoff_s=0.01)
    with served(published.published, handler) as (address, _), pytest.raises(FetchError, match=says):
        published.verify(mirror=HttpMirror(address, settings))


class _Baker(Handler):
    sent_back: ClassVar[list[str | None]] = []

    def answer(self) -> None:
        self.sent_back.append(self.headers.get("Cookie"))
        super().answer()

    def end_headers(self) -> None:
        self.send_header("Set-Cookie", "reader=7")
        super().end_headers()


def test_a_mirrors_cookies_are_not_kept(published: ChannelWorld) -> None:
    with served(published.published, _Baker) as (address, _):
        published.verify(mirror=HttpMirror(address, SETTINGS), wheels="none")
    assert set(_Baker.sent_back) == {None}


class _Huge(Handler):
    """States a body that no disk holds, and sends nothing of it; only wheels, where *wheels* is set."""

    wheels: ClassVar[bool] = False

    def answer(self) -> None:
        if self.wheels and not self.path.endswith(".whl"):
            super().answer()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(10**15))
        self.end_headers()


class _HugeWheels(_Huge):
    wheels = True


class _Noting(Handler):
    elsewhere: ClassVar[str] = ""
    keys: ClassVar[list[tuple[str, bool]]] = []

    def answer(self) -> None:
        host = self.headers["Host"].partition(":")[0]
        self.keys.append((host, "Authorization" in self.headers))
        if self.path.endswith("?moved"):
            self.path = self.path.removesuffix("?moved")
            super().answer()
            return
        port = self.server.server_port
        self.send_response(302)
        self.send_header("Location", f"http://{self.elsewhere}:{port}{self.path}?moved")
        self.send_header("Content-Length", "0")
        self.end_headers()


class _Nowhere(_Noting):
    elsewhere = "["


@pytest.mark.parametrize(
    ("handler", "error", "says"),
    [
        (_Huge, FetchError, "more than"),
        (_HugeWheels, TamperedError, f"has {10**15} bytes"),
        (_Nowhere, FetchError, "no address"),
    ],
)
def test_an_answer_beyond_reason_is_told_and_not_waited_for(
    published: ChannelWorld, handler: type[Handler], error: type[Exception], says: str
) -> None:
    began = time.monotonic()
    with served(published.published, handler) as (address, _), pytest.raises(error) as caught:
        published.verify(mirror=HttpMirror(address, SETTINGS))
    assert says in getattr(caught.value, "because", "")
    assert time.monotonic() - began < SETTINGS.timeout_s


@pytest.mark.parametrize(("elsewhere", "sent"), [("localhost", False), ("127.0.0.1", True)])
def test_credentials_of_netrc_stay_with_the_host_that_was_asked(
    published: ChannelWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: str, *, sent: bool
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password b\nmachine localhost login c password d\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setattr(_Noting, "elsewhere", elsewhere)
    monkeypatch.setattr(_Noting, "keys", [])
    with served(published.published, _Noting) as (address, _):
        published.verify(mirror=HttpMirror(address, SETTINGS), wheels="none")
    assert set(_Noting.keys) == {("127.0.0.1", True), (elsewhere, sent)}


def test_no_password_of_an_address_is_shown(published: ChannelWorld) -> None:
    with served(published.published, _Broken) as (address, _):
        place = address.replace("http://", "http://user:hunter2@")
        with pytest.raises(FetchError) as caught:
            published.verify(mirror=HttpMirror(place, IndexSettings(timeout_s=30, attempts=1)))
    assert "hunter2" not in f"{caught.value}{caught.value.next_step}"


def test_places_are_recognised(published: ChannelWorld, tmp_path: Path) -> None:
    root = published.published
    for place in (root / "channels/nightly", root / "channels/nightly/states"):
        assert http_mirror(str(place)) == (FolderTarget(root), "nightly")
        assert http_mirror(place.as_uri()) == (FolderTarget(root), "nightly")
    mirror, _ = http_mirror("https://example.org/a/channels/stable/states/")
    assert place_of(mirror, "stable") == "https://example.org/a/channels/stable"
    for bad in (
        root,
        tmp_path / "none",
        "ftp://example.org/channels/x",
        "https://example.org/channels/x?y=1",
    ):
        with pytest.raises(ConfigError):
            http_mirror(str(bad))
    with pytest.raises(NotInStoreError):
        http_mirror("https://example.org/channels/stable", IndexSettings(offline=True))


def test_plain_http_to_another_machine_is_refused(published: ChannelWorld) -> None:
    with pytest.raises(FetchError, match="not encrypted"):
        published.verify(mirror=HttpMirror("http://wheels.example.org", SETTINGS))
