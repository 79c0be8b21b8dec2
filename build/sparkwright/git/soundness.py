"""A repository of the store that a lost disk or a power cut damaged: told apart, and begun again.

Git writes an object once and believes in it from then on. What is damaged cannot be taken out alone: what
leads to it counts as whole. So the repository goes as a whole; what it held is fetched or made again.
"""

from __future__ import annotations

import os

from sparkwright.base.errors import (
    CarryConflictError,
    FetchError,
    LostFileError,
    PatchError,
    ProcessError,
    ProofError,
    RefError,
    SparkwrightError,
    UnprovedError,
)
from sparkwright.base.events import emit, warn
from sparkwright.git.repository import Repository
from sparkwright.store.disk import ActiveRun, hold, no_new_runs, oldest_run, storing
from sparkwright.store.paths import Store

_ANY = tuple(range(256))
# The errors that damaged objects can cause.
_GIT_ERRORS = (FetchError, PatchError, ProcessError, ProofError, RefError, UnprovedError)
# History that was cut off, and what upstream's authors wrote against git's own advice, is no damage.
_HARMLESS = ("notice: ", "warning", "error in ", "dangling ", "missing commit ", "broken link from  commit ")
_OF_A_LINK = "to  commit "


def unsoundness(repository: Repository) -> str:
    """Return what git finds damaged in *repository*, in its words; empty if nothing, or there is none."""
    if not repository.path.exists():
        return ""
    done = repository.command("fsck", "--full", "--no-dangling", "--no-progress", accept=_ANY)
    if done.status == 0:
        return ""
    lines = [line.rstrip() for line in (done.stderr + "\n" + done.text).splitlines()]
    found = [
        line
        for line in lines
        if line.strip() and not line.startswith(_HARMLESS) and not line.strip().startswith(_OF_A_LINK)
    ]
    if not found:
        return ""
    return found[0] if len(found) == 1 else f"{found[0]}; and {len(found) - 1} more findings"


def begin_again(store: Store, repository: Repository, run: ActiveRun, why: str) -> None:
    """Discard the store's repository, which is damaged; *why* says how. Opening it again begins an empty one.

    A run that has read of it would go on to write into the next one, trees whose parts are only in this one.
    """
    path = repository.path
    with store.scratch() as trash, no_new_runs(store.runs):
        if oldest_run(store.runs, but=run) is not None:
            raise ProcessError(
                "git's objects in the store are damaged",
                because=f"{why}; other runs use them, so that the repository cannot be begun again",
                next_step="when those have ended, start again: what it held is fetched or made again",
            )
        repository.close()
        lock = path.with_name(f"{path.name}.lock")
        with hold(lock, f"the repository {path}"), storing(f"removing {path}"):
            if path.exists():
                emit("store.removed", what="damaged", path=str(path))
                path.rename(trash / os.urandom(8).hex())


def inode(repository: Repository) -> int:
    """Return what tells *repository* from one that is begun in its place."""
    return repository.path.stat().st_ino if repository.path.exists() else 0


def mended(store: Store, repository: Repository, run: ActiveRun, opened: int, error: Exception) -> bool:
    """Tell if *error* came from damage in the store that is removed now, so that a second try can succeed.

    *opened* is the `inode` of *repository* as the failed *run* opened it.
    """
    if isinstance(error, LostFileError):  # removed by the code that found it
        why = error.because
    elif not _may_be_gits(error):
        return False
    elif why := unsoundness(repository):
        begin_again(store, repository, run, why)
    elif inode(repository) != opened:
        why = "another run found the repository damaged"
    if not why:
        return False
    warn(f"the store was damaged; missing files are fetched or made again: {why}", because=why)
    return True


def _may_be_gits(error: Exception) -> bool:
    if isinstance(error, CarryConflictError):
        return error.refused
    return isinstance(error, _GIT_ERRORS) or not isinstance(error, SparkwrightError)
