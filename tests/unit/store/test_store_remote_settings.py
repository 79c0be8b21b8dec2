"""The settings of the remote tier and the keys of writers."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from securesystemslib.signer import CryptoSigner

from sparkwright.base.errors import ConfigError, NewerFormatError
from sparkwright.store.remote.client import RemoteSettings, read_remote_settings
from sparkwright.store.remote.entries import WriterKey, find_key, public_of, require_key
from sparkwright.store.remote.tier import RemoteTier

URL = "https://store.example.org/team"
SECRET = "planted-pass-word"  # noqa: S105


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


def test_every_key_of_the_file_and_its_default(read) -> None:
    key = WriterKey(bytes(32)).text
    found = read(f'format = 1\nurl = "{URL}"\nwrite = false\n[writers]\nci = "{key}"\n')
    assert (found.write, found.writers) == (False, {"ci": key})
    found = read(url=URL)
    assert (found.write, found.writers) == (True, {})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("unknown = 1", ConfigError),
        ("url = 5", ConfigError),
        ('url = "x', ConfigError),
        ("format = 2", NewerFormatError),
    ],
)
def test_a_file_that_does_not_match_its_format(read, text: str, error: type[ConfigError]) -> None:
    with pytest.raises(error):
        read(text, URL)


def test_a_file_that_was_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="could not be read"):
        read_remote_settings(URL, {"SPARKWRIGHT_STORE_CONFIG": str(tmp_path / "absent.toml")})


def test_a_token_is_in_no_text_and_goes_over_encrypted_connections_alone(read) -> None:
    found = read(url=URL, SPARKWRIGHT_STORE_TOKEN=SECRET)
    assert (found.url, found.token) == (URL, SECRET)
    assert SECRET not in repr(found)
    with pytest.raises(ConfigError, match="SPARKWRIGHT_STORE_TOKEN"):
        read(url="http://10.0.0.1/", SPARKWRIGHT_STORE_TOKEN=SECRET)


@pytest.mark.parametrize("url", [f"https://me:{SECRET}@10.0.0.1/", f"ftp://me:{SECRET}@h/", f"x:{SECRET}"])
def test_an_address_with_credentials_is_refused_and_not_repeated(read, url: str) -> None:
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
    public = public_of(first)
    assert public_of(require_key(path)) == public
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert WriterKey.parse(public.text, "me") == public
    assert public.signed(b"data", first.sign(b"data"))
    assert not public.signed(b"other", first.sign(b"data"))


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
    path.touch(0o600)
    for data, because in (
        (b"nonsense", "no private key in PEM form"),
        (CryptoSigner.generate_ecdsa().private_bytes, "not of the kind ed25519"),
    ):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=because):
            find_key(path)
    for text in ("ed25519:short", "ed25519:?", "", "3" * 43, "rsa:abc"):
        with pytest.raises(ConfigError, match="'desk'"):
            RemoteTier(
                RemoteSettings(url=URL, write=False, writers={"desk": text}, key_file=tmp_path / "none")
            )


def test_reading_needs_no_key_of_its_own(tmp_path: Path) -> None:
    RemoteTier(RemoteSettings(url=URL, write=False, key_file=tmp_path / "key.pem"))
    assert not (tmp_path / "key.pem").exists()


def test_runs_that_begin_at_once_make_one_key(tmp_path: Path) -> None:
    made: list[str] = []
    threads = [
        threading.Thread(target=lambda: made.append(public_of(require_key(tmp_path / "key.pem")).text))
        for _ in range(8)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(made) == 8
    assert len(set(made)) == 1
