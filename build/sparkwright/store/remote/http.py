"""The remote tier over HTTP: bazel-remote, nginx with WebDAV's PUT, or any server of GET, HEAD and PUT."""

from __future__ import annotations

from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

from sparkwright import __version__
from sparkwright.base.text import clean
from sparkwright.store.remote.backend import RemoteFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import requests

    from sparkwright.store.remote.backend import TransferProgress
    from sparkwright.store.remote.settings import RemoteSettings

_CHUNK = 1 << 16
_CONNECTIONS = 16
_NOT_FOUND = frozenset({404, 410})
_DENIED = frozenset({401, 403})
_CANNOT_WRITE = frozenset({401, 403, 405, 501, 507})
_TOO_LARGE = 413
_PATIENT = 6  # times as long, since a server may answer a large file after it has stored it all


class HttpBackend:
    """One server, asked through one pool of connections. Redirects are not followed."""

    def __init__(self, settings: RemoteSettings) -> None:
        self._settings = settings
        self._session = _open_session(settings)

    def get(self, place: str, sink: Callable[[bytes], object], transfer: TransferProgress) -> bool:
        """Hand the object at *place* to *sink*; see `RemoteBackend`."""
        with self._request("GET", place, stream=True) as response:
            if response.status_code in _NOT_FOUND:
                return False
            self._require(response, _DENIED)
            stated = response.headers.get("Content-Length", "")
            while data := _piece(response):
                transfer.advance(len(data))
                sink(data)
            if stated.isdigit() and transfer.count < int(stated):
                raise RemoteFailure(f"its answer ended after {transfer.count} of {stated} bytes")
            return True

    def has(self, place: str) -> bool:
        """Tell if there is an object at *place*; see `RemoteBackend`."""
        with self._request("HEAD", place) as response:
            if response.status_code in _NOT_FOUND:
                return False
            self._require(response, _DENIED)
            return True

    def put(self, place: str, content: bytes | Path, transfer: TransferProgress) -> None:
        """Write *content* to *place*; see `RemoteBackend`."""
        if isinstance(content, bytes):
            self._put(place, content)
            return
        with content.open("rb") as stream:
            self._put(place, _Body(stream, content.stat().st_size, transfer))

    def _put(self, place: str, body: Any) -> None:
        with self._request("PUT", place, data=body) as response:
            if response.status_code == _TOO_LARGE:
                raise RemoteFailure("it refuses an object as too large", object_only=True)
            self._require(response, _CANNOT_WRITE)

    def _request(self, method: str, place: str, **options: Any) -> requests.Response:
        import requests

        limits = self._settings.limits
        try:
            return self._session.request(
                method, f"{self._settings.url}/{place}", allow_redirects=False,
                timeout=(limits.connect_s, limits.stall_s * (_PATIENT if method == "PUT" else 1)), **options,
            )  # fmt: skip
        except (requests.RequestException, OSError, ValueError) as error:
            # What the libraries say may hold the address of a proxy, with its password.
            raise RemoteFailure(_told(error)) from error

    @staticmethod
    def _require(response: requests.Response, final: frozenset[int]) -> None:
        """Do nothing for an answer of success.

        Raises:
            RemoteFailure: it is another one.
        """
        status = response.status_code
        if 300 <= status < 400:  # noqa: PLR2004
            host = clean(urlsplit(response.headers.get("Location", "")).hostname or "another place", 100)
            raise RemoteFailure(
                f"it redirects to {host}, and redirects are not followed: name that address instead",
                final=True,
            )
        if not 200 <= status < 300:  # noqa: PLR2004
            raise RemoteFailure(f"it answered {status}", final=status in final)


def _piece(response: requests.Response) -> bytes:
    """Return the next bytes of the body as soon as they come; nothing at its end."""
    import urllib3

    try:
        data: bytes = response.raw.read1(_CHUNK, decode_content=False)
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise RemoteFailure(_told(error)) from error
    return data


class _Body:
    """A file as a request's body of known length, whose sending can be given up."""

    def __init__(self, stream: BinaryIO, size: int, transfer: TransferProgress) -> None:
        self._stream, self._size, self._transfer = stream, size, transfer

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        while data := self.read(_CHUNK):
            yield data

    def read(self, amount: int = -1) -> bytes:
        data = self._stream.read(amount)
        self._transfer.advance(len(data))
        return data


def _told(error: BaseException) -> str:
    """Return the cause of a failed request by its kind alone."""
    import requests

    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not accepted"
    if isinstance(error, (requests.Timeout, TimeoutError)):
        return "it did not answer in time"
    if isinstance(error, (requests.ConnectionError, ConnectionError)):
        return "it cannot be reached"
    return f"the request failed ({type(error).__name__})"


def _open_session(settings: RemoteSettings) -> requests.Session:
    """Return a session that sends the user's credentials to the configured server and to no other."""
    import requests
    from requests.adapters import HTTPAdapter
    from requests.auth import AuthBase, HTTPBasicAuth
    from requests.utils import get_netrc_auth

    class Authorization(AuthBase):
        """Adds the credentials. Being set, it keeps `requests` from reading ``~/.netrc`` by itself."""

        def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
            if not settings.encrypted:
                return request
            if settings.password and not settings.user:
                request.headers["Authorization"] = f"Bearer {settings.password}"
                return request
            named = (settings.user, settings.password) if settings.user else get_netrc_auth(settings.url)
            return HTTPBasicAuth(*named)(request) if named else request

    session = requests.Session()
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_connections=1, pool_maxsize=_CONNECTIONS))
    session.auth = Authorization()
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
    session.headers.update({"User-Agent": f"sparkwright/{__version__}", "Accept-Encoding": "identity"})
    return session
