"""Compile one unit on the machine of a worker. `compile_unit` is the function that Dask runs there."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import ProcessError, SparkwrightError
from sparkwright.cluster.messages import (
    BuildInputs,
    UnitCompiled,
    UnitFailed,
    UnitReply,
    UnitTask,
    WorkerUnfit,
    own_code,
)
from sparkwright.git import unpack_tree
from sparkwright.native.compile import CompileJob, run_jobs
from sparkwright.native.isolation import isolated
from sparkwright.native.model import Target
from sparkwright.native.schedule import JobLimits
from sparkwright.native.toolchain import configure_environment, prepare_toolchain
from sparkwright.native.toolchain_paths import Reader
from sparkwright.native.units import UnitFiles, record_object, unit_key, unit_record
from sparkwright.native.workspace import open_workspace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sparkwright.native.compile import Finished
    from sparkwright.native.model import Unit
    from sparkwright.native.workspace import Workspace
    from sparkwright.upstream import Access

_LINK = "120000"


@dataclass(frozen=True)
class _Laid:
    """A tree and a toolchain, laid out for the units of one build."""

    work: Workspace
    files: UnitFiles
    env: Mapping[str, str]
    prefix: tuple[str, ...]


class UnfitError(Exception):
    """This machine cannot compile for that build.

    Attributes:
        next_step: what helps.
    """

    def __init__(self, because: str, next_step: str) -> None:
        super().__init__(because)
        self.next_step = next_step


@dataclass
class Compiling:
    """The state of a worker: its store, and what is laid out of the build that it compiles for.

    Attributes:
        access: the worker's store and network settings.
        logs: folder for compilers' logs.
        cuda: an installed CUDA toolkit of this machine, for builds that take one.
        laid: by the digest of a build's inputs; the newest build alone.
    """

    access: Access
    logs: Path
    cuda: Path | None = None
    laid: dict[str, _Laid] = field(default_factory=dict)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        """Remove what is laid out."""
        with self._lock:
            self.laid.clear()
            self._stack.close()

    def compile(self, asked: UnitTask) -> UnitReply | WorkerUnfit:
        """Compile a unit and put its object into the store; a failure is a reply, too."""
        name, machine = asked.unit.name, platform.node()
        log = self.logs / f"{name.replace('/', '.')}.log"
        try:
            with self._lock:
                laid = self.laid.get(asked.inputs) or self._lay_out(asked)
            return self._compiled(asked, laid, log)
        except UnfitError as unfit:
            return WorkerUnfit(machine=machine, because=str(unfit), next_step=unfit.next_step)
        except SparkwrightError as error:
            return UnitFailed(
                unit=name,
                machine=machine,
                error=type(error).__name__,
                what=error.what,
                because=error.because,
                next_step=error.next_step,
                log=log.read_text(errors="replace") if log.is_file() else "",
            )

    def _lay_out(self, asked: UnitTask) -> _Laid:
        """Lay the tree and the toolchain of a build out, instead of those of the build before it."""
        self.laid.clear()
        self._stack.close()
        store, repository = self.access.store, self.access.repository
        data = self._file(asked.inputs, asked.inputs_size).read_bytes()
        inputs = msgspec.json.decode(data, type=BuildInputs)
        if inputs.code != own_code():
            raise UnfitError(
                "its sparkwright is another one than that which asks",
                "install the same commit there as here",
            )
        if not repository.has(inputs.tree):
            pack = self._file(inputs.pack, inputs.pack_size)
            try:
                unpack_tree(repository, pack, inputs.tree)
            except ProcessError as error:
                raise UnfitError(f"the pack of the tree is damaged: {error.because}", "run again") from error
        target = Target(inputs.machine, inputs.arch)
        if inputs.cuda and self.cuda is None:
            raise UnfitError("the build takes an installed CUDA toolkit", "set SPARKWRIGHT_CUDA there")
        chain = prepare_toolchain(inputs.lock, target, self.access, system=self.cuda if inputs.cuda else None)
        if chain.key != inputs.toolchain:
            parts = ", ".join(f"{name} {version}" for name, version in sorted(chain.parts.items()))
            raise UnfitError(
                f"its toolchain is another one: {parts}",
                "install the compiler and the Python of the machine that asks there",
            )
        work = self._stack.enter_context(open_workspace(store, repository, inputs.tree, chain))
        entries = repository.files(inputs.tree)
        files = UnitFiles({path: entry.blob for path, entry in entries.items() if entry.mode != _LINK})
        env = configure_environment(chain, target, work.root, inputs.lock)
        laid = _Laid(work, files, env, isolated(()) if inputs.isolate else ())
        self.laid[asked.inputs] = laid
        return laid

    def _file(self, sha256: str, size: int) -> Path:
        path = self.access.store.find_file(sha256, size=size)
        if path is None:
            raise UnfitError(
                "its store has no access to the files of the build",
                "give both machines one shared store: docs/many-machines.md",
            )
        return path

    def _compiled(self, asked: UnitTask, laid: _Laid, log: Path) -> UnitCompiled:
        unit, work = asked.unit, laid.work
        output = work.root / unit.output
        output.parent.mkdir(parents=True, exist_ok=True)
        depfile = work.root / f"{unit.output}.d"
        flags = ("-MD", "-MF", str(depfile), "-MT", "object")
        argv = (*laid.prefix, *work.expand(unit.argv), *flags)
        job = CompileJob(unit.name, argv, work.build, laid.env, output, log, asked.expected)
        done: list[Finished] = []
        # How many run at once is the scheduler's business: it knows what each one takes.
        run_jobs([job], on_done=done.append, limits=JobLimits(jobs=1, reserve_mib=0))
        return self._kept(unit, laid, output, depfile, done[0])

    def _kept(self, unit: Unit, laid: _Laid, output: Path, depfile: Path, finished: Finished) -> UnitCompiled:
        store, chain = self.access.store, laid.work.toolchain
        size = output.stat().st_size
        reader = Reader(laid.work.root, chain)
        sha256 = record_object(
            store, unit, laid.files, chain.key,
            reader=reader, depfile=depfile, object_path=output, cost=finished.cost,
        )  # fmt: skip
        record = None if sha256 is None else unit_record(store, unit_key(unit, laid.files, chain.key))
        if sha256 is None:
            from sparkwright.base.digests import sha256_file

            sha256 = sha256_file(output)
            store.adopt_file(output, sha256, verified=True)
            store.share(sha256)
        if store.remote is not None:
            store.remote.finish(store)
        return UnitCompiled(
            unit=unit.name,
            machine=platform.node(),
            sha256=sha256,
            size=size,
            cost=finished.cost,
            seconds=finished.seconds,
            record=None if record is None else to_builtins(record),
        )


_here: list[Compiling] = []


def serve_with(compiling: Compiling) -> None:
    """Let `compile_unit` work with *compiling* in this process."""
    _here[:] = [compiling]


def compile_unit(data: bytes) -> bytes:
    """Compile the unit of a `UnitTask` in JSON, and return the reply in JSON."""
    if not _here:
        unfit = WorkerUnfit(
            machine=platform.node(),
            because="the worker was not started by 'sparkwright worker'",
            next_step=f"stop the worker of process {os.getpid()}, and start it with 'sparkwright worker'",
        )
        return msgspec.json.encode(unfit)
    return msgspec.json.encode(_here[0].compile(msgspec.json.decode(data, type=UnitTask)))
