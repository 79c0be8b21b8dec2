"""The settings of the remote tier, the keys of writers, and the watch over requests."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from sparkwright.base.errors import ConfigError, NewerFormatError
from sparkwright.store.remote import RemoteSettings, open_remote, read_remote_settings
from sparkwright.store.remote.backend import RemoteFailure, TransferProgress
from sparkwright.store.remote.keys import WriterKey, find_key, require_key
from sparkwright.store.remote.settings import RemoteLimits
from sparkwright.store.remote.watch import Breaker, watched

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kit import Recorder

URL = "https://store.example.org/team"
SECRET = "planted-pass-word"  # noqa: S105
QUICK = RemoteLimits(stall_s=0.2, least_rate=10_000)


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., RemoteSettings | None]:
    """Read settings with the text of ``store.toml``, an option and variables."""

    def reading(text: str = "", url: str = "", **variables: str) -> RemoteSettings | None:
        path = tmp_path / "store.toml"
        path.write_text(text)
        return read_remote_settings(url, {"SPARKWRIGHT_STORE_CONFIG": str(path), **variables})

    return reading


# Settings ------------------------------------------------------------------------------------


def test_without_an_address_there_is_none(read) -> None:
    assert read() is None
    assert read("write = false") is None


def test_the_option_is_stronger_than_the_variable_and_that_than_the_file(read) -> None:
    text = 'url = "https://file.example.org"'
    assert read(text).url == "https://file.example.org"
    assert read(text, SPARKWRIGHT_STORE_URL=URL).url == URL
    assert read(text, "s3://bucket/a/", SPARKWRIGHT_STORE_URL=URL).url == "s3://bucket/a"
    assert read(text, "none") is None


def test_every_key_of_the_file(read) -> None:
    key = WriterKey(bytes(32)).text
    found = read(f"""
        format = 1
        url = "{URL}"
        write = false
        downloads = false
        trust = "unsigned"
        connect-s = 1.0
        stall-s = 2.0
        least-rate = 3.0
        failures = 4
        patience-s = 5.0
        flush-s = 6.0
        most-bytes = 7
        [writers]
        ci = "{key}"
    """)
    assert (found.write, found.downloads, found.signed, found.writers) == (False, False, False, {"ci": key})
    assert found.limits == RemoteLimits(1.0, 2.0, 3.0, 4, 5.0, 6.0, 7)


def test_defaults_write_and_believe_nobody_else(read) -> None:
    found = read(url=URL)
    assert (found.write, found.downloads, found.signed, found.writers) == (True, True, True, {})
    assert found.limits == RemoteLimits()


@pytest.mark.parametrize(
    "text", ['trust = "everybody"', "unknown = 1", "url = 5", 'url = "x', '[writers]\nci = "rsa:abc"']
)
def test_a_file_that_does_not_match_its_format(read, text: str) -> None:
    with pytest.raises(ConfigError):
        read(text, URL)


def test_a_newer_file(read) -> None:
    with pytest.raises(NewerFormatError):
        read("format = 2", URL)


def test_a_file_that_was_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="could not be read"):
        read_remote_settings(URL, {"SPARKWRIGHT_STORE_CONFIG": str(tmp_path / "absent.toml")})


def test_credentials_leave_the_address_and_are_in_no_text(read) -> None:
    found = read(url=f"https://me:{SECRET}%21@store.example.org/team")
    assert (found.url, found.user, found.password) == (URL, "me", f"{SECRET}!")
    assert SECRET not in repr(found)
    named = {"SPARKWRIGHT_STORE_USER": "other", "SPARKWRIGHT_STORE_PASSWORD": SECRET}
    assert read(url=URL, **named).user == "other"
    token = read(url=URL, SPARKWRIGHT_STORE_TOKEN=SECRET, **named)
    assert (token.user, token.password) == ("", SECRET)


@pytest.mark.parametrize("url", [f"http://me:{SECRET}@10.0.0.1/", f"ftp://me:{SECRET}@h/", f"x:{SECRET}"])
def test_no_error_repeats_them(read, url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(url=url)
    assert SECRET not in f"{caught.value} {caught.value.next_step}"


def test_credentials_stay_on_encrypted_connections(read) -> None:
    assert read(url="http://127.0.0.1:80/").encrypted
    assert read(url="http://localhost/").encrypted
    assert read(url="s3://bucket").encrypted
    assert not read(url="http://10.0.0.1/").encrypted


# Keys ----------------------------------------------------------------------------------------


def test_a_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "key.pem"
    first = require_key(path)
    assert require_key(path).public == first.public
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert WriterKey.parse(first.public.text) == first.public
    assert first.public.signed(b"data", first.sign(b"data"))
    assert not first.public.signed(b"other", first.sign(b"data"))


def test_runs_that_begin_at_once_make_one_key(tmp_path: Path) -> None:
    made: list[str] = []
    threads = [
        threading.Thread(target=lambda: made.append(require_key(tmp_path / "key.pem").public.id))
        for _ in range(8)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(made) == 8
    assert len(set(made)) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    require_key(tmp_path / "key.pem")
    (tmp_path / "key.pem").chmod(mode)
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        find_key(tmp_path / "key.pem")
    assert "chmod 600" in caught.value.next_step


def test_what_is_no_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    assert find_key(path) is None
    path.write_text("nonsense")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="cannot be used"):
        find_key(path)
    for text in ("ed25519:short", "ed25519:?", "", "3" * 43):
        with pytest.raises(ConfigError):
            WriterKey.parse(text)


def test_reading_needs_no_key_of_its_own(tmp_path: Path) -> None:
    open_remote(RemoteSettings(url=URL, write=False, key_file=tmp_path / "key.pem"))
    open_remote(RemoteSettings(url=URL, signed=False, key_file=tmp_path / "key.pem"))
    assert not (tmp_path / "key.pem").exists()


# The watch -----------------------------------------------------------------------------------


def test_a_result_comes_back_and_so_does_an_error() -> None:
    assert watched(lambda _: 5, QUICK) == 5
    with pytest.raises(KeyError):
        watched(lambda _: {}["absent"], QUICK)


def test_silence_is_given_up_and_the_thread_is_told() -> None:
    told = threading.Event()

    def silent(transfer: TransferProgress) -> None:
        transfer.cancelled.wait(30)
        told.set()

    with pytest.raises(RemoteFailure, match="0 bytes"):
        watched(silent, QUICK)
    assert told.wait(30)


def test_too_little_is_given_up_and_enough_is_not() -> None:
    def sending(amount: int, seconds: float) -> Callable[[TransferProgress], str]:
        def send(transfer: TransferProgress) -> str:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                transfer.advance(amount)
                time.sleep(0.02)
            return "done"

        return send

    with pytest.raises(RemoteFailure):
        watched(sending(1, 30), QUICK)
    assert watched(sending(100_000, 0.6), QUICK) == "done"


def test_the_switch_opens_once_and_says_so_once(heard: Recorder) -> None:
    breaker = Breaker("reading", failures=2, patience_s=10)
    breaker.fail(RemoteFailure("first"))
    breaker.succeeded()
    breaker.fail(RemoteFailure("second"))
    assert breaker.closed
    for _ in range(3):
        breaker.fail(RemoteFailure("third"))
    assert not breaker.closed
    (told,) = heard.warnings
    assert "third" in told


def test_the_switch_opens_at_what_will_not_change() -> None:
    breaker = Breaker("reading", failures=9, patience_s=10)
    breaker.fail(RemoteFailure("too large", object_only=True))
    assert breaker.closed
    breaker.fail(RemoteFailure("forbidden", final=True))
    assert breaker.reason == "forbidden"


def test_the_switch_opens_when_patience_ends() -> None:
    breaker = Breaker("reading", failures=9, patience_s=10)
    breaker.spend(6)
    assert breaker.closed
    breaker.spend(6)
    assert not breaker.closed
