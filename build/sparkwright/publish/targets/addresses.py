"""The address of a target: which kind it is, with its settings.

| address | target |
|---|---|
| a path, ``file:///srv/wheels`` | a folder |
| ``s3://BUCKET/PREFIX?endpoint=…&region=…&public=…`` | an S3-compatible store |
| ``github://OWNER/REPOSITORY?release=…&branch=…&public=…&downloads=…`` | a release and Pages |
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from sparkwright.base.errors import ConfigError
from sparkwright.publish.folder_target import FolderTarget
from sparkwright.publish.target import Target
from sparkwright.publish.targets.github import GithubTarget
from sparkwright.publish.targets.s3 import S3Target
from sparkwright.upstream.settings import IndexSettings, read_settings

_KINDS = "a folder, file://, s3:// and github://"
_KEYS = {
    "s3": ("endpoint", "region", "public"),
    "github": ("release", "branch", "public", "downloads"),
}
_ADDRESSES = {"endpoint", "public", "downloads"}
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")


def open_target(address: str, *, environment: Mapping[str, str] = os.environ) -> Target:
    """Return the target at *address*; nothing is sent yet.

    Credentials never are in an address: those of S3 are the environment's, those of GitHub ``gh``'s.

    Args:
        address: see the table of this module.
        environment: for pip's settings (certificates, trusted hosts).

    Raises:
        ConfigError: it is no such address.
    """
    if "://" not in address:
        return FolderTarget(Path(address).absolute()) if address else _refuse(address, "it is empty")
    parts = _split(address)
    options = _options(address, parts)
    if parts.scheme == "file":
        return _folder(address, parts)
    if not parts.hostname:
        _refuse(address, "it names no host, bucket or owner")
    settings = read_settings(environment)
    match parts.scheme:
        case "s3":
            return _s3(address, parts, options, settings)
        case "github":
            return _github(address, parts, options, settings)
        case _:
            return _refuse(address, f"the kinds are {_KINDS}")


def _split(address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError as error:
        _refuse(address, str(error))
    if "@" in parts.netloc:
        _refuse(address, "it contains credentials; put them into the environment or ~/.netrc")
    if parts.fragment or not address.isprintable() or " " in address:
        _refuse(address, "it has a fragment, a space or a control character")
    return parts


def _folder(address: str, parts: SplitResult) -> FolderTarget:
    if parts.netloc not in {"", "localhost"} or not parts.path:
        _refuse(address, "a folder's address is file:///PATH")
    return FolderTarget(Path(unquote(parts.path)))


def _s3(address: str, parts: SplitResult, options: dict[str, str], settings: IndexSettings) -> S3Target:
    if not _BUCKET.fullmatch(parts.netloc):
        _refuse(address, f"{parts.netloc!r} is no name of a bucket")
    return S3Target(parts.netloc, _path(address, parts), **options, settings=settings)


def _github(
    address: str, parts: SplitResult, options: dict[str, str], settings: IndexSettings
) -> GithubTarget:
    repository = _path(address, parts)
    if not _NAME.fullmatch(parts.netloc) or not _NAME.fullmatch(repository):
        _refuse(address, "after github:// go the owner and the repository")
    if not all(_REF.fullmatch(name) for key, name in options.items() if key not in _ADDRESSES):
        _refuse(address, "its release or branch is no plain name")
    return GithubTarget(parts.netloc, repository, **options, settings=settings)


def _path(address: str, parts: SplitResult) -> str:
    path = unquote(parts.path).strip("/")
    if path and any(part in {"", ".", ".."} for part in path.split("/")):
        _refuse(address, "its path has an empty, . or .. part")
    return path


def _options(address: str, parts: SplitResult) -> dict[str, str]:
    """Return what follows ``?``."""
    allowed = _KEYS.get(parts.scheme, ())
    try:
        options = parse_qsl(parts.query, strict_parsing=bool(parts.query), keep_blank_values=True)
    except ValueError as error:
        _refuse(address, str(error))
    for key, value in options:
        if key not in allowed:
            _refuse(address, f"{key!r} is none of its settings ({', '.join(allowed) or 'it has none'})")
        if key in _ADDRESSES and urlsplit(value).scheme not in {"http", "https"}:
            _refuse(address, f"{key} is not an http or https address")
    return {key: value.rstrip("/") for key, value in options}


def _refuse(address: str, because: str) -> NoReturn:
    """Refuse *address*, shown without what may be a password.

    Raises:
        ConfigError: always.
    """
    shown = re.sub(r"//[^/]*@", "//***@", address)
    raise ConfigError(
        f"{shown!r} is no address of a target", because=because, next_step=f"the kinds are {_KINDS}"
    )
