"""Run tasks on the machine of a worker. `run_task` is the function that Dask runs there."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from sparkwright.base.errors import ProcessError, SparkwrightError, StorageError
from sparkwright.cluster.messages import (
    BuildInputs,
    ClusterTask,
    PackedTree,
    TaskFailed,
    TaskInputs,
    TaskReply,
    WorkerUnfit,
    own_code,
)
from sparkwright.git import unpack_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from sparkwright.upstream import Access


class UnfitError(Exception):
    """This machine cannot be used for those tasks.

    Attributes:
        next_step: what helps.
    """

    def __init__(self, because: str, next_step: str) -> None:
        super().__init__(because)
        self.next_step = next_step


class LaidOut(Protocol):
    """Trees, tools and processes that tasks of the same inputs share on a worker."""

    def run(self, asked: Any, log: Path) -> TaskReply:
        """Run a task; what its tool writes goes to *log*."""


@dataclass
class Serving:
    """The state of a worker: its store, and what is laid out of the inputs that it works with.

    Attributes:
        access: the worker's store and network settings.
        folder: for logs.
        cuda: an installed CUDA toolkit of this machine, for builds that take one.
        machine: name of this machine in replies.
        laid: what is laid out, and what removes it, by the digest of the inputs: the newest ones, and older
            ones that tasks of another command still use.
    """

    access: Access
    folder: Path
    cuda: Path | None = None
    machine: str = field(default_factory=platform.node)
    laid: dict[str, tuple[LaidOut, contextlib.ExitStack]] = field(default_factory=dict)
    _users: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        """Remove what is laid out."""
        with self._lock:
            self._remove(self.laid)

    def serve(self, asked: ClusterTask) -> TaskReply | WorkerUnfit:
        """Run a task; a failure is a reply, too."""
        log = self.folder / "logs" / f"{asked.name.replace('/', '.')}.log"
        try:
            with self._laid_out(asked) as laid:
                return laid.run(asked, log)
        except UnfitError as unfit:
            return WorkerUnfit(machine=self.machine, because=str(unfit), next_step=unfit.next_step)
        except OSError as error:
            failed: SparkwrightError = StorageError(
                f"{asked.name} failed", because=str(error), next_step="free space there, and run again"
            )
        except SparkwrightError as error:
            failed = error
        return TaskFailed(
            name=asked.name,
            machine=self.machine,
            error=type(failed).__name__,
            what=failed.what,
            because=failed.because,
            next_step=failed.next_step,
            log=log.read_text(errors="replace") if log.is_file() else "",
        )

    @contextlib.contextmanager
    def _laid_out(self, asked: ClusterTask) -> Iterator[LaidOut]:
        """Yield what is laid out of the inputs of a task, which stays for the block."""
        with self._lock:
            if asked.inputs not in self.laid:
                self._remove([digest for digest in self.laid if not self._users[digest]])
                with contextlib.ExitStack() as stack:
                    laid = self._lay_out(asked, stack)
                    self.laid[asked.inputs] = laid, stack.pop_all()
            self._users[asked.inputs] += 1
            laid, _ = self.laid[asked.inputs]
        try:
            yield laid
        finally:
            with self._lock:
                self._users[asked.inputs] -= 1

    def _remove(self, digests: Iterable[str]) -> None:
        for digest in tuple(digests):
            _, stack = self.laid.pop(digest)
            stack.close()

    def _lay_out(self, asked: ClusterTask, stack: contextlib.ExitStack) -> LaidOut:
        """Lay the inputs of a task out, until *stack* is closed."""
        from sparkwright.cluster.compiling import lay_out_build
        from sparkwright.cluster.proving import lay_out_proofs

        data = self._file(asked.inputs, asked.inputs_size).read_bytes()
        inputs = msgspec.json.decode(data, type=TaskInputs)
        if inputs.code != own_code():
            raise UnfitError(
                "its sparkwright is another one than that which asks",
                "install the same commit there as here",
            )
        for tree in inputs.trees:
            self._unpack(tree)
        if isinstance(inputs, BuildInputs):
            return lay_out_build(self, inputs, stack)
        return lay_out_proofs(self, inputs, stack)

    def _unpack(self, packed: PackedTree) -> None:
        if self.access.repository.has(packed.tree):
            return
        try:
            unpack_tree(self.access.repository, self._file(packed.sha256, packed.size), packed.tree)
        except ProcessError as error:
            raise UnfitError(f"the pack of the tree is damaged: {error.because}", "run again") from error

    def _file(self, sha256: str, size: int) -> Path:
        path = self.access.store.find_file(sha256, size=size)
        if path is None:
            raise UnfitError(
                "its store has no access to the files of the build",
                "give both machines one shared store: docs/many-machines.md",
            )
        return path


_here: list[Serving] = []


def serve_with(serving: Serving) -> None:
    """Let `run_task` work with *serving* in this process."""
    _here[:] = [serving]


def run_task(data: bytes) -> bytes:
    """Run a `ClusterTask` in JSON, and return the reply in JSON."""
    if not _here:
        unfit = WorkerUnfit(
            machine=platform.node(),
            because="the worker was not started by 'sparkwright worker'",
            next_step=f"stop the worker of process {os.getpid()}, and start it with 'sparkwright worker'",
        )
        return msgspec.json.encode(unfit)
    return msgspec.json.encode(_here[0].serve(msgspec.json.decode(data, type=ClusterTask)))
