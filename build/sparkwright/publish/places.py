"""Places by their addresses: the targets of publishers, and the copies of them that readers find.

A target is a path or ``file:///srv/wheels``, or ``s3://BUCKET/PREFIX?endpoint=…`` for an S3-compatible store;
a copy is a folder, or files behind HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit, urlunsplit

import msgspec

from sparkwright.base.digests import CHUNK
from sparkwright.base.errors import ConfigError, FetchError, NotInStoreError, SignatureError
from sparkwright.publish.channel import CHANNELS, require_channel_name
from sparkwright.publish.s3_target import S3Target
from sparkwright.publish.target import MOST_BYTES, FolderTarget, Mirror, Stored, Target, checked_path, hashed
from sparkwright.upstream.network import IndexSettings, read_settings

if TYPE_CHECKING:
    import requests


T = TypeVar("T")

_KINDS = "the kinds are a folder, file:// and s3://"
RECORD = ".json"
"""The end of the name of a file beside a wheel's place, which says of which release the wheel is an asset."""
_ASSET = re.compile(r"(https?)://[\w.-]+(?::\d{1,5})?/[\w./%~+-]+", re.ASCII)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# S3 answers 403 for a file that is not there, to those who may not list the bucket.
_NOT_FOUND = (403, 404, 410)


@dataclass(frozen=True)
class HttpMirror:
    """Files behind HTTP or HTTPS, below the address *root*, which has no slash at its end."""

    root: str
    settings: IndexSettings

    def read(self, path: str) -> Stored | None:
        """See `Mirror.read`."""
        from sparkwright.upstream.network import stated_bytes

        def whole(response: requests.Response) -> bytes:
            data, stated = b"", stated_bytes(response) or 0
            chunks = iter(()) if stated > MOST_BYTES else response.iter_content(CHUNK)
            for chunk in chunks:
                data += chunk
                if len(data) > MOST_BYTES:
                    break
            if max(stated, len(data)) > MOST_BYTES:
                raise FetchError(
                    f"{self.url(path)} was not read",
                    because=f"it has more than {MOST_BYTES} bytes, which no file of a channel has",
                    next_step="take another mirror",
                )
            return data

        data = self._get(path, whole)
        return None if data is None else Stored(data)

    def digest(self, path: str, most: int) -> tuple[str, int] | None:
        """See `Mirror.digest`."""
        from sparkwright.upstream.network import stated_bytes

        def whole(response: requests.Response) -> tuple[str, int]:
            stated = stated_bytes(response) or 0
            return ("", stated) if stated > most else hashed(response.iter_content(CHUNK), most)

        return self._get(path, whole)

    def url(self, path: str) -> str:
        """See `Mirror.url`."""
        from sparkwright.upstream.network import shown

        return shown(self.address(path))

    def address(self, path: str) -> str:
        """Return the address of *path* with the credentials that it is asked for with.

        A wheel may be an asset of a release. Its address is not signed: its bytes are compared with the
        digest, which is.
        """
        own = f"{self.root}/{quote(checked_path(path), safe='/')}"
        record = self.read(path + RECORD) if path.endswith(".whl") else None
        if record is None:
            return own
        try:
            url = msgspec.json.decode(record.data)["url"]
            found = _ASSET.fullmatch(url)
        except (msgspec.DecodeError, UnicodeError, RecursionError, KeyError, TypeError):
            found = None
        if found is None or found[1] not in {"https", urlsplit(self.root).scheme}:
            raise SignatureError(
                f"{path} was not found",
                because=f"{path}{RECORD} there names no address of a file, by https",
                next_step="take another mirror",
            )
        return found[0]

    @cached_property
    def _session(self) -> requests.Session:
        from sparkwright.upstream.network import open_session

        return open_session(self.settings)

    def _get(self, path: str, use: Callable[[requests.Response], T]) -> T | None:
        """Return the result of *use* for the file at *path*, `None` if there is none."""
        import requests

        from sparkwright.upstream.network import RefusedFetchError, fetch_failed, retrying

        headers = {"Accept-Encoding": "identity"}
        try:
            for attempt in retrying(self.settings, path):
                with (
                    attempt,
                    self._session.get(
                        self.address(path), headers=headers, timeout=self.settings.timeout_s, stream=True
                    ) as response,
                ):
                    if response.status_code in _NOT_FOUND:
                        return None
                    response.raise_for_status()
                    return use(response)
        except (requests.RequestException, RefusedFetchError) as error:
            raise fetch_failed(self.url(path), error) from error
        return None


