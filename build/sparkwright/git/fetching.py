"""Remotes: what they hold, and fetching exactly that.

Everything fetched is named by its object id, so nothing that a remote answers can put
another content under the name that was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.base.errors import FetchError, ProcessError
from sparkwright.base.events import task
from sparkwright.git.refs import check_address, check_object_id, check_ref
from sparkwright.git.repository import Repository
from sparkwright.store import hold

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
    """Return the remote's refs that match *patterns*, by full name.

    Raises:
        FetchError: the remote did not answer.
    """
    where = check_address(address)
    names = [check_ref(pattern) for pattern in patterns]
    names += [f"{name}^{{}}" for name in names]  # an annotated tag's commit is listed under a name of its own
    try:
        done = repository.command("ls-remote", *_sender(where), "--", where, *names, timeout=timeout)
    except ProcessError as error:
        raise FetchError(
            f"{address} could not be asked",
            because=error.because,
            next_step=_next_step(error.because),
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


def _shown(names: Sequence[str]) -> str:
    """Return *names* for people: a few of them, and how many more there are."""
    few = ", ".join(names[:_FEW])
    return few if len(names) <= _FEW else f"{few} and {len(names) - _FEW} more"


def fetch(
    repository: Repository,
    address: str,
    wanted: Sequence[str],
    *,
    depth: int | None = 1,
    history_only: bool = False,
    without_files: bool = False,
) -> None:
    """Fetch refs or commits by id from *address* into the store; no local ref is made.

    Args:
        repository: where to.
        address: https, ssh or file address, or a folder.
        wanted: full ref names or 40-digit commit ids.
        depth: commits of history for each; `None` for all of it.
        history_only: leave trees and files out, where the remote can; for a scratch repository
            in which a merge base is looked for.
        without_files: leave files out, where the remote can; for a scratch repository, into which those
            that are needed are fetched afterwards, by their ids.

    Raises:
        FetchError: the remote did not answer, or does not have it.
    """
    where = check_address(address)
    names = [_check_wanted(name) for name in wanted]
    # Without a depth, git takes the history of a commit that came with a short one to be complete.
    options = [*_sender(where), "--no-tags", "--no-write-fetch-head", "--quiet", "--no-auto-maintenance"]
    options += [f"--depth={depth or _ALL_HISTORY}"]
    options += ["--filter=tree:0"] if history_only else []
    options += ["--filter=blob:none"] if without_files else []
    try:
        # git refuses a second fetch into a store whose history is short, rather than waiting.
        lock = hold(repository.path / "sparkwright-fetch.lock", f"fetching into {repository.path}")
        with task(f"fetch {_shown(names)}"), lock:
            # git notes where history was cut off in one file, and its lock on that file outlives a
            # kill; while ours is held, a lock that is there is such a left-over.
            (repository.path / "shallow.lock").unlink(missing_ok=True)
            repository.command("fetch", *options, "--", where, *names, timeout=_TIMEOUT_S)
    except ProcessError as error:
        raise FetchError(
            f"{_shown(names)} could not be fetched from {address}",
            because=error.because,
            next_step=_next_step(error.because),
        ) from error
