"""Check refs, object ids and addresses before git gets them, and fetch from remotes.

git takes options anywhere on its command line and programs inside some addresses
(``ext::``), so everything that comes from a file or a user passes here first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from sparkwright.base.errors import FetchError, ProcessError, RefError
from sparkwright.base.events import task
from sparkwright.base.text import few
from sparkwright.git.repository import Repository
from sparkwright.store.disk import hold

_OBJECT_ID = re.compile(r"[0-9a-f]{40}")
_REF_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^[-+/.]|/\.|\.lock(/|$)|[/.]$|^@$")
_WHO = re.compile(r"(?P<scheme>[^/:]*:/+)?(?P<user>[^/]*)@")
_SCP_LIKE = re.compile(r"(?P<user>[A-Za-z0-9_][\w.-]*@)?(?P<host>[A-Za-z0-9][\w.-]*):(?P<path>[^-:].*)")


def refuse_secret(value: str) -> None:
    """Do nothing if the address *value* holds no password, no query, and no name that may be a token.

    Addresses stand in messages, in events and on git's command line. ssh asks for a name.
    """
    address, query, _ = value.partition("?")
    who = _WHO.match(address)
    if query or (who and (":" in who["user"] or who["scheme"] not in {None, "ssh://"})):
        shown = f"{who['scheme'] or ''}{address[who.end() :]}" if who else address
        raise RefError(
            f"{shown!r} was given with a name or a password before its host, or with a query",
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
    """Return *value*, if it is a full SHA-1 object id in lower case."""
    if not _OBJECT_ID.fullmatch(value):
        raise RefError(
            f"{value!r} is not an object id",
            because="40 lower-case hex digits are wanted",
            next_step="give the full commit id",
        )
    return value


def check_ref(value: str) -> str:
    """Return *value*, if it is a well-formed ref name by the rules of ``git check-ref-format``."""
    if not value or _REF_FORBIDDEN.search(value):
        raise RefError(
            f"{value!r} is not a ref name",
            because="it is empty, begins like an option, or has a character that refs may not have",
        )
    return value


def check_address(value: str) -> str:
    """Return *value*, if it is the address of a repository over https, ssh or file.

    A path of an existing folder becomes a ``file://`` address.
    """
    if value and "://" not in value and (folder := Path(value)).is_dir():
        return folder.resolve().as_uri()
    refuse_secret(value)
    if not value or value.startswith("-") or "\n" in value or "\x00" in value:
        raise RefError(
            f"{value!r} is not a repository address",
            because="it would be read as an option" if value else "it is empty",
        )
    if "://" in value:
        if not _is_url(value):
            raise RefError(
                f"{value!r} is not an address that we fetch from",
                because="it is no well-formed https, ssh or file address",
                next_step="use https://, ssh:// or file://",
            )
        return value
    if "::" not in value and _SCP_LIKE.fullmatch(value):
        return value
    raise RefError(
        f"{value!r} is not a repository address",
        because="it is neither a folder here nor an https, ssh or file address",
        next_step="give an address such as https://HOST/PROJECT.git, or a folder that exists",
    )


# Remotes ------------------------------------------------------------------------------------------

# Everything fetched is named by its object id, so nothing that a remote answers can put
# another content under the name that was asked for.

_TIMEOUT_S = 3600.0
_ALL_HISTORY = 0x7FFFFFFF  # what git itself calls an infinite depth
_FEW = 3
# A folder that the user names may be another user's. What git sends from there runs nothing of that folder's
# configuration, and `safe.directory` counts from a command line only.
_OWN_OR_NOT = "--upload-pack=git -c 'safe.directory=*' upload-pack"
_NEXT_STEP = "check the address and the network; --offline works from what the store holds"


@dataclass(frozen=True)
class RemoteRef:
    """A ref on a remote; `peeled` is the commit that an annotated tag stands for."""

    name: str
    object_id: str
    peeled: str | None = None

    @property
    def commit(self) -> str:
        """Return the commit that the ref leads to."""
        return self.peeled or self.object_id


def list_remote(
    repository: Repository, address: str, patterns: Sequence[str], *, timeout: float = 60.0
) -> dict[str, RemoteRef]:
    """Return the remote's refs that match *patterns*, by full name."""
    where = check_address(address)
    names = [check_ref(pattern) for pattern in patterns]
    names += [f"{name}^{{}}" for name in names]  # an annotated tag's commit is listed under a name of its own
    try:
        done = repository.command("ls-remote", *_sender(where), "--", where, *names, timeout=timeout)
    except ProcessError as error:
        raise FetchError(
            f"{address} could not be asked", because=error.because, next_step=_next_step(error.because)
        ) from error
    found: dict[str, RemoteRef] = {}
    for line in filter(None, done.text.split("\n")):
        object_id, _, name = line.partition("\t")
        plain = name.removesuffix("^{}")
        if plain != name:
            tag = found.get(plain)
            found[plain] = RemoteRef(plain, tag.object_id if tag else object_id, peeled=object_id)
        else:
            found[name] = RemoteRef(name, object_id)
    return found


def _sender(address: str) -> list[str]:
    return [_OWN_OR_NOT] if address.startswith("file://") else []


def _next_step(because: str) -> str:
    """Return what to do about git's complaint *because*."""
    if "not our ref" in because:
        return "give a repository that has that commit; 'sparkwright lock check' verifies the lock's"
    return _NEXT_STEP


def _check_wanted(name: str) -> str:
    return check_object_id(name) if len(name) == 40 and "/" not in name else check_ref(name)  # noqa: PLR2004


def fetch(
    repository: Repository,
    address: str,
    wanted: Sequence[str],
    *,
    depth: int | None = 1,
    filter_: Literal["", "tree:0", "blob:none"] = "",
) -> None:
    """Fetch refs by full name, or commits by id, from *address* into the store; no local ref is made.

    *depth* are the commits of history for each, `None` for all of it. *filter_*
    is what the remote leaves out if it can, for a scratch repository: trees with files where a merge base is
    looked for, and files where those that are needed are fetched afterwards, by their ids.
    """
    where = check_address(address)
    names = [_check_wanted(name) for name in wanted]
    # Without a depth, git takes the history of a commit that came with a short one to be complete.
    options = [*_sender(where), "--no-tags", "--no-write-fetch-head", "--quiet", "--no-auto-maintenance"]
    options += [f"--depth={depth or _ALL_HISTORY}"]
    options += [f"--filter={filter_}"] if filter_ else []
    try:
        # git refuses a second fetch into a store whose history is short, rather than waiting.
        lock = hold(repository.path / "sparkwright-fetch.lock", f"fetching into {repository.path}")
        with task(f"fetch {few(names, _FEW)}"), lock:
            # git notes where history was cut off in one file, and its lock on that file outlives a
            # kill; while ours is held, a lock that is there is such a left-over.
            (repository.path / "shallow.lock").unlink(missing_ok=True)
            repository.command("fetch", *options, "--", where, *names, timeout=_TIMEOUT_S)
    except ProcessError as error:
        raise FetchError(
            f"{few(names, _FEW)} could not be fetched from {address}",
            because=error.because,
            next_step=_next_step(error.because),
        ) from error
