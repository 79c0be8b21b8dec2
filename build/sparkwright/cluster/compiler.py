"""Compile the units of a build on a cluster: `ClusterCompiler` takes the place of compilers here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from sparkwright.base.events import emit
from sparkwright.cluster.messages import BuildInputs, UnitCompiled, UnitTask, own_code
from sparkwright.cluster.running import run_tasks
from sparkwright.cluster.sharing import packed_tree, share_inputs
from sparkwright.native.units import UnitRecord, adopt_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from sparkwright.cluster.address import ClusterAddress
    from sparkwright.git import Repository
    from sparkwright.lock import Lock
    from sparkwright.native.build import Configured
    from sparkwright.native.model import Cost, Inputs, Unit
    from sparkwright.store import Store


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
        silent_s: how long a machine may be silent; see `open_pool`.
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
    silent_s: float = 60.0

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
        store = self.store
        shared = BuildInputs(
            code=own_code(),
            trees=(packed_tree(store, self.repository, known.tree),),
            lock=self.lock,
            machine=inputs.target.machine,
            arch=inputs.target.arch,
            toolchain=inputs.toolchain.key,
            cuda=self.cuda,
            isolate=self.isolate,
        )
        digest, size = share_inputs(store, shared)
        tasks = [
            UnitTask(inputs=digest, inputs_size=size, unit=unit, expected=expected[unit.name])
            for unit in units
        ]
        objects: dict[str, str] = {}

        def take(asked: UnitTask, reply: UnitCompiled) -> bool:
            """Take the object of *reply* into the store; return if it is there, and of the files here."""
            unit = asked.unit
            # Of a repeated unit the object is the same, and it may have been missing the first time.
            if store.find_file(reply.sha256, size=reply.size, fresh=True) is None:
                return False
            if reply.record is not None:
                record = msgspec.convert(reply.record, UnitRecord)
                chain = inputs.toolchain.key
                if not adopt_record(store, unit, known.files, chain, record=record, sha256=reply.sha256):
                    return False
            objects[unit.output] = reply.sha256
            learn(unit.name, reply.cost)
            emit(
                "compile.finished",
                unit=unit.name,
                machine=reply.machine,
                seconds=round(reply.seconds, 3),
                cpu_seconds=round(reply.cost.seconds, 3),
                mib=reply.cost.mib,
            )
            return True

        run_tasks(
            self.address, store, tasks, take,
            made=UnitCompiled, title="compile", unit="units", logs=self.logs,
            keep_going=self.keep_going, patience_s=self.patience_s, silent_s=self.silent_s,
        )  # fmt: skip
        return objects
