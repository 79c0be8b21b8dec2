"""The address of a target: which kind it is, with its settings.

| address | target |
|---|---|
| a path, ``file:///srv/wheels?wheels=…`` | a folder; its wheels may be served from another address |
| ``s3://BUCKET/PREFIX?endpoint=…`` | an S3-compatible store |
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

from sparkwright.base.errors import ConfigError
from sparkwright.publish.folder_target import FolderTarget
from sparkwright.publish.s3_target import S3Target
from sparkwright.publish.target import Target
from sparkwright.upstream.settings import read_settings

_KINDS = "the kinds are a folder, file:// and s3://"
_SETTINGS = {"file": ("wheels",), "s3": ("endpoint",)}
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def open_target(address: str) -> Target:
    """Return the target at *address*; nothing is sent yet.

    Credentials never are in an address: those of S3 are the environment's.

    Raises:
        ConfigError: it is no such address.
    """
    if "://" not in address:
        return FolderTarget(Path(address).absolute()) if address else _refuse(address, "it is empty")
    try:
        parts = urlsplit(address)
        settings = parse_qsl(parts.query, strict_parsing=bool(parts.query), keep_blank_values=True)
    except ValueError as error:
        _refuse(address, str(error))
    if parts.scheme not in _SETTINGS:
        _refuse(address, _KINDS)
    if "@" in parts.netloc:
        _refuse(address, "it contains credentials; put them into the environment")
    if parts.fragment or not address.isprintable() or " " in address:
        _refuse(address, "it has a fragment, a space or a control character")
    options = _checked(address, parts.scheme, settings)
    path = unquote(parts.path)
    if parts.scheme == "file":
        if parts.netloc not in {"", "localhost"} or not path:
            _refuse(address, "a folder's address is file:///PATH")
        return FolderTarget(Path(path), **options)
    if not _BUCKET.fullmatch(parts.netloc):
        _refuse(address, f"{parts.netloc!r} is no name of a bucket")
    prefix = path.strip("/")
    if prefix and any(part in {"", ".", ".."} for part in prefix.split("/")):
        _refuse(address, "its path has an empty, . or .. part")
    return S3Target(parts.netloc, prefix, **options, settings=read_settings())


def _checked(address: str, scheme: str, settings: list[tuple[str, str]]) -> dict[str, str]:
    """Return the *settings* of an address by their names."""
    known = _SETTINGS[scheme]
    for key, value in settings:
        if key not in known:
            _refuse(address, f"{key!r} is none of its settings ({', '.join(known)})")
        if urlsplit(value).scheme not in {"http", "https"}:
            _refuse(address, f"{key} is not an http or https address")
    return {key: value.rstrip("/") for key, value in settings}


def _refuse(address: str, because: str) -> NoReturn:
    """Refuse *address*, shown without what may be a password."""
    shown = re.sub(r"//[^/]*@", "//***@", address)
    raise ConfigError(f"{shown!r} is no address of a target", because=because, next_step=_KINDS)
