"""The messages between the machine that builds and those that compile and prove for it."""

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
        slots: compilers or probes that it runs at once.
        mib: memory in MiB that these may take together.
    """

    code: str
    version: str
    machine: str
    slots: int
    mib: int


class PackedTree(Model, frozen=True):
    """A tree in the store: its git id, and SHA-256 and bytes of the git pack with its objects."""

    tree: str
    sha256: str
    size: int


class BuildInputs(Model, frozen=True, tag="build"):
    """The inputs that all units of a build share, as a file of the store.

    Attributes:
        code: digest of the program that asks.
        trees: the tree that is compiled.
        lock: the pin.
        machine, arch: the target.
        toolchain: key of the toolchain.
        cuda: an installed toolkit is taken instead of the lock's packages.
        isolate: tools run without a network.
    """

    code: str
    trees: tuple[PackedTree]
    lock: Lock
    machine: str
    arch: str
    toolchain: str
    cuda: bool = False
    isolate: bool = False


class ProofInputs(Model, frozen=True, tag="proofs"):
    """The inputs that all proofs of a patchset share, as a file of the store.

    Attributes:
        code: digest of the program that asks.
        trees: the pristine and the merged tree.
        environment: key of the environment for probes.
    """

    code: str
    trees: tuple[PackedTree, ...]
    environment: str


TaskInputs = BuildInputs | ProofInputs


class _Task(Model, frozen=True):
    """A task for a worker.

    Attributes:
        inputs: SHA-256 of the file of `TaskInputs`.
        inputs_size: its bytes.
        expected: its expected cost.
    """

    inputs: str
    inputs_size: int
    expected: Cost


class UnitTask(_Task, frozen=True, tag="unit"):
    """A unit to compile."""

    unit: Unit

    @property
    def name(self) -> str:
        """Return the unit's name."""
        return self.unit.name


class ProofTask(_Task, frozen=True, tag="proof"):
    """A carry to prove.

    Attributes:
        name: the carry's.
        carry: its `CarrySpec` at that version, JSON-ready, without what it leaves empty.
        files: its probe and the modules that this may import, by name.
        pristine, merged: git ids of the trees.
        version: upstream's version that both are of.
        paths: files that the carry changes.
        absorbed: what is proved is that upstream does not have the defect any more.
    """

    name: str
    carry: dict[str, Any]
    files: dict[str, bytes]
    pristine: str
    merged: str
    version: str
    paths: tuple[str, ...]
    absorbed: bool


ClusterTask = UnitTask | ProofTask


class UnitCompiled(Model, frozen=True, tag="compiled"):
    """A unit that compiled.

    Attributes:
        name: the unit's.
        machine: where.
        sha256, size: its object, in the store.
        cost: CPU time and memory.
        seconds: wall-clock time.
        record: the record of the unit cache; `None` where the unit cannot be cached.
    """

    name: str
    machine: str
    sha256: str
    size: int
    cost: Cost
    seconds: float
    record: dict[str, Any] | None = None


class ProofMade(Model, frozen=True, tag="proof"):
    """A proof, whatever its verdict: the carry's name, the machine, wall-clock time, and the record."""

    name: str
    machine: str
    seconds: float
    proof: dict[str, Any]


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


TaskReply = UnitCompiled | ProofMade | TaskFailed


@cache
def own_code() -> str:
    """Return the digest of this program's Python files, which machines compare."""
    folder = Path(sparkwright.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
