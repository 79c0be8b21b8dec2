"""HTTP with patience, though not without end, by the settings of the user's pip.

The order of settings is pip's own (its user guide, "Configuration"): the machine's files, the user's, the
virtual environment's, the one that ``PIP_CONFIG_FILE`` names, then ``PIP_*`` variables. Of each file the
sections ``[global]`` and ``[download]`` count. As with pip, what crosses the network is encrypted unless
``trusted-host`` names the host; unlike with pip, certificates are checked there too.
"""

from __future__ import annotations

import configparser
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit, urlunsplit

from sparkwright import __version__
from sparkwright.base.errors import ConfigError, FetchError
from sparkwright.base.events import emit
from sparkwright.base.machine import is_this_machine

if TYPE_CHECKING:
    import requests
    from tenacity import RetryCallState, Retrying


_MACHINE_FILE = Path("/etc/pip.conf")
_SECTIONS = ("global", "download")
_KEYS = ("index-url", "extra-index-url", "cert", "trusted-host")
_UPSTREAM_WHEELS = "https://wheels.vllm.ai"


@dataclass(frozen=True)
class IndexSettings:
    """Addresses and limits for fetching.

    Attributes:
        cert: file or folder of certificates to trust; empty for the system's choice.
        trusted_hosts: hosts, with or without a port, that may be asked without encryption.
        attempts: tries in a row that may bring nothing before giving up.
        backoff_s: wait before the second try, in seconds; it doubles up to half a minute.
    """

    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    cert: str = ""
    trusted_hosts: tuple[str, ...] = ()
    offline: bool = False
    timeout_s: float = 60.0
    attempts: int = 5
    backoff_s: float = 1.0
    upstream_wheels: str = _UPSTREAM_WHEELS


def read_settings(environment: Mapping[str, str] | None = None, *, offline: bool = False) -> IndexSettings:
    """Return the settings that pip would use under *environment* (ours by default)."""
    environment = os.environ if environment is None else environment
    values: dict[str, str] = {}
    for path in pip_files(environment):
        values.update(_read_file(path))
    for key in _KEYS:
        if value := environment.get("PIP_" + key.upper().replace("-", "_")):
            values[key] = value
    return IndexSettings(
        index_url=values.get("index-url", "").strip(),
        extra_index_urls=tuple(values.get("extra-index-url", "").split()),
        cert=values.get("cert", "").strip(),
        trusted_hosts=tuple(values.get("trusted-host", "").split()),
        offline=offline,
        upstream_wheels=environment.get("SPARKWRIGHT_UPSTREAM_WHEELS") or _UPSTREAM_WHEELS,
    )


