"""The messages between the machine that asks and those that work for it: one form for every kind of task."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import sparkwright
from sparkwright.base.config import Model
from sparkwright.native.model import Cost


class WorkerSettings(Model, frozen=True):
    """The settings of a worker; over ssh the one line that it reads from its standard input.

    Attributes:
        scheduler: address of the scheduler, as seen from the worker.
        listen: address at which the worker listens; by default Dask's.
        contact: address at which the scheduler reaches it; by default the same.
        ca, cert, key: certificates of the cluster and the worker's private key (PEM); by default Dask's.
        store_url: address of the store that machines share; empty for what is configured there.
        name: name of the machine in progress and errors; by default its own.
    """

    scheduler: str
    listen: str = ""
    contact: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    store_url: str = ""
    name: str = ""


class WorkerHello(Model, frozen=True):
    """The description that a worker gives of itself, as a line on its standard output.

    Attributes:
        code: digest of its program; see `own_code`.
        version: version of its program.
        machine: its name.
        slots: tasks that it runs at once.
        mib: memory in MiB that these may take together.
        offers: capabilities that tasks may need; see `sparkwright.cluster.capabilities`.
    """

    code: str
    version: str
    machine: str
    slots: int
    mib: int
    offers: tuple[str, ...] = ()


class PackedTree(Model, frozen=True):
    """A tree in the store: its git id, and SHA-256 and bytes of the git pack with its objects."""

    tree: str
    sha256: str
    size: int


class StoredFile(Model, frozen=True):
    """A file in the store: its path below a folder, SHA-256 and bytes."""

    path: str
    sha256: str
    size: int


class TaskInputs(Model, frozen=True):
    """The inputs that tasks share, as a file of the store.

    Attributes:
        kind: name of the kind of task; see `sparkwright.cluster.kinds`.
        code: digest of the program that asks.
        trees: trees of git that the tasks need; each may lack what those before it hold.
        shared: what else they share, JSON-ready: a model of the kind's own.
    """

    kind: str
    code: str
    trees: tuple[PackedTree, ...]
    shared: dict[str, Any]


class ClusterTask(Model, frozen=True):
    """A task for a worker.

    Attributes:
        name: its name; no other one of the same inputs has it.
        inputs: SHA-256 of the file of `TaskInputs`.
        inputs_size: its bytes.
        expected: its expected cost.
        needs: capabilities that the worker has to have; it takes one of each for itself.
        asked: what is asked for, JSON-ready: a model of the kind's own.
    """

    name: str
    inputs: str
    inputs_size: int
    expected: Cost
    needs: tuple[str, ...] = ()
    asked: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it


class TaskDone(Model, frozen=True, tag="done"):
    """The result of a task.

    Attributes:
        name: the task's.
        machine: where it ran.
        seconds: wall-clock time.
        made: the result, JSON-ready: a model of the kind's own.
        files: files of the result, in the store.
    """

    name: str
    machine: str
    seconds: float
    made: dict[str, Any]
    files: tuple[StoredFile, ...] = ()


class TaskFailed(Model, frozen=True, tag="failed"):
    """A task that ended with an error: the error's class, its parts, and the log of its tool."""

    name: str
    machine: str
    error: str
    what: str
    because: str
    next_step: str
    log: str


class WorkerUnfit(Model, frozen=True, tag="unfit"):
    """A worker that cannot be used for these tasks: the reason, and what helps there."""

    machine: str
    because: str
    next_step: str


TaskReply = TaskDone | TaskFailed | WorkerUnfit


@cache
def own_code() -> str:
    """Return the digest of this program's Python files, which machines compare."""
    folder = Path(sparkwright.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
