"""Compile units on the machine of a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import sha256_file
from sparkwright.cluster.messages import UnitCompiled
from sparkwright.cluster.serving import UnfitError
from sparkwright.native.compile import CompileJob, run_jobs
from sparkwright.native.isolation import isolated
from sparkwright.native.model import Target
from sparkwright.native.schedule import JobLimits
from sparkwright.native.toolchain import configure_environment, prepare_toolchain
from sparkwright.native.toolchain_paths import Reader
from sparkwright.native.units import UnitFiles, record_object, unit_key, unit_record
from sparkwright.native.workspace import open_workspace

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Mapping
    from pathlib import Path

    from sparkwright.cluster.messages import BuildInputs, UnitTask
    from sparkwright.cluster.serving import Serving
    from sparkwright.native.compile import Finished
    from sparkwright.native.model import Unit
    from sparkwright.native.workspace import Workspace

_LINK = "120000"


@dataclass(frozen=True)
class LaidBuild:
    """A tree and a toolchain, laid out for the units of one build."""

    serving: Serving
    work: Workspace
    files: UnitFiles
    env: Mapping[str, str]
    prefix: tuple[str, ...]

    def run(self, asked: UnitTask, log: Path) -> UnitCompiled:
        """Compile a unit and put its object into the store."""
        unit, work = asked.unit, self.work
        output = work.root / unit.output
        output.parent.mkdir(parents=True, exist_ok=True)
        depfile = work.root / f"{unit.output}.d"
        flags = ("-MD", "-MF", str(depfile), "-MT", "object")
        argv = (*self.prefix, *work.expand(unit.argv), *flags)
        job = CompileJob(unit.name, argv, work.build, self.env, output, log, asked.expected)
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
        if store.remote is not None:
            store.remote.finish(store)
        return UnitCompiled(
            name=unit.name,
            machine=self.serving.machine,
            sha256=sha256,
            size=size,
            cost=finished.cost,
            seconds=finished.seconds,
            record=None if record is None else to_builtins(record),
        )


def lay_out_build(serving: Serving, inputs: BuildInputs, stack: contextlib.ExitStack) -> LaidBuild:
    """Lay the tree and the toolchain of a build out, until *stack* is closed.

    Raises:
        UnfitError: the toolchain here is another one, or an installed toolkit that is asked for is not named.
    """
    access, (packed,) = serving.access, inputs.trees
    target = Target(inputs.machine, inputs.arch)
    if inputs.cuda and serving.cuda is None:
        raise UnfitError("the build takes an installed CUDA toolkit", "set SPARKWRIGHT_CUDA there")
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
