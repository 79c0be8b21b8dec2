"""An S3-compatible object store as a target, by obstore.

Pointers are replaced by conditional writes (``If-Match``, ``If-None-Match``); a store that ignores the
conditions is refused before the first one. Files that never change have their digest as metadata of the
object, so that the next run skips a wheel of 300 MB for one small request.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sparkwright.base.digests import CHUNK, sha256_file
from sparkwright.base.errors import LostRaceError, SparkwrightError, ToolError, UploadError
from sparkwright.publish.target import MOST_BYTES, Entry, Stored, checked_path, lost_race, require_digest
from sparkwright.store.remote.client import cause_of
from sparkwright.upstream.network import IndexSettings

T = TypeVar("T")

_FOREVER = "public, max-age=31536000, immutable"
_ALWAYS_ASK = "no-cache"
_WHOLE = 16 << 20  # bytes of a file that is sent in one request, on the condition that none is there
_MOST_FILES = 100_000
_LONGEST = timedelta(hours=6)  # of one transfer; one that brings nothing is given up long before
_CONDITIONS = ".conditions"
"""The object on which a store shows that it heeds conditions."""


@dataclass(frozen=True)
class S3Target:
    """A bucket, or a prefix in one; the tag of an object is its ETag.

    Credentials are those of the environment (``AWS_ACCESS_KEY_ID`` and so on) or of the machine's role.

    Attributes:
        prefix: of every key, without a slash at its end; may be empty.
        endpoint: address of a store that is not Amazon's.
    """

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    settings: IndexSettings = field(default_factory=IndexSettings, repr=False)

    def read(self, path: str) -> Stored | None:
        """See `Target.read`."""
        found = self._get(path)
        if found is None:
            return None
        if found.meta["size"] > MOST_BYTES:
            raise UploadError(
                f"{self.url(path)} was not read",
                because=f"it has more than {MOST_BYTES} bytes, which no file of a channel has",
            )
        return Stored(self._do("reading", path, found.bytes).to_bytes(), found.meta["e_tag"])

    def put_file(self, path: str, file: Path, sha256: str) -> None:
        """See `Target.put_file`; a file that is there is believed to be what its upload noted beside it."""
        found = self._get(path, head=True)
        size = file.stat().st_size
        if found and (found.meta["size"], found.attributes.get("sha256")) == (size, sha256):
            return
        if found is None:
            require_digest(str(file), sha256_file(file), sha256)
            # Where another publisher was first, or the answer to a first try was lost, the digest decides.
            with contextlib.suppress(LostRaceError):
                self._put(path, file, _FOREVER, "create" if size <= _WHOLE else "overwrite", sha256=sha256)
        digest = hashlib.sha256()

        def read_back() -> None:
            for chunk in stored.stream(CHUNK):
                digest.update(chunk)

        if stored := self._get(path):
            self._do("reading", path, read_back)
        require_digest(self.url(path), digest.hexdigest() if stored else "missing", sha256)

    def replace(self, path: str, data: bytes, *, expected: str | None) -> str:
        """See `Target.replace`."""
        if not self._has_conditions:
            raise UploadError(
                f"nothing was published to {self._shown}",
                because="the store ignores If-Match or If-None-Match, by which one of two publishers wins",
                next_step="use a store with conditional writes, such as Amazon S3",
            )
        try:
            return self._put(path, data, _ALWAYS_ASK, _condition(expected))
        except LostRaceError:
            found = self.read(path)
            if found is None or found.data != data:
                raise
            return found.tag  # the answer to a first try was lost

    def files(self, prefix: str) -> dict[str, Entry]:
        """See `Target.files`."""
        start, base = self._key(prefix.rstrip("/")) if prefix else self.prefix, len(self._key(""))

        def listed() -> list[Any]:
            pages = self._obstore.list(self._store, start or None)
            return list(itertools.islice(itertools.chain.from_iterable(pages), _MOST_FILES + 1))

        items = self._do("listing", prefix or ".", listed)
        if len(items) > _MOST_FILES:
            raise UploadError(
                f"listing {prefix or '.'} at {self._shown} was given up",
                because=f"it has more than {_MOST_FILES} objects, or lists its first page again and again",
                next_step="use a store that heeds continuation-token, or an emptier prefix",
            )
        found = {
            item["path"][base:]: Entry(item["size"], item["last_modified"].timestamp()) for item in items
        }
        hidden = {path for path in found if any(part.startswith(".") for part in path.split("/"))}
        return {path: entry for path, entry in found.items() if path not in hidden}

    def remove(self, path: str) -> None:
        """See `Target.remove`."""
        key = self._key(checked_path(path))
        self._do("removing", path, lambda: self._obstore.delete(self._store, key))

    def url(self, path: str) -> str:
        """See `Mirror.url`."""
        key = quote(self._key(checked_path(path)), safe="/")
        if self.endpoint:
            return f"{self.endpoint}/{self.bucket}/{key}"
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return f"https://{self.bucket}.s3.{region or 'us-east-1'}.amazonaws.com/{key}"

    def _get(self, path: str, *, head: bool = False) -> Any:
        """Return obstore's result for the object at *path*, `None` if there is none."""
        key = self._key(checked_path(path))
        with contextlib.suppress(FileNotFoundError):
            return self._do(
                "reading", path, lambda: self._obstore.get(self._store, key, options={"head": head})
            )
        return None

    def _put(self, path: str, content: bytes | Path, cache: str, mode: Any, *, sha256: str = "") -> str:
        attributes = {"Cache-Control": cache, **({"sha256": sha256} if sha256 else {})}
        key = self._key(checked_path(path))
        return str(self._do("writing", path, lambda: self._obstore.put(
            self._store, key, content, mode=mode, attributes=attributes,
            use_multipart=None if mode == "overwrite" else False,
        ))["e_tag"])  # fmt: skip

    @functools.cached_property
    def _has_conditions(self) -> bool:
        # The first write makes the object where it is missing, so the second has to be refused.
        other = f'"{"0" * 32}"'
        return (self._refuses(None) or self._refuses(None)) and self._refuses(other)

    def _refuses(self, expected: str | None) -> bool:
        try:
            self._put(_CONDITIONS, b"", _ALWAYS_ASK, _condition(expected))
        except LostRaceError:
            return True
        return False

    def _do(self, what: str, path: str, call: Callable[[], T]) -> T:
        """Return the result of *call*."""
        try:
            return call()
        except (FileNotFoundError, SparkwrightError):
            raise
        except Exception as error:
            because = cause_of(error)
            if type(error).__name__ in {"AlreadyExistsError", "PreconditionError"} or "409" in because:
                raise lost_race(path, self._shown) from error
            step = "check the address and the network; the same command resumes"
            if any(word in because for word in ("401", "403", "refuses", "credentials")):
                step = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and the bucket's policy"
            raise UploadError(
                f"{what} {path} at {self._shown} failed", because=because, next_step=step
            ) from error

    @property
    def _shown(self) -> str:
        address = f"s3://{self.bucket}/{self.prefix}".rstrip("/")
        return f"{address} ({self.endpoint})" if self.endpoint else address

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    @property
    def _obstore(self) -> Any:
        """The library."""
        try:
            import obstore
        except ImportError as error:
            raise ToolError(
                f"{self._shown} cannot be used", because="obstore is not installed",
                next_step="pip install 'sparkwright[publish]', in a checkout -e '.[publish]'",
            ) from error  # fmt: skip
        return obstore

    @functools.cached_property
    def _store(self) -> Any:
        _ = self._obstore
        from obstore.store import S3Store

        patience, pause = (
            timedelta(seconds=self.settings.timeout_s),
            timedelta(seconds=self.settings.backoff_s),
        )
        client: Any = {
            "connect_timeout": patience,
            "read_timeout": patience,
            "timeout": _LONGEST,
            "allow_http": self.endpoint.startswith("http://"),
        }
        if self.settings.cert:
            client["root_certificate"] = Path(self.settings.cert).read_bytes()
        retry: Any = {
            "max_retries": self.settings.attempts - 1,
            "retry_timeout": _LONGEST,
            "backoff": {"init_backoff": pause, "max_backoff": 8 * pause, "base": 2},
        }
        more: Any = {"endpoint": self.endpoint} if self.endpoint else {}
        return S3Store(self.bucket, client_options=client, retry_config=retry, **more)


def _condition(expected: str | None) -> str | dict[str, str]:
    """Return the mode of a write that replaces an object with the ETag *expected*, or none."""
    return "create" if expected is None else {"e_tag": expected}
