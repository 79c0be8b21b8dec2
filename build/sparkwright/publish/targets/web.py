"""A static web server as a target that can only be read."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar
from urllib.parse import quote

from sparkwright.base.digests import CHUNK, sha256_bytes
from sparkwright.base.errors import PublishError, UploadError
from sparkwright.publish.target import Stored, StoredStat, checked_path
from sparkwright.upstream.network import (
    InterruptedFetch,
    RefusedFetchError,
    open_session,
    reason_of,
    retrying,
    shown,
)
from sparkwright.upstream.settings import IndexSettings

if TYPE_CHECKING:
    import requests

T = TypeVar("T")

_FORBIDDEN = frozenset({401, 403})
_NOT_FOUND = 404


@dataclass(frozen=True)
class WebTarget:
    """Files below an address, which are read and never written; the tag of a file is its SHA-256.

    Attributes:
        base: ``http`` or ``https`` address, without a slash at its end.
        settings: time-outs, tries, certificates, and hosts that may be asked without encryption.
    """

    base: str
    settings: IndexSettings = field(default_factory=IndexSettings, repr=False)

    def read(self, path: str) -> Stored | None:
        """See `Target.read`."""
        response = self._exchange("GET", checked_path(path), consume=lambda answer: answer)
        if response.status_code == _NOT_FOUND:
            return None
        return Stored(response.content, sha256_bytes(response.content))

    def stat(self, path: str) -> StoredStat | None:
        """See `Target.stat`; reads the whole file for its digest."""
        found = self.fingerprint(path)
        return StoredStat(found.size, self.digest(path)) if found else None

    def fingerprint(self, path: str) -> StoredStat | None:
        """Return size and ETag of the file at *path* as the server states them, `None` if there is none."""
        response = self._exchange("HEAD", checked_path(path), consume=lambda answer: answer)
        if response.status_code == _NOT_FOUND:
            return None
        return StoredStat(int(response.headers.get("Content-Length", -1)), response.headers.get("ETag", ""))

    def digest(self, path: str) -> str:
        """Return the SHA-256 of the file at *path*, read from the server; a cut transfer starts over."""
        return self._exchange("GET", checked_path(path), consume=_digest_of, stream=True)

    def put_file(self, path: str, file: Path, sha256: str) -> None:  # noqa: ARG002 - the protocol's
        """Refuse: a plain web server takes no files."""
        self._refuse(f"{path} was not published")

    def replace(self, path: str, data: bytes, *, expected: str | None) -> str:  # noqa: ARG002 - the protocol's
        """Refuse: a plain web server takes no files."""
        self._refuse(f"{path} was not replaced")

    def list(self, prefix: str) -> list[str]:
        """Refuse: a plain web server lists no files."""
        self._refuse(f"the files below {prefix or self.base} were not listed")

    def sizes(self, prefix: str) -> dict[str, int]:
        """Refuse: a plain web server lists no files."""
        self._refuse(f"the files below {prefix or self.base} were not listed")

    def remove(self, path: str) -> None:
        """Refuse: a plain web server removes no files."""
        self._refuse(f"{path} was not removed")

    def url(self, path: str) -> str:
        """See `Target.url`."""
        return f"{self.base}/{quote(path, safe='/')}"

    def elsewhere(self, path: str) -> str:
        """See `Target.elsewhere`."""
        del path
        return ""

    def _exchange(
        self, method: str, path: str, *, consume: Callable[[requests.Response], T], stream: bool = False
    ) -> T:
        """Send a request, and return what *consume* makes of the answer, both within one try.

        Raises:
            UploadError: the server cannot be reached, is too slow, or refuses.
        """

        def once() -> T:
            with self._session.request(
                method, self.url(path), stream=stream, timeout=self.settings.timeout_s
            ) as response:
                if response.status_code != _NOT_FOUND or stream:
                    response.raise_for_status()
                return consume(response)

        with self._failing(method, path):
            return retrying(self.settings, f"{method} {path}")(once)

    @functools.cached_property
    def _session(self) -> requests.Session:
        session = open_session(self.settings)
        session.headers["Accept-Encoding"] = "identity"
        return session

    @contextlib.contextmanager
    def _failing(self, method: str, path: str) -> Iterator[None]:
        """Turn a request that failed for good into one error, without credentials.

        Raises:
            UploadError: it did.
        """
        try:
            yield
        except PublishError:
            raise
        except (OSError, RefusedFetchError, InterruptedFetch) as error:  # requests' own are OSErrors
            raise self._failed(method, path, error) from error

    def _failed(self, method: str, path: str, error: Exception) -> UploadError:
        status = getattr(getattr(error, "response", None), "status_code", 0)
        step = "check the address and the network; the same command resumes"
        if status in _FORBIDDEN:
            step = "check ~/.netrc, and the server's rules"
        return UploadError(
            f"{method} of {path} at {shown(self.base)} failed", because=reason_of(error), next_step=step
        )

    def _refuse(self, what: str) -> NoReturn:
        raise UploadError(
            what,
            because=f"{shown(self.base)} is a plain web server, which is only read",
            next_step="publish to a folder, or to an address with s3:// or github://",
        )


def _digest_of(response: requests.Response) -> str:
    digest = hashlib.sha256()
    for chunk in response.iter_content(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