def open_mirror(place: str, settings: IndexSettings) -> tuple[Mirror, str]:
    """Return the copy of a target at *place*, and the channel that it names."""
    try:
        parts = urlsplit(place)
    except ValueError as error:
        raise ConfigError(f"{place} is no address of a channel", because=str(error)) from error
    if parts.scheme in {"http", "https"}:
        if settings.offline:
            raise NotInStoreError(
                f"{place} cannot be read", because="the network is off", next_step="run it without --offline"
            )
        if parts.query or parts.fragment:
            raise ConfigError(f"{place} is no address of a channel", because="it has a query or a fragment")
        path = parts.path
    else:
        folder = Path(unquote(parts.path) if parts.scheme == "file" else place).absolute()
        if not folder.is_dir():
            raise ConfigError(
                f"{place} cannot be verified",
                because="it is neither a folder nor an http or https address",
                next_step="name a channel's folder or address, such as https://HOST/channels/stable",
            )
        path = folder.as_posix()
    base, found, rest = path.rpartition(f"/{CHANNELS}/")
    if not found:
        raise ConfigError(
            f"{place} names no channel", next_step="give one, such as https://HOST/channels/stable"
        )
    channel = require_channel_name(rest.split("/", maxsplit=1)[0])
    if parts.scheme in {"http", "https"}:
        root = urlunsplit((parts.scheme, parts.netloc, base.rstrip("/"), "", ""))
        return HttpMirror(root, settings), channel
    return FolderTarget(Path(base or "/")), channel


def open_target(address: str) -> Target:
    """Return the target at *address*; nothing is sent yet.

    Credentials never are in an address: those of S3 are the environment's.
    """
    if "://" not in address:
        return FolderTarget(Path(address).absolute()) if address else _refuse(address, "it is empty")
    parts, endpoint = _split(address)
    path = unquote(parts.path)
    if parts.scheme == "file":
        if parts.netloc not in {"", "localhost"} or not path:
            _refuse(address, "a folder's address is file:///PATH")
        return FolderTarget(Path(path))
    if not _BUCKET.fullmatch(parts.netloc):
        _refuse(address, f"{parts.netloc!r} is no name of a bucket")
    prefix = path.strip("/")
    if prefix and any(part in {"", ".", ".."} for part in prefix.split("/")):
        _refuse(address, "its path has an empty, . or .. part")
    return S3Target(parts.netloc, prefix, endpoint, settings=read_settings())


def _split(address: str) -> tuple[SplitResult, str]:
    """Return the parts of *address*, and the endpoint that it sets; empty for none."""
    try:
        parts = urlsplit(address)
        settings = parse_qsl(parts.query, strict_parsing=bool(parts.query), keep_blank_values=True)
    except ValueError as error:
        _refuse(address, str(error))
    if parts.scheme not in {"file", "s3"}:
        _refuse(address, _KINDS)
    if "@" in parts.netloc:
        _refuse(address, "it contains credentials; put them into the environment")
    if parts.fragment or not address.isprintable() or " " in address:
        _refuse(address, "it has a fragment, a space or a control character")
    endpoint = ""
    for key, value in settings:
        if parts.scheme == "file" or key != "endpoint":
            _refuse(address, f"{key!r} is none of its settings; s3:// has endpoint, and file:// none")
        if urlsplit(value).scheme not in {"http", "https"}:
            _refuse(address, f"{key} is not an http or https address")
        endpoint = value.rstrip("/")
    return parts, endpoint


def _refuse(address: str, because: str) -> NoReturn:
    """Refuse *address*, shown without what may be a password."""
    shown = re.sub(r"//[^/]*@", "//***@", address)
    raise ConfigError(f"{shown!r} is no address of a target", because=because, next_step=_KINDS)
