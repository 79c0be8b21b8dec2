"""Tasks, their results, and the settings of a worker: what goes between the machines, as lines of JSON."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import sparkwright
from sparkwright.base.config import Model
from sparkwright.base.errors import ClusterError

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
    """What a worker that is ready writes first.

    Attributes:
        slots: tasks that the machine runs at once.
        mib: memory that these may take together.
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
