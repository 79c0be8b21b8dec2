"""An S3-compatible object store as a target, by obstore.

Pointers are replaced by conditional writes (``If-Match``, ``If-None-Match``); a store that ignores the
conditions is refused before the first one. Files that never change have their digest as metadata of the
object, so that the next run skips a wheel of 300 MB for one small request.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sparkwright.base.digests import CHUNK, sha256_file
from sparkwright.base.errors import LostRaceError, SparkwrightError, ToolError, UploadError
from sparkwright.publish.target import (
    Stored,
    checked_path,
    content_type,
    is_hidden,
    lost_race,
    require_digest,
)
from sparkwright.upstream.settings import IndexSettings

T = TypeVar("T")

_FOREVER = "public, max-age=31536000, immutable"
_ALWAYS_ASK = "no-cache"
_WHOLE = 16 << 20  # bytes of a file that is sent in one request, on the condition that none is there
_LONGEST = timedelta(hours=6)  # of one transfer; one that brings nothing is given up long before
_STATUS = re.compile(r"status code: (\d{3} [A-Za-z ]*)")
_CAUSES = {
    "TimedOut": "it timed out",
    "timed out": "it timed out",
    "error sending request": "the connection was refused or cut off",
    "body error": "the answer was cut off",
}
"""What a failure means, by a part of obstore's text, which may hold a key's id and is not shown."""
_PAGE = "/index.html"
_CONDITIONS = ".conditions"
"""The object on which a store shows that it heeds conditions."""


@dataclass(frozen=True)
class S3Target:
    """A bucket, or a prefix in one; the tag of an object is its ETag.

    Credentials are those of the environment (``AWS_ACCESS_KEY_ID`` and so on) or of the machine's role.

    Attributes:
        prefix: of every key, without a slash at its end; may be empty.
        endpoint: address of a store that is not Amazon's.
        region: its name; empty for that of the environment.
        public: address under which clients read, if it is not that of the bucket.
        settings: time-outs, tries and certificates.
    """

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    public: str = ""
    settings: IndexSettings = field(default_factory=IndexSettings, repr=False)

    def read(self, path: str) -> Stored | None:
        """See `Target.read`."""
        found = self._get(path)
        if found is None:
            return None
        return Stored(self._do("reading", path, found.bytes).to_bytes(), found.meta["e_tag"])

    def digest(self, path: str) -> str | None:
        """Return the SHA-256 of the object at *path* as it is in the store, `None` if there is none."""

        def hashed() -> str:
            digest = hashlib.sha256()
            for chunk in found.stream(CHUNK):
                digest.update(chunk)
            return digest.hexdigest()

        found = self._get(path)
        return self._do("reading", path, hashed) if found else None

    def put_file(self, path: str, file: Path, sha256: str) -> None:
        """See `Target.put_file`; a file that is there is believed to be what its upload noted beside it."""
        found = self._get(path, head=True)
        if found and (found.meta["size"], found.attributes.get("sha256")) == (file.stat().st_size, sha256):
            return
        if found is None:
            require_digest(str(file), sha256_file(file), sha256)
            small = file.stat().st_size <= _WHOLE
            # Where another publisher was first, or the answer to a first try was lost, the digest decides.
            with contextlib.suppress(LostRaceError):
                self._put(path, file, _FOREVER, mode="create" if small else "overwrite", sha256=sha256)
        require_digest(self.url(path), self.digest(path) or "missing", sha256)

    def replace(self, path: str, data: bytes, *, expected: str | None) -> str:
        """See `Target.replace`."""
        self._require_conditions()
        try:
            tag = self._put(path, data, _ALWAYS_ASK, mode=_condition(expected))
        except LostRaceError:
            # The answer to a first try may have been lost.
            found = self.read(path)
            if found is None or found.data != data:
                raise
            tag = found.tag
        if path.endswith(_PAGE):
            self._answer_for_folder(path)
        return tag

    def _answer_for_folder(self, path: str) -> None:
        """Make the object that has the name of the folder of *path*, with its slash, a copy of that page.

        Clients ask an index for folders, and a store knows only objects. The copy is read before the page and
        replaced only if it is still what was read, so that of two publishers the later page stays.
        """
        folder = self._folder_of(path)
        for _ in range(self.settings.attempts):
            copy = None
            with contextlib.suppress(FileNotFoundError):
                copy = self._do("reading", path, lambda: self._obstore.get(folder, ""))
            page = self.read(path)
            if page is None or (copy and copy.bytes().to_bytes() == page.data):
                return
            with contextlib.suppress(LostRaceError):
                condition = _condition(copy.meta["e_tag"] if copy else None)
                self._put(path, page.data, _ALWAYS_ASK, mode=condition, folder=folder)
        raise UploadError(f"{path} is not at the address of its folder", because="others kept replacing it")

    def _folder_of(self, page: str) -> Any:
        """Return a store whose empty key is the folder of *page*: obstore drops a slash at the end."""
        return self._opened(self._address(page).removesuffix(_PAGE), virtual_hosted_style_request=True)

    def sizes(self, prefix: str) -> dict[str, int]:
        """See `Target.sizes`."""
        start = self._key(prefix.rstrip("/")) if prefix else self.prefix
        base = len(self._key(""))

        def listed() -> dict[str, int]:
            pages = self._obstore.list(self._store, start or None)
            return {item["path"][base:]: item["size"] for page in pages for item in page}

        found = self._do("listing", prefix or ".", listed)
        # Leave out what stands for a folder: the copy of its page, or what is left of one.
        copies = {path.removesuffix(_PAGE) for path in found if path.endswith(_PAGE)}
        return {p: size for p, size in found.items() if size and not is_hidden(p) and p not in copies}

    def remove(self, path: str) -> None:
        """See `Target.remove`."""
        key = self._key(checked_path(path))
        self._do("removing", path, lambda: self._obstore.delete(self._store, key))
        if path.endswith(_PAGE):
            # Stores remove by lists of names, which obstore gives without that slash: an empty page stays.
            self._put(path, b"", _ALWAYS_ASK, mode="overwrite", folder=self._folder_of(path))

    def url(self, path: str) -> str:
        """See `Target.url`."""
        return f"{self.public}/{quote(path, safe='/')}" if self.public else self._address(path)

    def elsewhere(self, path: str) -> str:
        """See `Target.elsewhere`."""
        del path
        return ""

    # Requests and errors ---------------------------------------------------------------------------------

    def _get(self, path: str, *, head: bool = False) -> Any:
        """Return obstore's result for the object at *path*, `None` if there is none."""
        key = self._key(checked_path(path))
        with contextlib.suppress(FileNotFoundError):
            return self._do(
                "reading", path, lambda: self._obstore.get(self._store, key, options={"head": head})
            )
        return None

    def _put(
        self, path: str, content: bytes | Path, cache: str, *, mode: Any, sha256: str = "", folder: Any = None
    ) -> str:
        attributes = {"Content-Type": content_type(path), "Cache-Control": cache}
        attributes |= {"sha256": sha256} if sha256 else {}
        store, key = (folder, "") if folder else (self._store, self._key(checked_path(path)))
        return str(self._do("writing", path, lambda: self._obstore.put(
            store, key, content, mode=mode, attributes=attributes,
            use_multipart=None if mode == "overwrite" else False,
        ))["e_tag"])  # fmt: skip

    def _require_conditions(self) -> None:
        """Refuse a store that would let the later of two publishers win.

        Raises:
            UploadError: it ignores ``If-None-Match`` or ``If-Match`` on writes.
        """
        if not self._has_conditions:
            raise UploadError(
                f"nothing was published to {self._shown}",
                because="the store ignores If-Match or If-None-Match, by which one of two publishers wins",
                next_step="use a store with conditional writes, such as Amazon S3",
            )

    @functools.cached_property
    def _has_conditions(self) -> bool:
        # The first write makes the object where it is missing, so the second has to be refused.
        other = f'"{"0" * 32}"'
        return (self._refuses(None) or self._refuses(None)) and self._refuses(other)

    def _refuses(self, expected: str | None) -> bool:
        try:
            self._put(_CONDITIONS, b"", _ALWAYS_ASK, mode=_condition(expected))
        except LostRaceError:
            return True
        return False

    def _do(self, what: str, path: str, call: Callable[[], T]) -> T:
        """Return the result of *call*.

        Raises:
            FileNotFoundError: there is no such object.
            LostRaceError: a condition was not met.
            UploadError: the store cannot be reached, or refuses.
        """
        try:
            return call()
        except (FileNotFoundError, SparkwrightError):
            raise
        except Exception as error:
            name, text = type(error).__name__, str(error)
            if name in {"AlreadyExistsError", "PreconditionError"} or "status code: 409" in text:
                raise lost_race(path, self._shown) from error
            raise self._failed(what, path, name, text) from error

    def _failed(self, what: str, path: str, name: str, text: str) -> UploadError:
        status = _STATUS.search(text)
        because = f"the store answered {status[1].strip()}" if status else ""
        because = because or next(
            (told for part, told in _CAUSES.items() if part in text), f"it failed ({name})"
        )
        step = "check the address and the network; the same command resumes"
        if because.startswith(("the store answered 401", "the store answered 403")) or "redentials" in text:
            because = because if status else "no credentials were found"
            step = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and the bucket's policy"
        return UploadError(f"{what} {path} at {self._shown} failed", because=because, next_step=step)

    @property
    def _shown(self) -> str:
        address = f"s3://{self.bucket}/{self.prefix}".rstrip("/")
        return f"{address} ({self.endpoint})" if self.endpoint else address

    def _address(self, path: str) -> str:
        """Return the store's own address of *path*."""
        key = quote(self._key(path), safe="/")
        if self.endpoint:
            return f"{self.endpoint}/{self.bucket}/{key}"
        region = self.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return f"https://{self.bucket}.s3.{region or 'us-east-1'}.amazonaws.com/{key}"

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    @property
    def _obstore(self) -> Any:
        """The library.

        Raises:
            ToolError: it is not installed.
        """
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
        return self._opened(self.endpoint)

    def _opened(self, endpoint: str, **more: Any) -> Any:
        """Return obstore's store at *endpoint*; Amazon's if that is empty."""
        _ = self._obstore
        from obstore.store import S3Store

        patience = timedelta(seconds=self.settings.timeout_s)
        client: Any = {
            "connect_timeout": patience,
            "read_timeout": patience,
            "timeout": _LONGEST,
            "allow_http": endpoint.startswith("http://"),
        }
        if self.settings.cert:
            client["root_certificate"] = Path(self.settings.cert).read_bytes()
        pause = timedelta(seconds=self.settings.backoff_s)
        retry: Any = {
            "max_retries": self.settings.attempts - 1,
            "retry_timeout": _LONGEST,
            "backoff": {"init_backoff": pause, "max_backoff": 8 * pause, "base": 2},
        }
        more |= {"endpoint": endpoint} if endpoint else {}
        more |= {"region": self.region} if self.region else {}
        return S3Store(self.bucket, client_options=client, retry_config=retry, **more)


def _condition(expected: str | None) -> str | dict[str, str]:
    """Return the mode of a write that replaces an object with the ETag *expected*, or none."""
    return "create" if expected is None else {"e_tag": expected}
