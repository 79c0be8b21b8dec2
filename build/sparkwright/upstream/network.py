"""HTTP with patience: one session, and what is worth trying again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from sparkwright import __version__
from sparkwright.errors import FetchError
from sparkwright.events import emit

if TYPE_CHECKING:
    from collections.abc import Callable

    import requests
    from tenacity import RetryCallState, Retrying

    from sparkwright.upstream.settings import IndexSettings

__all__ = ["InterruptedFetch", "fetch_failed", "open_session", "patiently", "reason_of", "shown"]

_PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT_S = 30.0


class InterruptedFetch(Exception):  # noqa: N818 - never reaches a user; `patiently` tries again
    """A transfer ended early; another try may get further."""


def open_session(settings: IndexSettings) -> requests.Session:
    """A session that trusts what the user told pip to trust."""
    import requests

    session = requests.Session()
    session.headers["User-Agent"] = f"sparkwright/{__version__}"
    if settings.cert:
        session.verify = settings.cert
    return session


def patiently(settings: IndexSettings, what: str, progress: Callable[[], int] = lambda: 0) -> Retrying:
    """A retry loop for *what*: it gives up after some tries in a row that made no *progress*.

    The last error is raised as it came.
    """
    from tenacity import Retrying, retry_if_exception, wait_random_exponential

    best, idle = progress(), 0

    def out_of_patience(_: RetryCallState) -> bool:
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
        stop=out_of_patience,
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
    """The error to show when fetching *what* was given up."""
    return FetchError(
        f"{what} could not be fetched",
        because=reason_of(error),
        next_step="check the network and pip's index settings, then run again: it goes on where it stopped",
    )


def reason_of(error: Any) -> str:
    """What *error* says, without a user's name or password in its address."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"{shown(error.response.url)} answered {error.response.status_code} {error.response.reason}"
    return re.sub(r"://[^/\s@]*@", "://", str(error)) or type(error).__name__


def shown(url: str) -> str:
    """*url* as it may be shown: without a user's name or password."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
