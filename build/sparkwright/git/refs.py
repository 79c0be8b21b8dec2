"""Checks of refs, object ids and addresses before git gets them.

git takes options anywhere on its command line and programs inside some addresses
(``ext::``), so everything that comes from a file or a user passes here first.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from sparkwright.base.errors import RefError

_OBJECT_ID = re.compile(r"[0-9a-f]{40}")
_REF_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^[-+/.]|/\.|\.lock(/|$)|[/.]$|^@$")
_SCP_LIKE = re.compile(r"(?P<user>[A-Za-z0-9_][\w.-]*@)?(?P<host>[A-Za-z0-9][\w.-]*):(?P<path>[^-:].*)")


def refuse_secret(value: str) -> None:
    """Do nothing if the address *value* holds no password, and no name that may be a token.

    Addresses stand in messages, in events and on git's command line. ssh asks for a name.

    Raises:
        RefError: it holds one; the message does not.
    """
    scheme, url, rest = value.partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if url and at and (scheme != "ssh" or ":" in user):
        shown = f"{scheme}://{rest[len(user) + 1 :]}"
        raise RefError(
            f"{shown!r} was given with a name or a password before its host",
            because="addresses are shown and kept in events, and what is in them would be too",
            next_step="leave them out; where the host asks who you are, use its ssh:// address and a key",
        )


def _is_url(value: str) -> bool:
    """Tell if *value* is a URL of a scheme that we fetch from; ``https::…`` would name a helper."""
    try:
        parts = urlsplit(value)
        host = parts.hostname or ""
    except ValueError:
        return False
    if not value.startswith(f"{parts.scheme}://") or any(character in value for character in "\t\r"):
        return False
    if parts.scheme == "file":
        return not parts.netloc and len(parts.path) > 1
    return parts.scheme in {"https", "ssh"} and host != "" and not host.startswith("-")


def check_object_id(value: str) -> str:
    """Return *value*, if it is a full SHA-1 object id in lower case.

    Raises:
        RefError: it is anything else.
    """
    if not _OBJECT_ID.fullmatch(value):
        raise RefError(
            f"{value!r} is not an object id",
            because="40 lower-case hex digits are wanted",
            next_step="give the full commit id",
        )
    return value


def check_ref(value: str) -> str:
    """Return *value*, if it is a well-formed ref name by the rules of ``git check-ref-format``.

    Raises:
        RefError: it is malformed, or would be read as an option.
    """
    if not value or _REF_FORBIDDEN.search(value):
        raise RefError(
            f"{value!r} is not a ref name",
            because="it is empty, begins like an option, or has a character that refs may not have",
        )
    return value


def check_address(value: str) -> str:
    """Return *value*, if it is the address of a repository over https, ssh or file.

    A path of an existing folder becomes a ``file://`` address.

    Raises:
        RefError: another scheme, an option, a helper program, or a password.
    """
    refuse_secret(value)
    if not value or value.startswith("-") or "\n" in value or "\x00" in value:
        raise RefError(f"{value!r} is not a repository address", because="it would be read as an option")
    if "://" in value:
        if not _is_url(value):
            raise RefError(
                f"{value!r} is not an address that we fetch from",
                because="it is no well-formed https, ssh or file address",
                next_step="use https://, ssh:// or file://",
            )
        return value
    folder = Path(value)
    if folder.is_dir():
        return folder.resolve().as_uri()
    if "::" not in value and _SCP_LIKE.fullmatch(value):
        return value
    raise RefError(
        f"{value!r} is not a repository address",
        because="it is neither a folder here nor an https, ssh or file address",
    )
