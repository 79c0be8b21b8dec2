"""Copies of a target as readers find them: a folder, or files behind HTTP."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from sparkwright.base.digests import CHUNK
from sparkwright.base.errors import ConfigError, FetchError, NotInStoreError
from sparkwright.publish.channel import CHANNELS, require_channel_name
from sparkwright.publish.folder_target import open_plain, read_plain
from sparkwright.publish.target import MOST_BYTES, checked_path
from sparkwright.upstream import IndexSettings

if TYPE_CHECKING:
    import requests


T = TypeVar("T")

# S3 answers 403 for a file that is not there, to those who may not list the bucket.
_NOT_FOUND = (403, 404, 410)


class Mirror(Protocol):
    """A copy of a target that can be read."""

    @property
    def address(self) -> str:
        """Its address, for people, without credentials."""

    def read(self, path: str, elsewhere: str = "") -> bytes | None:
        """Return the small file at *path*, `None` if there is none.

        Args:
            path: of the file.
            elsewhere: its absolute address if clients get it from another host; folders ignore it.

        Raises:
            FetchError: it cannot be fetched, or is too large.
            UploadError: the same, of a folder.
        """

    def digest(self, path: str, most: int, elsewhere: str = "") -> tuple[str, int] | None:
        """Return SHA-256 and size of the file at *path*, `None` if there is none.

        Args:
            path: of the file.
            most: bytes after which reading stops; a longer file has another digest anyway.
            elsewhere: as in `read`.

        Raises:
            FetchError, UploadError: see `read`.
        """


@dataclass(frozen=True)
class FolderMirror:
    """A folder.

    Attributes:
        folder: the root of the target or of its copy.
    """

    folder: Path

    @property
    def address(self) -> str:
        """The folder."""
        return str(self.folder)

    def read(self, path: str, elsewhere: str = "") -> bytes | None:
        """See `Mirror.read`."""
        del elsewhere
        return read_plain(self.folder, path)

    def digest(self, path: str, most: int, elsewhere: str = "") -> tuple[str, int] | None:
        """See `Mirror.digest`."""
        del elsewhere
        with open_plain(self.folder, path) as stream:
            return _hashed(iter(lambda: stream.read(CHUNK), b""), most) if stream else None


@dataclass(frozen=True)
class HttpMirror:
    """Files behind HTTP or HTTPS.

    Attributes:
        url: address of the root, without a slash at its end.
        settings: time-outs, certificates and the number of tries.
    """

    url: str
    settings: IndexSettings
    _session: list[requests.Session] = field(default_factory=list, repr=False, compare=False)

    @property
    def address(self) -> str:
        """The address without credentials."""
        from sparkwright.upstream.network import shown

        return shown(self.url)

    def read(self, path: str, elsewhere: str = "") -> bytes | None:
        """See `Mirror.read`."""
        from sparkwright.upstream.network import stated_bytes

        def whole(response: requests.Response) -> bytes:
            if (stated_bytes(response) or 0) > MOST_BYTES:
                raise _too_large(self._shown(path))
            data = b""
            for chunk in response.iter_content(CHUNK):
                data += chunk
                if len(data) > MOST_BYTES:
                    raise _too_large(self._shown(path))
            return data

        return self._get(path, elsewhere, whole)

    def digest(self, path: str, most: int, elsewhere: str = "") -> tuple[str, int] | None:
        """See `Mirror.digest`."""
        from sparkwright.upstream.network import stated_bytes

        def hashed(response: requests.Response) -> tuple[str, int]:
            stated = stated_bytes(response) or 0
            return ("", stated) if stated > most else _hashed(response.iter_content(CHUNK), most)

        return self._get(path, elsewhere, hashed)

    def offers(self, folder: str) -> bool:
        """Tell if a client that asks for *folder* gets anything, such as the page in it.

        Raises:
            FetchError: that cannot be told.
        """
        return (
            self._get(folder, f"{self.url}/{quote(checked_path(folder), safe='/')}/", lambda _: True) is True
        )

    def _get(self, path: str, elsewhere: str, use: Callable[[requests.Response], T]) -> T | None:
        """Return the result of *use* for the file at *path*, `None` if there is none.

        Raises:
            FetchError: it cannot be fetched.
        """
        import requests

        from sparkwright.upstream.network import RefusedFetchError, fetch_failed, open_session, retrying

        if not self._session:
            self._session.append(open_session(self.settings))
        url = elsewhere or f"{self.url}/{quote(checked_path(path), safe='/')}"
        headers = {"Accept-Encoding": "identity"}
        try:
            for attempt in retrying(self.settings, path):
                with (
                    attempt,
                    self._session[0].get(
                        url, headers=headers, timeout=self.settings.timeout_s, stream=True
                    ) as response,
                ):
                    if response.status_code in _NOT_FOUND:
                        return None
                    response.raise_for_status()
                    return use(response)
        except (requests.RequestException, RefusedFetchError) as error:
            raise fetch_failed(elsewhere or self._shown(path), error) from error
        return None

    def _shown(self, path: str) -> str:
        return f"{self.address}/{path}"


def _hashed(chunks: Iterator[bytes], most: int) -> tuple[str, int]:
    """Return the SHA-256 and the number of the bytes in *chunks*, of which no more than *most* are needed."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
        if size > most:
            break
    return digest.hexdigest(), size


def open_mirror(place: str, settings: IndexSettings) -> tuple[Mirror, str]:
    """Return the copy of a target at *place*, and the channel that it names; empty if it names none.

    Args:
        place: address or folder of a target or of a channel in it, such as ``…/channels/stable/simple/``.
        settings: how to reach addresses.

    Raises:
        ConfigError: it is neither a folder nor an http or https address.
        NotInStoreError: it is an address, and the network is off.
    """
    scheme = urlsplit(place).scheme
    if scheme in {"http", "https"}:
        if settings.offline:
            raise NotInStoreError(
                f"{place} cannot be read", because="the network is off", next_step="run it without --offline"
            )
        parts = urlsplit(place)
        if parts.query or parts.fragment:
            raise ConfigError(f"{place} is no address of a channel", because="it has a query or a fragment")
        base, name = _divided(parts.path)
        return HttpMirror(urlunsplit((parts.scheme, parts.netloc, base.rstrip("/"), "", "")), settings), name
    folder = Path(unquote(urlsplit(place).path) if scheme == "file" else place).absolute()
    if not folder.is_dir():
        raise ConfigError(
            f"{place} cannot be verified",
            because="it is neither a folder nor an http or https address",
            next_step="name a target's folder or address, such as https://HOST/channels/stable",
        )
    base, name = _divided(folder.as_posix())
    return FolderMirror(Path(base or "/")), name


def _divided(path: str) -> tuple[str, str]:
    """Return the root of a target and the channel in it that *path* names."""
    base, found, rest = path.rpartition(f"/{CHANNELS}/")
    if not found:
        return path.removesuffix(f"/{CHANNELS}"), ""
    return base, require_channel_name(rest.split("/", maxsplit=1)[0])


def _too_large(what: str) -> FetchError:
    return FetchError(
        f"{what} was not read",
        because=f"it has more than {MOST_BYTES} bytes, which no page of a channel has",
        next_step="take another mirror",
    )