def pip_files(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the configuration files of pip, weakest first, whether they exist or not."""
    chosen = environment.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:  # pip's way to say "no file at all"
        return
    for folder in environment.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep):
        yield Path(folder, "pip", "pip.conf")
    yield _MACHINE_FILE
    if not (chosen and Path(chosen).is_file()) and (home := environment.get("HOME")):
        yield Path(home, ".pip", "pip.conf")
        yield Path(environment.get("XDG_CONFIG_HOME") or Path(home, ".config"), "pip", "pip.conf")
    yield Path(environment.get("VIRTUAL_ENV") or sys.prefix, "pip.conf")
    if chosen:
        yield Path(chosen)


def _read_file(path: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, PermissionError) as error:
        raise ConfigError(
            f"pip's configuration {path} could not be read", because=str(error).replace("\n", " "),
            next_step="correct it, or set PIP_CONFIG_FILE to another file",
        ) from error  # fmt: skip
    found: dict[str, str] = {}
    for section in _SECTIONS:
        if parser.has_section(section):
            found |= {key.replace("_", "-"): value for key, value in parser.items(section)}
    return {key: found[key] for key in _KEYS if key in found}


# Requests --------------------------------------------------------------------------------------------


_PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT_S = 30.0
# What comes slower, on the average, is given up: at that rate a wheel takes days.
_LEAST_BYTES_PER_S = 1000
_MOST_PAGE_BYTES = 64 << 20  # the largest project's page on the package index has a few


class InterruptedFetch(Exception):  # noqa: N818 - never reaches a user; `retrying` tries again
    """A transfer ended early; another try may get further."""


class RefusedFetchError(Exception):
    """A transfer that is not retried; another try would be the same."""


class _Paced:
    """The body of a response as `requests` reads it: each piece when it comes, and at some least rate."""

    def __init__(self, raw: Any, patience_s: float, most: int | None) -> None:
        self._raw = raw
        self._patience_s = patience_s
        self._most = most

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def stream(self, amount: int, decode_content: bool | None = None) -> Iterator[bytes]:  # noqa: FBT001 - urllib3's
        began, came = time.monotonic(), 0
        while data := self._raw.read1(amount, decode_content=decode_content):
            came += len(data)
            yield data  # first, so that it is kept
            passed = time.monotonic() - began
            if passed > self._patience_s and came < passed * _LEAST_BYTES_PER_S:
                self._refuse(f"only {came} bytes came in {passed:.0f} s")
            if self._most is not None and came > self._most:
                self._refuse(f"the answer has more than {self._most} bytes")

    def _refuse(self, why: str) -> NoReturn:
        self._raw.close()
        raise RefusedFetchError(why)


def open_session(settings: IndexSettings) -> requests.Session:
    """Return a session that trusts what the user told pip to trust."""
    import requests
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        """Looks at each request, those that a redirect asks for included."""

        def send(self, request: requests.PreparedRequest, *rest: Any, **options: Any) -> requests.Response:
            _require_secure(request.url or "", settings)
            response = super().send(request, *rest, **options)
            most = None if options.get("stream") else _MOST_PAGE_BYTES
            if most is not None and request.method != "HEAD" and (stated_bytes(response) or 0) > most:
                response.close()
                raise RefusedFetchError(f"the answer has more than {most} bytes")
            response.raw = _Paced(response.raw, settings.timeout_s, most)
            return response

    class Session(requests.Session):
        """Keeps credentials from hosts that a redirect names."""

        def resolve_redirects(self, *words: Any, **options: Any) -> Iterator[requests.Response]:
            """Raise an error of `requests` for an address that is none, where it has a plain `ValueError`."""
            try:
                yield from super().resolve_redirects(*words, **options)
            except ValueError as error:
                raise requests.exceptions.InvalidURL(f"a redirect leads to no address: {error}") from error

        def rebuild_auth(
            self, prepared_request: requests.PreparedRequest, response: requests.Response
        ) -> None:
            """Leave out what `requests` sent to the host before, and look up no other in ``~/.netrc``."""
            before, after = response.request.url, prepared_request.url
            if self.should_strip_auth(before, after):  # type: ignore[no-untyped-call]
                prepared_request.headers.pop("Authorization", None)

    session = Session()
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
    for scheme in ("https://", "http://"):
        session.mount(scheme, Adapter())
    session.headers["User-Agent"] = f"sparkwright/{__version__}"
    if settings.cert:
        session.verify = settings.cert
    return session


def stated_bytes(response: requests.Response) -> int | None:
    """Return the size of the body that *response* states; `None` without one."""
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isascii() and length.isdecimal() else None


def _require_secure(url: str, settings: IndexSettings) -> None:
    """Do nothing if *url* may be asked by pip's own rule: encrypted, on this machine, or trusted by the user.

    Raises:
        RefusedFetchError: it is none of these.
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").casefold()
    trusted = {name.casefold() for name in settings.trusted_hosts}
    if parts.scheme == "https" or is_this_machine(host) or {host, f"{host}:{parts.port}"} & trusted:
        return
    raise RefusedFetchError(
        f"{shown(url)} is not encrypted; use https, or name {host} in pip's trusted-host if you mean that"
    )


def retrying(settings: IndexSettings, what: str, progress: Callable[[], int] = lambda: 0) -> Retrying:
    """Return a retry loop for *what*: it gives up after some tries in a row that made no *progress*.

    The last error is raised as it came.
    """
    from tenacity import Retrying, retry_if_exception, wait_random_exponential

    best, idle = progress(), 0

    def give_up(_: RetryCallState) -> bool:
        nonlocal best, idle
        reached = progress()
        idle = 0 if reached > best else idle + 1
        best = max(best, reached)
        return idle >= settings.attempts

    def tell(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        wait = round(state.next_action.sleep, 1) if state.next_action else 0
        emit("fetch.retry", what=what, error=reason_of(error), wait_s=wait)

    return Retrying(
        retry=retry_if_exception(_is_passing),
        stop=give_up,
        wait=wait_random_exponential(multiplier=settings.backoff_s, max=_LONGEST_WAIT_S),
        before_sleep=tell,
        reraise=True,
    )


def _is_passing(error: BaseException) -> bool:
    import requests

    if isinstance(error, requests.HTTPError):
        return error.response is not None and error.response.status_code in _PASSING_STATUSES
    if isinstance(error, requests.exceptions.SSLError):
        return False
    passing = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
    return isinstance(error, (InterruptedFetch, *passing))


def fetch_failed(what: str, error: BaseException) -> FetchError:
    """Return the error to show when fetching *what* was given up."""
    return FetchError(
        f"{what} could not be fetched",
        because=reason_of(error),
        next_step="check the network and pip's index settings, then run again: it goes on where it stopped",
    )


def reason_of(error: Any) -> str:
    """Return what *error* says, without a user's name or password in its address."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"{shown(error.response.url)} answered {error.response.status_code} {error.response.reason}"
    return re.sub(r"://[^/\s@]*@", "://", str(error)) or type(error).__name__


def shown(url: str) -> str:
    """Return *url* as it may be shown: without a user's name or password."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
