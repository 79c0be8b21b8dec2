"""Addresses of clusters, and tasks, results and settings of workers: what goes between the machines."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

import sparkwright
from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import sha256_bytes, sha256_file
from sparkwright.base.errors import ClusterError, ConfigError
from sparkwright.base.ssh import SshHost, parse_host
from sparkwright.store.disk import storing
from sparkwright.store.paths import Store


def parse_cluster(text: str) -> tuple[SshHost, ...]:
    """Return the machines at the address *text*, ``ssh://[USER@]HOST[:PORT],…``."""
    scheme, _, rest = text.partition("://")
    shown = text if "@" not in text else f"{scheme}://…"  # what stands before an @ may be a password
    if scheme != "ssh":
        raise _no_cluster(shown, "its machines are not reached by ssh")
    try:
        hosts = tuple(parse_host(host) for host in rest.rstrip("/").split(","))
    except ValueError as error:
        raise _no_cluster(shown, str(error)) from error
    if len({host.shown for host in hosts}) < len(hosts):  # it is also the name of a worker
        raise _no_cluster(shown, "it names a machine twice; a worker takes all cores of one")
    return hosts


def _no_cluster(text: str, because: str) -> ConfigError:
    return ConfigError(
        f"{text!r} is no cluster", because=because, next_step="give ssh://[USER@]HOST[:PORT],…"
    )


# Tasks, as lines of JSON -----------------------------------------------------------------------------


GPU, GB10 = "gpu", "gb10"
"""Needs that only some machines meet: a card of NVIDIA's; one like GB10's.

A card serves one task at a time.
"""
OUT = "out"
"""The folder, below a task's working folder, whose files are the files of its result."""


class TaskLostError(ClusterError):
    """A task ended without a result on every machine that tried it."""


class StoredFile(Model, frozen=True):
    """A file in the store: its path below a folder, SHA-256 and bytes."""

    path: str
    sha256: str
    size: int


class Task(Model, frozen=True, kw_only=False):
    """A command line of sparkwright to run elsewhere; it prints one JSON document.

    Attributes:
        name: no other task of the same run has it.
        files: what it reads, below its working folder.
        needs: what the machine has to have.
        seconds, mib: expected CPU time and memory.
    """

    name: str
    words: tuple[str, ...]
    files: tuple[StoredFile, ...] = ()
    needs: tuple[str, ...] = ()
    seconds: float = 60.0
    mib: int = 1024


class Done(Model, frozen=True, kw_only=False, tag="done"):
    """The result of a task: the document that it printed, and the files that it left in `OUT`."""

    name: str
    machine: str
    seconds: float
    value: Any
    files: tuple[StoredFile, ...] = ()


class Failed(Model, frozen=True, kw_only=False, tag="failed"):
    """The end of a task without a result.

    Attributes:
        fault: whose it is: the ``task``'s, which fails on every machine; the ``machine``'s, which gets no
            further one; or unknown, as the program was killed: another machine tries it.
        kind, what, because, next_step: the error's class and its parts.
    """

    name: str
    machine: str
    fault: str
    kind: str
    what: str
    because: str = ""
    next_step: str = ""


Reply = Done | Failed


class Offer(Model, frozen=True, kw_only=False, tag="offer"):
    """The first message of a worker that is ready.

    Attributes:
        slots: tasks that the machine runs at once.
        has: what tasks may need of it.
    """

    slots: int
    mib: int
    has: tuple[str, ...]


class Alive(Model, frozen=True, tag="alive"):
    """A worker's sign of life."""


WorkerMessage = Done | Failed | Offer | Alive
"""One line of a worker's output."""


class WorkerSettings(Model, frozen=True):
    """The settings of a worker: the first line that it reads; the others are tasks, or empty.

    Attributes:
        code: digest of the program that asks; see `own_code`.
        store_url: the store that machines share; empty for what is configured there.
        name: the machine's, in progress and errors.
    """

    code: str
    store_url: str
    name: str


@cache
def own_code() -> str:
    """Return the digest of this program's Python files, which machines compare."""
    folder = Path(sparkwright.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


# Their files -----------------------------------------------------------------------------------------


REQUEST = "request.json"
"""The file with what a task asks for."""


def share_json(store: Store, value: Any) -> StoredFile:
    """Put *value*, what a task asks for, where machines share the store; return it as `REQUEST`."""
    data = msgspec.json.encode(to_builtins(value))
    with store.scratch() as scratch:
        (scratch / REQUEST).write_bytes(data)
        store.adopt_file(scratch / REQUEST, sha256_bytes(data), verified=True)
    return shared(store, REQUEST, sha256_bytes(data), len(data))


def share_file(store: Store, path: Path, name: str = "") -> StoredFile:
    """Put the file at *path*, called *name* by the task, where machines share the store."""
    sha256, size = sha256_file(path), path.stat().st_size
    if store.find_file(sha256, size=size, remote=False) is None:
        with store.scratch() as scratch, storing(f"storing {path.name}"):
            copy = scratch / "file"
            shutil.copyfile(path, copy)
            store.adopt_file(copy, sha256)
    return shared(store, name or path.name, sha256, size)


def shared(store: Store, name: str, sha256: str, size: int) -> StoredFile:
    """Share a file that *store* has, and return it under the *name* that a task has for it."""
    store.share(sha256)
    return StoredFile(path=name, sha256=sha256, size=size)


def bring_files(store: Store, files: Iterable[StoredFile], folder: Path) -> bool:
    """Write *files* of the store below *folder*; return false, and write none, if one is not there.

    A path that names no file below *folder* counts as not there.
    """
    wanted = tuple(files)
    for one in wanted:
        path = PurePosixPath(one.path)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in one.path:
            return False
        if store.find_file(one.sha256, size=one.size, fresh=True) is None:
            return False
    for one in wanted:
        store.copy_out(one.sha256, folder / one.path)
    return True
