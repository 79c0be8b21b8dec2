"""Run tasks on a cluster: share their inputs, take their results, and send those again that are refused.

`Cluster` is what callers use. It has one way for every kind of task: a caller names the kind, the trees and
the models that its tasks share and ask for, and gives a function that takes a result or refuses it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from sparkwright.base import errors
from sparkwright.base.config import Model, convert, to_builtins
from sparkwright.base.errors import ClusterError, CompileError, SparkwrightError
from sparkwright.base.events import emit, task, warn
from sparkwright.cluster.kinds import Nothing
from sparkwright.cluster.messages import ClusterTask, TaskDone, TaskFailed, TaskInputs, own_code
from sparkwright.cluster.opening import open_pool
from sparkwright.cluster.pool import task_order
from sparkwright.cluster.sharing import share_inputs
from sparkwright.native.schedule import makespan

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from sparkwright.cluster.address import ClusterAddress
    from sparkwright.cluster.messages import PackedTree, StoredFile
    from sparkwright.cluster.pool import Pool
    from sparkwright.native.model import Cost
    from sparkwright.store import Store

_ATTEMPTS = 3
MadeT = TypeVar("MadeT", bound=Model)


@dataclass(frozen=True)
class TaskRequest:
    """A task to run.

    Attributes:
        name: its name; no other one of the same batch has it.
        asked: what is asked for.
        expected: its expected cost.
        needs: capabilities that the worker has to have.
    """

    name: str
    asked: Model
    expected: Cost
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Batch(Generic[MadeT]):
    """Tasks of one kind that share their inputs.

    Attributes:
        kind: name of the kind; see `sparkwright.cluster.kinds`.
        requests: at least one.
        made: the class of results.
        take: takes a task's result; false if it is not what was asked for, and has to be made again.
        trees: trees of git that the tasks need.
        files: files of the store that they need.
        shared: what else they share.
        title: name of the work in progress; empty to show none.
        unit: name of its parts.
        logs: folder for the logs of tasks that failed.
        keep_going: run the other tasks when one fails.
        stop: when set, from another thread, the tasks are given up.
    """

    kind: str
    requests: Sequence[TaskRequest]
    made: type[MadeT]
    take: Callable[[TaskRequest, MadeT, TaskDone], bool]
    trees: Sequence[PackedTree] = ()
    files: Sequence[StoredFile] = ()
    shared: Model = field(default_factory=Nothing)
    title: str = ""
    unit: str = "tasks"
    logs: Path | None = None
    keep_going: bool = False
    stop: threading.Event | None = None

    def taken(self, request: TaskRequest, reply: TaskDone) -> bool:
        """Return if *reply*, which comes from another machine and may be anything, is the result."""
        try:
            return self.take(request, convert(reply.made, self.made), reply)
        except msgspec.ValidationError:
            return False


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Other machines, and the store that is shared with them.

    Attributes:
        address: the machines.
        store: the store here.
        patience_s: how long to wait for a machine when none is left.
        silent_s: how long a machine may be silent; see `open_pool`.
    """

    address: ClusterAddress
    store: Store
    patience_s: float = 60.0
    silent_s: float = 60.0

    @contextlib.contextmanager
    def open(self) -> Iterator[Pool]:
        """Yield the machines' workers, for the length of the block; see `open_pool`."""
        store = self.store
        url = "" if store.remote is None else store.remote.settings.url
        limits = {"patience_s": self.patience_s, "silent_s": self.silent_s}
        with store.scratch() as folder, open_pool(self.address, folder, store_url=url, **limits) as pool:
            emit("cluster.opened", name=pool.name, slots=pool.slots, machines=len(pool.workers))
            if different := pool.different():
                warn(f"{different} workers of {pool.name} get no tasks: sparkwright is another state there")
            yield pool

    def run(self, batch: Batch[MadeT], pool: Pool | None = None) -> None:
        """Run the tasks of *batch*.

        Args:
            batch: the tasks.
            pool: workers that are open already; else they are, for this batch.

        Raises:
            SparkwrightError: the error of the first task that failed.
            ClusterError: no machine can be had, none has what a task needs, several were lost over one task,
                or a result did not arrive.
            KeyboardInterrupt: the tasks were given up.
        """
        with contextlib.ExitStack() as stack:
            if pool is None:
                tasks = self._share(batch)
                pool = stack.enter_context(self.open())
            else:
                tasks, pool = self._share(batch), pool.alone()
            _run(pool, batch, tasks)

    def _share(self, batch: Batch[MadeT]) -> list[ClusterTask]:
        inputs = TaskInputs(
            kind=batch.kind, code=own_code(), trees=tuple(batch.trees), shared=to_builtins(batch.shared)
        )
        digest, size = share_inputs(self.store, inputs, batch.files)
        return [
            ClusterTask(
                name=one.name,
                inputs=digest,
                inputs_size=size,
                expected=one.expected,
                needs=one.needs,
                asked=to_builtins(one.asked),
            )
            for one in batch.requests
        ]


