"""Compile the units of a build on a cluster: `ClusterCompiler` takes the place of compilers here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from sparkwright.base import errors
from sparkwright.base.config import to_builtins
from sparkwright.base.digests import sha256_bytes, sha256_file
from sparkwright.base.errors import ClusterError, CompileError, SparkwrightError
from sparkwright.base.events import emit, task
from sparkwright.cluster.messages import BuildInputs, UnitCompiled, UnitFailed, UnitTask, own_code
from sparkwright.cluster.pool import open_pool, unit_order
from sparkwright.git import pack_tree
from sparkwright.native.schedule import makespan
from sparkwright.native.units import UnitRecord, adopt_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from sparkwright.cluster.address import ClusterAddress
    from sparkwright.cluster.messages import UnitReply
    from sparkwright.cluster.pool import Pool
    from sparkwright.git import Repository
    from sparkwright.lock import Lock
    from sparkwright.native.build import Configured
    from sparkwright.native.model import Cost, Inputs, Unit
    from sparkwright.store import Store

_PACK = "tree-pack"
_ATTEMPTS = 3


@dataclass(frozen=True)
class ClusterCompiler:
    """Compiles on other machines.

    Attributes:
        address: the machines.
        store: the store here.
        repository: holds the trees.
        lock: the pin.
        logs: folder for the logs of units that failed.
        cuda: an installed toolkit is taken instead of the lock's packages.
        isolate: tools run without a network.
        keep_going: compile the other units when one fails.
        patience_s: how long to wait for a machine when none is left.
    """

    address: ClusterAddress
    store: Store
    repository: Repository
    lock: Lock
    logs: Path
    cuda: bool = False
    isolate: bool = False
    keep_going: bool = False
    patience_s: float = 60.0

    def compile(
        self,
        inputs: Inputs,
        known: Configured,
        units: Sequence[Unit],
        expected: Mapping[str, Cost],
        learn: Callable[[str, Cost], None],
    ) -> dict[str, str]:
        """Return the objects of *units*: output path to SHA-256 in the store.

        Args:
            inputs: the target and the toolchain.
            known: the configuration, and the tree that is compiled.
            units: the units to compile.
            expected: their expected costs.
            learn: called with each unit's name and measured cost.

        Raises:
            CompileError, NotEnoughMemoryError, StorageError, ToolError: as compiling here does.
            ClusterError: no machine can be had, or several were lost over one unit.
        """
        url = "" if self.store.remote is None else self.store.remote.settings.url
        digest, size = self._inputs_file(inputs, known)
        tasks = [
            UnitTask(inputs=digest, inputs_size=size, unit=unit, expected=expected[unit.name])
            for unit in units
        ]
        run = _Run(self, inputs, known, learn)
        with open_pool(self.address, store_url=url, patience_s=self.patience_s) as pool:
            emit("cluster.opened", name=pool.name, slots=pool.slots, machines=len(pool.workers))
            return run.through(pool, unit_order(tasks))

    def _inputs_file(self, inputs: Inputs, known: Configured) -> tuple[str, int]:
        """Put what all units share into the store, and where machines share it; return digest and size."""
        pack = self._pack(known.tree)
        shared = BuildInputs(
            code=own_code(),
            lock=self.lock,
            machine=inputs.target.machine,
            arch=inputs.target.arch,
            tree=known.tree,
            pack=pack,
            pack_size=self.store.file_path(pack).stat().st_size,
            toolchain=inputs.toolchain.key,
            cuda=self.cuda,
            isolate=self.isolate,
        )
        data = msgspec.json.encode(to_builtins(shared))
        digest = sha256_bytes(data)
        with self.store.scratch() as scratch:
            path = scratch / "inputs"
            path.write_bytes(data)
            self.store.adopt_file(path, digest, verified=True)
        for sha256 in (pack, digest):
            self.store.share(sha256)
        if self.store.remote is not None:
            with task("share the sources"):
                self.store.remote.finish(self.store, limit_s=float("inf"))
        return digest, len(data)

    def _pack(self, tree: str) -> str:
        """Return the SHA-256 of a pack of *tree* in the store; made once."""
        recorded = self.store.find_record(_PACK, tree) or {}
        known = recorded.get("sha256")
        if isinstance(known, str) and self.store.find_file(known, remote=False):
            return known
        with task("pack the sources"), self.store.scratch() as scratch:
            path = scratch / "pack"
            pack_tree(self.repository, tree, path)
            sha256 = sha256_file(path)
            self.store.adopt_file(path, sha256, verified=True)
        self.store.put_record(_PACK, tree, {"sha256": sha256})
        return sha256


class _Run:
    """The units of one build, on their way through a pool."""

    def __init__(
        self,
        compiler: ClusterCompiler,
        inputs: Inputs,
        known: Configured,
        learn: Callable[[str, Cost], None],
    ) -> None:
        self.compiler, self.inputs, self.known, self.learn = compiler, inputs, known, learn
        self.objects: dict[str, str] = {}
        self.failures: list[SparkwrightError] = []
        self.attempts: dict[str, int] = {}

    def through(self, pool: Pool, tasks: Sequence[UnitTask]) -> dict[str, str]:
        """Return the objects of *tasks*; the first failure keeps further ones from being waited for."""
        left = {asked.unit.name: asked.expected.seconds for asked in tasks}
        with task("compile", total=len(tasks), unit="units") as shown:
            for asked in tasks:
                pool.submit(asked)
            for found in pool.replies():
                if found is not None and self._took(pool, *found):
                    del left[found[0].unit.name]
                    shown.advance(1)
                shown.advance(0, left=makespan(left.values(), max(1, pool.slots)), failed=len(self.failures))
                if self.failures and not self.compiler.keep_going:
                    break
        if self.failures:
            raise self.failures[0]
        return self.objects

    def _took(self, pool: Pool, asked: UnitTask, reply: UnitReply) -> bool:
        """Take a reply; return if its unit is done with."""
        match reply:
            case UnitCompiled():
                if self._kept(asked.unit, reply):
                    return True
                self.attempts[reply.unit] = self.attempts.get(reply.unit, 1) + 1
                if self.attempts[reply.unit] > _ATTEMPTS:
                    raise ClusterError(
                        f"the object of {reply.unit} did not arrive",
                        because=f"{_ATTEMPTS} times it was not what {reply.machine} or others say of it",
                        next_step="check the store that the machines share: sparkwright store status",
                    )
                emit("cluster.object-refused", unit=reply.unit, machine=reply.machine)
                pool.submit(asked)
                return False
            case UnitFailed():
                self._failed(reply)
        return True

    def _kept(self, unit: Unit, reply: UnitCompiled) -> bool:
        """Take the object that *reply* names into the store; return if it is there, and of these files."""
        store = self.compiler.store
        if store.find_file(reply.sha256, size=reply.size) is None:
            return False
        if reply.record is not None:
            record = msgspec.convert(reply.record, UnitRecord)
            chain = self.inputs.toolchain.key
            if not adopt_record(store, unit, self.known.files, chain, record=record, sha256=reply.sha256):
                return False
        self.objects[unit.output] = reply.sha256
        self.learn(unit.name, reply.cost)
        emit(
            "compile.finished",
            unit=unit.name,
            machine=reply.machine,
            seconds=round(reply.seconds, 3),
            cpu_seconds=round(reply.cost.seconds, 3),
            mib=reply.cost.mib,
        )
        return True

    def _failed(self, reply: UnitFailed) -> None:
        log = self.compiler.logs / f"{reply.unit.replace('/', '.')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(reply.log)
        kind = getattr(errors, reply.error, CompileError)  # the name comes from another machine
        if not (isinstance(kind, type) and issubclass(kind, SparkwrightError)):
            kind = CompileError
        because = f"on {reply.machine}: {reply.because}\nlog: {log}"
        self.failures.append(kind(reply.what, because=because, next_step=reply.next_step))
        emit("compile.failed", unit=reply.unit, log=str(log), because=reply.because)
