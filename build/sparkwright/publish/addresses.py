"""The address of a target: which kind it is, with its settings.

| address | target |
|---|---|
| a path, ``file:///srv/wheels`` | a folder |
| ``s3://BUCKET/PREFIX?endpoint=…`` | an S3-compatible store |
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from sparkwright.base.errors import ConfigError
from sparkwright.publish.folder_target import FolderTarget
from sparkwright.publish.s3_target import S3Target
from sparkwright.publish.target import Target
from sparkwright.upstream.settings import read_settings

_KINDS = "the kinds are a folder, file:// and s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def open_target(address: str) -> Target:
    """Return the target at *address*; nothing is sent yet.

    Credentials never are in an address: those of S3 are the environment's.

    Raises:
        ConfigError: it is no such address.
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
