"""The client of a remote tier, a server of GET, HEAD and PUT or a bucket with the S3 interface; its settings.

These come from the ``--store`` option, the environment, and the user's ``store.toml``.
"""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

import msgspec

from sparkwright.base.config import Model, load_toml
from sparkwright.base.errors import ConfigError, ToolError
from sparkwright.base.machine import is_this_machine

NONE = "none"
"""The address that turns the tier off where the file names one."""

_FORMAT = 1
_SCHEMES = ("https", "http", "s3")


@dataclass(frozen=True)
class RemoteLimits:
    """Limits that keep a slow, dead or hostile server from holding up a build.

    Attributes:
        stall_s: longest wait for a connection, for an answer, and between two pieces of it, in seconds.
        least_rate: bytes a second that a transfer has to bring on the average after `stall_s`.
    """

    stall_s: float = 10.0
    least_rate: float = float(1 << 20)
    most_bytes: int = 4 << 30


@dataclass(frozen=True)
class RemoteSettings:
    """The settings of the remote tier.

    Attributes:
        token: the bearer token; where it is empty, ``~/.netrc`` is asked for each request.
        writers: keys of the writers whose records count, beside this machine's own, by a name for people.
    """

    url: str
    token: str = field(default="", repr=False)
    write: bool = True
    writers: Mapping[str, str] = field(default_factory=dict)
    key_file: Path = Path()
    limits: RemoteLimits = field(default_factory=RemoteLimits)

    @property
    def encrypted(self) -> bool:
        """Tell if credentials may be sent: the connection is encrypted, or stays on this machine."""
        parts = urlsplit(self.url)
        return parts.scheme != "http" or is_this_machine(parts.hostname or "")


class _StoreFile(Model, frozen=True):
    """The user's ``store.toml``."""

    format: int = _FORMAT
    url: str = ""
    write: bool = True
    writers: dict[str, str] = msgspec.field(default_factory=dict)


def key_file(environment: Mapping[str, str]) -> Path:
    """Return the path of this machine's key: ``SPARKWRIGHT_STORE_KEY``, or one in the user's data folder."""
    from platformdirs import user_data_path

    chosen = environment.get("SPARKWRIGHT_STORE_KEY")
    return Path(chosen).expanduser() if chosen else user_data_path("sparkwright") / "store-key.pem"


def read_remote_settings(
    url: str = "", environment: Mapping[str, str] | None = None
) -> RemoteSettings | None:
    """Return the settings of the remote tier, or `None` where there is none.

    The file is ``SPARKWRIGHT_STORE_CONFIG``, or the user's ``store.toml``. An address given with ``--store``
    or ``SPARKWRIGHT_STORE_URL`` is stronger than the file's. ``SPARKWRIGHT_STORE_TOKEN`` is the token.
    """
    from platformdirs import user_config_path

    environment = os.environ if environment is None else environment
    chosen = environment.get("SPARKWRIGHT_STORE_CONFIG")
    path = Path(chosen).expanduser() if chosen else user_config_path("sparkwright") / "store.toml"
    file = load_toml(path, _StoreFile, newest_format=_FORMAT) if chosen or path.is_file() else _StoreFile()
    address = url or environment.get("SPARKWRIGHT_STORE_URL", "") or file.url
    if not address or address == NONE:
        return None
    parts = _checked(address)
    found = RemoteSettings(
        url=urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")),
        token=environment.get("SPARKWRIGHT_STORE_TOKEN", ""),
        write=file.write,
        writers=file.writers,
        key_file=key_file(environment),
    )
    if found.token and not found.encrypted:
        raise ConfigError(
            f"the remote store {found.url} does not get SPARKWRIGHT_STORE_TOKEN",
            because="the connection is not encrypted, so it could be read on the way",
            next_step="use https, or unset it",
        )
    return found


def _checked(address: str) -> SplitResult:
    """Return the parts of *address*; no error repeats it, since it may hold a password."""
    try:
        parts = urlsplit(address)
        port, host = parts.port, parts.hostname
    except ValueError:
        parts, port, host = urlsplit(""), None, None
    more = parts.query or parts.fragment or "@" in parts.netloc
    if parts.scheme not in _SCHEMES or not host or port == 0 or more:
        raise ConfigError(
            "the remote store's address cannot be used",
            because="it has to be https://HOST/PATH, http://HOST/PATH or s3://BUCKET/PREFIX, with no "
            "query and no credentials, which are in SPARKWRIGHT_STORE_TOKEN or ~/.netrc",
            next_step="correct --store, SPARKWRIGHT_STORE_URL or store.toml; 'none' turns the tier off",
        )
    return parts


# The client ----------------------------------------------------------------------------------------


_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_STATUS = re.compile(r"status code: (\d{3})")
_TOO_LARGE = "413"
_CAUSES = {
    "TimedOut": "it timed out",
    "Timeout": "it timed out",
    "timed out": "it timed out",
    "Content-Length": "its answer states no length",
    "body error": "its answer was not whole",
    "BadScheme": "http of AWS_ENDPOINT_URL is not used: name it in the address, by ?endpoint=http://HOST",
    "invalid peer certificate": "its certificate is not accepted",
    "error sending request": "it cannot be reached",
}
"""Causes of failures, by a part of obstore's message."""
_PATIENT = 6  # times as long, since a server may answer a large file after it has stored it all
_RETRY = {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=1), "base": 2}


class RemoteFailure(Exception):  # noqa: N818 - never reaches a user as an error
    """A request to the remote tier failed; the message names no credentials.

    Attributes:
        object_only: true where it concerns this object alone, such as one that is too large.
    """

    def __init__(self, message: str, *, object_only: bool = False) -> None:
        super().__init__(message)
        self.object_only = object_only


