"""Compile the units of a build on a cluster: `ClusterCompiler` takes the place of compilers here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.base.config import convert
from sparkwright.base.events import emit
from sparkwright.cluster.capabilities import CUDA
from sparkwright.cluster.compiling import BuildInputs, UnitCompiled, UnitTask
from sparkwright.cluster.kinds import UNIT
from sparkwright.cluster.running import Batch, Cluster, TaskRequest
from sparkwright.cluster.sharing import packed_tree
from sparkwright.native.units import UnitRecord, adopt_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from sparkwright.cluster.messages import TaskDone
    from sparkwright.git import Repository
    from sparkwright.lock import Lock
    from sparkwright.native.build import Configured
    from sparkwright.native.model import Cost, Inputs, Unit


@dataclass(frozen=True, kw_only=True)
class ClusterCompiler(Cluster):
    """Compiles on other machines.

    Attributes:
        repository: holds the trees.
        lock: the pin.
        logs: folder for the logs of units that failed.
        cuda: an installed toolkit is taken instead of the lock's packages.
        isolate: tools run without a network.
        keep_going: compile the other units when one fails.
    """

    repository: Repository
    lock: Lock
    logs: Path
    cuda: bool = False
    isolate: bool = False
    keep_going: bool = False

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
        by_name = {unit.name: unit for unit in units}
        objects: dict[str, str] = {}

        def take(request: TaskRequest, made: UnitCompiled, reply: TaskDone) -> bool:
            """Take an object into the store; return if it is there, and of the files here."""
            unit = by_name[request.name]
            # Of a repeated unit the object is the same, and it may have been missing the first time.
            if store.find_file(made.sha256, size=made.size, fresh=True) is None:
                return False
            if made.record is not None:
                record = convert(made.record, UnitRecord)
                chain = inputs.toolchain.key
                if not adopt_record(store, unit, known.files, chain, record=record, sha256=made.sha256):
                    return False
            objects[unit.output] = made.sha256
            learn(unit.name, made.cost)
            emit(
                "compile.finished",
                unit=unit.name,
                machine=reply.machine,
                seconds=round(made.seconds, 3),
                cpu_seconds=round(made.cost.seconds, 3),
                mib=made.cost.mib,
            )
            return True

        shared = BuildInputs(
            lock=self.lock,
            machine=inputs.target.machine,
            arch=inputs.target.arch,
            toolchain=inputs.toolchain.key,
            cuda=self.cuda,
            isolate=self.isolate,
        )
        needs = (CUDA,) if self.cuda else ()
        requests = [
            TaskRequest(name, UnitTask(unit=unit, expected=expected[name]), expected[name], needs)
            for name, unit in by_name.items()
        ]
        self.run(
            Batch(
                UNIT, requests, UnitCompiled, take, trees=[packed_tree(store, self.repository, known.tree)],
                shared=shared, title="compile", unit="units", logs=self.logs, keep_going=self.keep_going,
            )
        )  # fmt: skip
        return objects
