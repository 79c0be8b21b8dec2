"""The messages between the machine that builds and those that compile for it."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import sparkwright
from sparkwright.base.config import Model
from sparkwright.lock import Lock
from sparkwright.native.model import Cost, Unit


class WorkerSettings(Model, frozen=True):
    """The settings of a worker; over ssh the one line that it reads from its standard input.

    Attributes:
        scheduler: address of the scheduler, as seen from the worker.
        listen: address at which the worker listens; by default Dask's.
        contact: address at which the scheduler reaches it; by default the same.
        ca, cert, key: certificates of the cluster and the worker's private key (PEM); by default Dask's.
        store_url: address of the store that machines share; empty for what is configured there.
    """

    scheduler: str
    listen: str = ""
    contact: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    store_url: str = ""


class WorkerHello(Model, frozen=True):
    """The description that a worker gives of itself, as a line on its standard output.

    Attributes:
        code: digest of its program; see `own_code`.
        version: version of its program.
        machine: its name.
        slots: compilers that it runs at once.
        mib: memory in MiB that these may take together.
    """

    code: str
    version: str
    machine: str
    slots: int
    mib: int


class BuildInputs(Model, frozen=True):
    """The inputs that all units of a build share, as a file of the store.

    Attributes:
        code: digest of the program that asks.
        lock: the pin.
        machine, arch: the target.
        tree: git id of the tree that is compiled.
        pack: SHA-256 of the git pack with its objects.
        pack_size: bytes of the pack.
        toolchain: key of the toolchain.
        cuda: an installed toolkit is taken instead of the lock's packages.
        isolate: tools run without a network.
    """

    code: str
    lock: Lock
    machine: str
    arch: str
    tree: str
    pack: str
    pack_size: int
    toolchain: str
    cuda: bool = False
    isolate: bool = False


class UnitTask(Model, frozen=True):
    """A unit to compile.

    Attributes:
        inputs: SHA-256 of the file of `BuildInputs`.
        inputs_size: its bytes.
        unit: the compiler call.
        expected: its expected cost.
    """

    inputs: str
    inputs_size: int
    unit: Unit
    expected: Cost


class UnitCompiled(Model, frozen=True, tag="compiled"):
    """A unit that compiled.

    Attributes:
        unit: its name.
        machine: where.
        sha256, size: its object, in the store.
        cost: CPU time and memory.
        seconds: wall-clock time.
        record: the record of the unit cache; `None` where the unit cannot be cached.
    """

    unit: str
    machine: str
    sha256: str
    size: int
    cost: Cost
    seconds: float
    record: dict[str, Any] | None = None


class UnitFailed(Model, frozen=True, tag="failed"):
    """A unit that did not compile: the error's class, its parts, and the compiler's log."""

    unit: str
    machine: str
    error: str
    what: str
    because: str
    next_step: str
    log: str


class WorkerUnfit(Model, frozen=True, tag="unfit"):
    """A worker that cannot compile for this build: the reason, and what helps there."""

    machine: str
    because: str
    next_step: str


UnitReply = UnitCompiled | UnitFailed


@cache
def own_code() -> str:
    """Return the digest of this program's Python files, which machines compare."""
    folder = Path(sparkwright.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
