"""Send tasks through a pool of workers, take their results, and send those again that are refused."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from sparkwright.base import errors
from sparkwright.base.errors import ClusterError, CompileError, SparkwrightError
from sparkwright.base.events import emit, task
from sparkwright.cluster.messages import TaskFailed
from sparkwright.cluster.pool import open_pool, task_order
from sparkwright.native.schedule import makespan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sparkwright.cluster.address import ClusterAddress
    from sparkwright.cluster.messages import ClusterTask, ProofMade, UnitCompiled
    from sparkwright.store import Store

_ATTEMPTS = 3


def run_tasks(
    address: ClusterAddress,
    store: Store,
    tasks: Sequence[ClusterTask],
    take: Callable[[Any, Any], bool],
    *,
    made: type[UnitCompiled | ProofMade],
    title: str,
    unit: str,
    logs: Path | None = None,
    keep_going: bool = False,
    patience_s: float = 60.0,
    silent_s: float = 60.0,
) -> None:
    """Run *tasks* on the machines at *address*.

    Args:
        address: the machines.
        store: the store here.
        tasks: at least one.
        take: takes a task's result; false if it is not what was asked for, and has to be made again.
        made: the class of results.
        title: name of the work in progress.
        unit: name of its parts.
        logs: folder for the logs of tasks that failed.
        keep_going: run the other tasks when one fails.
        patience_s: as `open_pool` has it.
        silent_s: as `open_pool` has it.

    Raises:
        SparkwrightError: the error of the first task that failed.
        ClusterError: no machine can be had, several were lost over one task, or a result did not arrive.
    """
    url = "" if store.remote is None else store.remote.settings.url
    left = {asked.name: asked.expected.seconds for asked in tasks}
    refused: Counter[str] = Counter()
    failures: list[SparkwrightError] = []
    with (
        store.scratch() as folder,
        open_pool(address, folder, store_url=url, patience_s=patience_s, silent_s=silent_s) as pool,
        task(title, total=len(tasks), unit=unit) as shown,
    ):
        emit("cluster.opened", name=pool.name, slots=pool.slots, machines=len(pool.workers))
        for asked in task_order(tasks):
            pool.submit(asked)
        for found in pool.replies():
            if found is not None:
                asked, reply = found
                if isinstance(reply, TaskFailed):
                    failures.append(_failure(reply, logs))
                elif not _taken(take, made, asked, reply):
                    refused[asked.name] += 1
                    if refused[asked.name] >= _ATTEMPTS:
                        raise ClusterError(
                            f"the result of {asked.name} did not arrive",
                            because=f"{_ATTEMPTS} times it was not what {reply.machine} or others say of it",
                            next_step="check the store that the machines share: sparkwright store status",
                        )
                    emit("cluster.result-refused", task=asked.name, machine=reply.machine)
                    pool.submit_again(asked, reply.machine)
                    continue
                del left[asked.name]
                shown.advance(1)
            expected = makespan(left.values(), max(1, pool.slots))
            shown.advance(0, left=expected, failed=len(failures), running=pool.running())
            if failures and not keep_going:
                break
    if failures:
        raise failures[0]


def _taken(
    take: Callable[[Any, Any], bool], made: type[UnitCompiled | ProofMade], asked: ClusterTask, reply: object
) -> bool:
    """Return if *reply*, which comes from another machine and may be anything, is the result."""
    try:
        return isinstance(reply, made) and take(asked, reply)
    except msgspec.ValidationError:
        return False


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
