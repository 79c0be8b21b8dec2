"""Run tasks on the machine of a worker. `run_task` is the function that Dask runs there."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from sparkwright.base.config import convert, decode_json, to_builtins
from sparkwright.base.errors import ProcessError, SparkwrightError, StorageError
from sparkwright.cluster.kinds import KINDS, LaidOut, Place, TaskKind, UnfitError
from sparkwright.cluster.messages import (
    ClusterTask,
    PackedTree,
    StoredFile,
    TaskDone,
    TaskFailed,
    TaskInputs,
    TaskReply,
    WorkerUnfit,
    own_code,
)
from sparkwright.cluster.sharing import keep_files
from sparkwright.git import unpack_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from sparkwright.upstream import Access


@dataclass
class Serving:
    """The state of a worker: its store, and what is laid out of the inputs that it works with.

    Attributes:
        access: the worker's store and network settings.
        folder: for logs.
        cuda: an installed CUDA toolkit of this machine, for builds that take one.
        machine: name of this machine in replies.
        kinds: the kinds of tasks that it runs.
        laid: what is laid out, and what removes it, by the digest of the inputs: the newest ones, and older
            ones that tasks of another command still use.
    """

    access: Access
    folder: Path
    cuda: Path | None = None
    machine: str = field(default_factory=platform.node)
    kinds: Mapping[str, Callable[[], TaskKind]] = field(default_factory=lambda: KINDS)
    laid: dict[str, tuple[TaskKind, LaidOut, contextlib.ExitStack]] = field(default_factory=dict)
    _users: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        """Remove what is laid out."""
        with self._lock:
            self._remove(self.laid)

    def serve(self, asked: ClusterTask) -> TaskReply:
        """Run a task; a failure is a reply, too."""
        log = self.folder / "logs" / f"{asked.name.replace('/', '.')}.log"
        try:
            with self._laid_out(asked) as (kind, laid):
                return self._done(asked, kind, laid, log)
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

    def _done(self, asked: ClusterTask, kind: TaskKind, laid: LaidOut, log: Path) -> TaskDone:
        """Run a task, and put its files into the store that machines share."""
        started, store = time.monotonic(), self.access.store
        with store.scratch() as scratch:
            out = scratch / "out"
            out.mkdir()
            made = laid.run(convert(asked.asked, kind.asked), Place(log, out))
            files = keep_files(store, out)
        for one in files:
            store.share(one.sha256)
        return TaskDone(
            name=asked.name,
            machine=self.machine,
            seconds=time.monotonic() - started,
            made=to_builtins(made),
            files=files,
        )

    @contextlib.contextmanager
    def _laid_out(self, asked: ClusterTask) -> Iterator[tuple[TaskKind, LaidOut]]:
        """Yield what is laid out of the inputs of a task, which stays for the block."""
        with self._lock:
            if asked.inputs not in self.laid:
                self._remove([digest for digest in self.laid if not self._users[digest]])
                with contextlib.ExitStack() as stack:
                    laid = self._lay_out(asked, stack)
                    self.laid[asked.inputs] = *laid, stack.pop_all()
            self._users[asked.inputs] += 1
            kind, ready, _ = self.laid[asked.inputs]
        try:
            yield kind, ready
        finally:
            with self._lock:
                self._users[asked.inputs] -= 1

    def _remove(self, digests: Iterable[str]) -> None:
        for digest in tuple(digests):
            *_, stack = self.laid.pop(digest)
            stack.close()

    def _lay_out(self, asked: ClusterTask, stack: contextlib.ExitStack) -> tuple[TaskKind, LaidOut]:
        """Lay the inputs of a task out, until *stack* is closed."""
        data = self.file(StoredFile(path="", sha256=asked.inputs, size=asked.inputs_size)).read_bytes()
        inputs = decode_json(data, TaskInputs)
        if inputs.code != own_code():
            raise UnfitError(
                "its sparkwright is another one than that which asks",
                "install the same commit there as here",
            )
        for tree in inputs.trees:
            self._unpack(tree)
        try:
            kind = self.kinds[inputs.kind]()  # the same code has the same kinds
        except ImportError as error:
            raise UnfitError(
                f"the package {error.name} is not installed there",
                "pip install 'sparkwright[cluster,remote,verify]' there",
            ) from error
        return kind, kind.lay_out(self, convert(inputs.shared, kind.shared), inputs, stack)

    def _unpack(self, packed: PackedTree) -> None:
        if self.access.repository.has(packed.tree):
            return
        try:
            pack = self.file(StoredFile(path="", sha256=packed.sha256, size=packed.size))
            unpack_tree(self.access.repository, pack, packed.tree)
        except ProcessError as error:
            raise UnfitError(f"the pack of the tree is damaged: {error.because}", "run again") from error

    def file(self, stored: StoredFile) -> Path:
        """Return the path of a file of the store.

        Raises:
            UnfitError: the store does not have it.
        """
        path = self.access.store.find_file(stored.sha256, size=stored.size)
        if path is None:
            raise UnfitError(
                "its store has no access to the files of the task",
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
    return msgspec.json.encode(_here[0].serve(decode_json(data, ClusterTask)))