def _run(pool: Pool, batch: Batch[Any], tasks: Sequence[ClusterTask]) -> None:
    left = {asked.name: asked.expected.seconds for asked in tasks}
    requests = {one.name: one for one in batch.requests}
    refused: Counter[str] = Counter()
    failures: list[SparkwrightError] = []
    for needs in {asked.needs for asked in tasks}:
        pool.require(needs)  # before anything starts
    with task(batch.title, total=len(tasks), unit=batch.unit) if batch.title else _unshown() as shown:
        for asked in task_order(tasks):
            pool.submit(asked)
        for found in pool.replies():
            if batch.stop is not None and batch.stop.is_set():
                pool.cancel()
                raise KeyboardInterrupt
            if found is not None:
                asked, reply = found
                if isinstance(reply, TaskFailed):
                    failures.append(_failure(reply, batch.logs))
                elif not batch.taken(requests[asked.name], reply):
                    _count(refused, asked, reply)
                    pool.submit_again(asked, reply.machine)
                    continue
                del left[asked.name]
                shown.advance(1)
            expected = makespan(left.values(), max(1, pool.slots))
            shown.advance(0, left=expected, failed=len(failures), running=pool.running())
            if failures and not batch.keep_going:
                break
    if failures:
        raise failures[0]


class _Unshown:
    """Progress that is not shown, of a task that is a part of other work."""

    def advance(self, amount: float = 1, **facts: object) -> None:
        """Do nothing."""


@contextlib.contextmanager
def _unshown() -> Iterator[_Unshown]:
    yield _Unshown()


def _count(refused: Counter[str], asked: ClusterTask, reply: TaskDone) -> None:
    """Count a result that is not taken; it is made again unless that happened too often.

    Raises:
        ClusterError: it did.
    """
    refused[asked.name] += 1
    if refused[asked.name] >= _ATTEMPTS:
        raise ClusterError(
            f"the result of {asked.name} did not arrive",
            because=f"{_ATTEMPTS} times it was not what {reply.machine} or others say of it",
            next_step="check the store that the machines share: sparkwright store status",
        )
    emit("cluster.result-refused", task=asked.name, machine=reply.machine)


def _failure(reply: TaskFailed, logs: Path | None) -> SparkwrightError:
    because = f"on {reply.machine}: {reply.because}"
    if logs is not None:
        log = logs / f"{reply.name.replace('/', '.')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(reply.log)
        because = f"{because}\nlog: {log}"
    kind = getattr(errors, reply.error, CompileError)  # the name comes from another machine
    if not (isinstance(kind, type) and issubclass(kind, SparkwrightError)):
        kind = CompileError
    emit("cluster.task-failed", task=reply.name, machine=reply.machine, because=reply.because)
    return kind(reply.what, because=because, next_step=reply.next_step)
