"""Compile units on the machine of a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import sha256_file
from sparkwright.cluster.kinds import UnfitError
from sparkwright.lock import Lock
from sparkwright.native.compile import CompileJob, run_jobs
from sparkwright.native.isolation import isolated
from sparkwright.native.model import Cost, Target, Unit
from sparkwright.native.schedule import JobLimits
from sparkwright.native.toolchain import configure_environment, prepare_toolchain
from sparkwright.native.toolchain_paths import Reader
from sparkwright.native.units import UnitFiles, record_object, unit_key, unit_record
from sparkwright.native.workspace import open_workspace

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Mapping
    from pathlib import Path

    from sparkwright.cluster.kinds import Place
    from sparkwright.cluster.messages import TaskInputs
    from sparkwright.cluster.serving import Serving
    from sparkwright.native.compile import Finished
    from sparkwright.native.workspace import Workspace

_LINK = "120000"


class BuildInputs(Model, frozen=True):
    """The inputs that all units of a build share, beside the tree that is compiled.

    Attributes:
        lock: the pin.
        machine, arch: the target.
        toolchain: key of the toolchain.
        cuda: an installed toolkit is taken instead of the lock's packages.
        isolate: tools run without a network.
    """

    lock: Lock
    machine: str
    arch: str
    toolchain: str
    cuda: bool = False
    isolate: bool = False


class UnitTask(Model, frozen=True):
    """A unit to compile, and its expected cost."""

    unit: Unit
    expected: Cost


class UnitCompiled(Model, frozen=True):
    """A unit that compiled.

    Attributes:
        sha256, size: its object, in the store.
        cost: CPU time and memory.
        seconds: wall-clock time.
        record: the record of the unit cache; `None` where the unit cannot be cached.
    """

    sha256: str
    size: int
    cost: Cost
    seconds: float
    record: dict[str, Any] | None = None


@dataclass(frozen=True)
class LaidBuild:
    """A tree and a toolchain, laid out for the units of one build."""

    serving: Serving
    work: Workspace
    files: UnitFiles
    env: Mapping[str, str]
    prefix: tuple[str, ...]

    def run(self, asked: UnitTask, place: Place) -> UnitCompiled:
        """Compile a unit and put its object into the store."""
        unit, work = asked.unit, self.work
        output = work.root / unit.output
        output.parent.mkdir(parents=True, exist_ok=True)
        depfile = work.root / f"{unit.output}.d"
        flags = ("-MD", "-MF", str(depfile), "-MT", "object")
        argv = (*self.prefix, *work.expand(unit.argv), *flags)
        job = CompileJob(unit.name, argv, work.build, self.env, output, place.log, asked.expected)
        done: list[Finished] = []
        # How many run at once is the scheduler's business: it knows what each one takes.
        run_jobs([job], on_done=done.append, limits=JobLimits(jobs=1, reserve_mib=0))
        return self._kept(unit, output, depfile, done[0])

    def _kept(self, unit: Unit, output: Path, depfile: Path, finished: Finished) -> UnitCompiled:
        store, chain = self.serving.access.store, self.work.toolchain
        size = output.stat().st_size
        reader = Reader(self.work.root, chain)
        sha256 = record_object(
            store, unit, self.files, chain.key,
            reader=reader, depfile=depfile, object_path=output, cost=finished.cost,
        )  # fmt: skip
        record = None if sha256 is None else unit_record(store, unit_key(unit, self.files, chain.key))
        if sha256 is None:
            sha256 = sha256_file(output)
            store.adopt_file(output, sha256, verified=True)
            store.share(sha256)
        return UnitCompiled(
            sha256=sha256,
            size=size,
            cost=finished.cost,
            seconds=finished.seconds,
            record=None if record is None else to_builtins(record),
        )


def lay_out_build(
    serving: Serving, inputs: BuildInputs, given: TaskInputs, stack: contextlib.ExitStack
) -> LaidBuild:
    """Lay the tree and the toolchain of a build out, until *stack* is closed.

    Raises:
        UnfitError: the toolchain here is another one.
    """
    access, (packed,) = serving.access, given.trees
    target = Target(inputs.machine, inputs.arch)
    chain = prepare_toolchain(inputs.lock, target, access, system=serving.cuda if inputs.cuda else None)
    if chain.key != inputs.toolchain:
        parts = ", ".join(f"{name} {version}" for name, version in sorted(chain.parts.items()))
        raise UnfitError(
            f"its toolchain is another one: {parts}",
            "install the compiler and the Python of the machine that asks there",
        )
    work = stack.enter_context(open_workspace(access.store, access.repository, packed.tree, chain))
    entries = access.repository.files(packed.tree)
    files = UnitFiles({path: entry.blob for path, entry in entries.items() if entry.mode != _LINK})
    env = configure_environment(chain, target, work.root, inputs.lock)
    return LaidBuild(serving, work, files, env, isolated(()) if inputs.isolate else ())