class OtherContentError(RemoteFailure):
    """The server sent an object that is not what was asked for."""


class RemoteClient:
    """One server, whose objects have places such as ``cas/<sha256>``; used by any number of threads.

    A request that fails at once is tried a second time. One that brings nothing for `stall_s` seconds, or
    less than `least_rate` bytes a second after that, is given up.
    """

    def __init__(self, settings: RemoteSettings) -> None:
        try:
            import cryptography.exceptions  # noqa: F401 - records are signed
            import obstore
            import obstore.store
        except ImportError as error:
            raise ToolError(
                f"the remote store {settings.url} cannot be used",
                because=f"{str(error.name).partition('.')[0]} is not installed",
                next_step="pip install 'sparkwright[remote]'",
            ) from error
        self._settings, self._obstore, self._stores = settings, obstore, obstore.store
        self._opened = lru_cache(self._open)

    def get(self, place: str, sink: Callable[[bytes], object]) -> bool:
        """Hand the object at *place* to *sink* piece by piece; return false where there is none.

        Raises:
            RemoteFailure: the server cannot be asked, or did not send the whole object.
        """
        limits = self._settings.limits
        began, count = time.monotonic(), 0
        store = self._opened(limits.most_bytes, reading=True)
        try:
            for data in self._obstore.get(store, place).stream(min_chunk_size=1):
                count += len(data)
                sink(bytes(data))
                _require_rate(count, time.monotonic() - began, limits)
        except FileNotFoundError:
            return False
        except Exception as error:
            raise _failure(error) from error
        return True

    def has(self, place: str) -> bool:
        """Tell if there is an object at *place*; raise as `get`."""
        try:
            self._obstore.head(self._opened(0, reading=True), place)
        except FileNotFoundError:
            return False
        except Exception as error:
            raise _failure(error) from error
        return True

    def put(self, place: str, content: bytes | Path) -> None:
        """Write *content*, or the file of that path, to *place*; raise as `get`."""
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        store = self._opened(size, reading=False)
        # Of the servers, buckets alone take a file in parts.
        parts = None if isinstance(store, self._stores.S3Store) else False
        try:
            self._obstore.put(store, place, content, use_multipart=parts)
        except Exception as error:
            raise _failure(error) from error

    def _open(self, size: int, *, reading: bool) -> Any:
        """Return obstore's store for requests of at most *size* bytes."""
        from requests.utils import DEFAULT_CA_BUNDLE_PATH

        settings, limits = self._settings, self._settings.limits
        parts = urlsplit(settings.url)
        patience_s = limits.stall_s * (1 if reading else _PATIENT)
        client: Any = {
            "connect_timeout": timedelta(seconds=limits.stall_s),
            "timeout": timedelta(seconds=patience_s + size / limits.least_rate),
        }
        if reading:
            client["read_timeout"] = timedelta(seconds=limits.stall_s)
        # Where the system has no certificates, obstore opens no store without these, not even by http.
        bundle = os.environ.get("REQUESTS_CA_BUNDLE") or DEFAULT_CA_BUNDLE_PATH
        client["root_certificate"] = Path(bundle).read_bytes()
        retry: Any = {"max_retries": 1, "retry_timeout": timedelta(seconds=limits.stall_s), "backoff": _RETRY}
        if parts.scheme == "s3":
            endpoint = next((found for name in _ENDPOINTS if (found := os.environ.get(name))), "")
            client["allow_http"] = is_this_machine(urlsplit(endpoint).hostname or "")
            more: Any = {"endpoint": endpoint} if endpoint else {}
            return self._stores.S3Store(
                parts.netloc,
                prefix=parts.path.strip("/") or None,
                client_options=client,
                retry_config=retry,
                **more,
            )
        client["allow_http"] = True
        if words := _authorization(settings):
            client["default_headers"] = {"authorization": words}
        return self._stores.HTTPStore.from_url(settings.url, client_options=client, retry_config=retry)


def _require_rate(count: int, seconds: float, limits: RemoteLimits) -> None:
    if (late := seconds - limits.stall_s) > 0 and count < late * limits.least_rate:
        raise RemoteFailure(f"it sent {count:,} bytes in {seconds:.1f} s")


def _authorization(settings: RemoteSettings) -> str:
    """Return the header with the user's credentials; empty where they could be read on the way."""
    from requests.utils import get_netrc_auth

    if not settings.encrypted:
        return ""
    if settings.token:
        return f"Bearer {settings.token}"
    named = get_netrc_auth(settings.url)
    return f"Basic {base64.b64encode(':'.join(named).encode()).decode()}" if named else ""


def _failure(error: Exception) -> Exception:
    """Return the failure to raise for *error*; what is wrong with this machine's disk stays what it is."""
    if isinstance(error, RemoteFailure) or (isinstance(error, OSError) and error.errno is not None):
        return error
    because = cause_of(error)
    return RemoteFailure(because, object_only=_TOO_LARGE in because)


def cause_of(error: Exception) -> str:
    """Return why obstore failed, in words of our own: its text may hold a key's id."""
    name, text = type(error).__name__, str(error)
    if status := _STATUS.search(text):
        return f"it answered {status[1]}"
    if name in {"PermissionDeniedError", "UnauthenticatedError"}:
        return "it refuses access"
    if "redentials" in text:
        return "no credentials were found"
    return next((words for sign, words in _CAUSES.items() if sign in text), f"the request failed ({name})")
