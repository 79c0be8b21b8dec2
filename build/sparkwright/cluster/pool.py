"""Workers on other machines, behind a scheduler of Dask: tasks go in, replies come out as they are ready."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.errors import ClusterError
from sparkwright.base.events import emit, warn
from sparkwright.cluster.capabilities import code_need
from sparkwright.cluster.messages import (
    TaskDone,
    TaskFailed,
    TaskReply,
    WorkerUnfit,
)
from sparkwright.cluster.serving import run_task
from sparkwright.cluster.worker import MIB, SLOT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from sparkwright.cluster.messages import ClusterTask

    Reply = TaskDone | TaskFailed

_POLL_S = 0.1
_LOOK_S = 1.0
_REFUSALS = 3


@dataclass
class Pool:
    """Connected workers.

    Attributes:
        name: the address, as it is shown.
        client: Dask's client.
        patience_s: how long to wait for a worker when none is left.
    """

    name: str
    client: Any
    patience_s: float = 60.0
    _futures: dict[Any, ClusterTask] = field(default_factory=dict)
    _demanded: dict[Any, float] = field(default_factory=dict)
    _unfit: set[str] = field(default_factory=set)
    _submitted: Iterator[int] = field(default_factory=itertools.count)
    _homes: dict[str, list[str]] = field(default_factory=dict)
    _refused: Counter[str] = field(default_factory=Counter)
    _running: list[dict[str, Any]] = field(default_factory=list)
    _looked: float = 0.0

    @property
    def workers(self) -> dict[str, dict[str, float]]:
        """Return the resources of each worker that is connected and not unfit, by address."""
        return {home: found for home, found in self._connected().items() if home not in self._unfit}

    def _connected(self) -> dict[str, dict[str, float]]:
        # Not `Client.scheduler_info`: it returns what a timer of the client may have replaced meanwhile, by a
        # summary without workers.
        try:
            found = self.client.sync(self.client.scheduler.identity, n_workers=-1)
        except OSError as error:
            raise _without_scheduler(self.name) from error
        return {home: worker["resources"] for home, worker in found["workers"].items()}

    @property
    def slots(self) -> int:
        """Return the number of tasks that all workers together run at once."""
        return int(sum(found.get(SLOT, 0) for found in self.workers.values()))

    def running(self) -> list[dict[str, Any]]:
        """Return the tasks that run, as `Task.advance` takes them; the scheduler is read once a second."""
        now = time.monotonic()
        if now - self._looked > _LOOK_S:
            self._looked = now
            with contextlib.suppress(Exception):  # progress is no reason to end a build
                found = self.client.run_on_scheduler(_executing())
                known = {future.key: asked for future, asked in self._futures.items()}
                self._running = [
                    {
                        "name": known[key].name,
                        "machine": name.rpartition(" ")[0],
                        "elapsed": elapsed,
                        "expected": known[key].expected.seconds,
                        "mib": known[key].expected.mib,
                    }
                    for name, key, elapsed in found
                    if key in known
                ]
        return self._running

    def submit_again(self, asked: ClusterTask, machine: str) -> None:
        """Have a task run again whose result from *machine* was refused: elsewhere, if there are others.

        A worker of which several results were refused is left out, if others have delivered all of theirs.

        Raises:
            ClusterError: no worker is left.
        """
        homes = self._homes.pop(asked.name, [])
        for home in homes:
            if not self._refused[home]:
                warn(
                    f"a result of {machine} did not arrive, and is made again; after {_REFUSALS} the machine "
                    "is left out: check there that it reaches the store (sparkwright store status)"
                )
            self._refused[home] += 1
            sound = (other for other in self.workers if not self._refused[other])
            if self._refused[home] >= _REFUSALS and home not in self._unfit and any(sound):
                emit("cluster.left-out", machine=machine, refused=self._refused[home])
                self._unfit.add(home)
        self.submit(asked, avoid=homes)

    def submit(self, asked: ClusterTask, *, avoid: Sequence[str] = ()) -> None:
        """Have a task run, not by the workers at *avoid* if there are others; the longest are started first.

        Raises:
            ClusterError: no worker is left.
        """
        workers = self.require(asked.needs)
        preferred = [home for home in workers if home not in avoid]
        demanded = min(asked.expected.mib, _most_memory(workers))
        future = self.client.submit(
            run_task,
            msgspec.json.encode(asked),
            key=f"{asked.name}-{next(self._submitted)}",
            resources={
                SLOT: 1,
                MIB: demanded,
                **dict.fromkeys((code_need(), *asked.needs), 1),
            },
            # One that connects later is found by the tasks that are submitted later.
            workers=(preferred or list(workers)) if self._unfit or avoid else None,
            allow_other_workers=not self._unfit and bool(preferred) and bool(avoid),
            priority=asked.expected.seconds,
            pure=False,
        )
        self._futures[future], self._demanded[future] = asked, demanded

    def cancel(self) -> None:
        """Give up the tasks that have no reply; one that runs goes on, and its reply is not waited for."""
        self.client.cancel(list(self._futures))
        self._futures.clear()
        self._demanded.clear()

    def replies(self) -> Iterator[tuple[ClusterTask, Reply] | None]:
        """Yield each reply as it comes, and `None` now and then while none does, until all are there.

        A task whose worker is lost is run by another one. A worker that is unfit gets no further task.

        Raises:
            ClusterError: no worker is left, or one task lost several.
        """
        alone_since: float | None = None
        while self._futures:
            if self.client.status != "running":
                raise _without_scheduler(self.name)
            ready = [future for future in self._futures if future.done()]
            for future in ready:
                asked = self._futures.pop(future)
                self._demanded.pop(future)
                if (reply := self._reply(future, asked)) is not None:
                    yield asked, reply
            if ready:
                alone_since = None
                continue
            yield None
            time.sleep(_POLL_S)
            wanted = {asked.needs for asked in self._futures.values()}
            if all(_with(self.workers, (code_need(), *needs)) for needs in wanted):
                alone_since = None
                self._demand_less()
                continue
            alone_since = alone_since or time.monotonic()
            if time.monotonic() - alone_since > self.patience_s:
                raise _deserted(self.name, f"all were lost, and none came back in {self.patience_s:g} s")

    def _demand_less(self) -> None:
        """Submit those tasks again that demand more memory than any worker that is left has.

        Such a one was submitted while a larger worker was connected, and would wait for it without end.
        """
        connected = self._connected()
        for future, demanded in list(self._demanded.items()):
            able = _with(connected, (code_need(), *self._futures[future].needs))
            if able and demanded > _most_memory(able):
                self._demanded.pop(future)
                self.client.cancel([future])
                self.submit(self._futures.pop(future))

    def _reply(self, future: Any, asked: ClusterTask) -> Reply | None:
        """Return the reply of a finished task, or `None` if it was given to another worker."""
        if future.status in {"cancelled", "lost"}:
            raise _without_scheduler(self.name)
        if future.status != "finished":
            error = future.exception()
            lost = type(error).__name__ == "KilledWorker"
            raise ClusterError(
                f"{asked.name} was not finished",
                because="every machine that tried it was lost" if lost else f"a worker failed: {error!r}",
                next_step="check the machines and their memory, or do without them; what is finished stays",
            )
        homes = [home for found in self.client.who_has([future]).values() for home in found]
        reply: TaskReply = decode_json(future.result(), TaskReply)
        if not isinstance(reply, WorkerUnfit):
            self._homes[asked.name] = homes
            return reply
        if not self._unfit.issuperset(homes):
            warn(f"{reply.machine} is left out: {reply.because}; {reply.next_step}")
            self._unfit.update(homes)
        if not self.workers:
            raise _deserted(self.name, f"{reply.machine}: {reply.because}", reply.next_step)
        self.submit(asked)
        return None

    def different(self) -> int:
        """Return the number of workers that have another program, which get no tasks."""
        return len(self.workers) - len(_with(self.workers, [code_need()]))

    def alone(self) -> Pool:
        """Return a pool of the same workers for the tasks of one thread."""
        return replace(self, _futures={}, _demanded={}, _homes={}, _refused=Counter(), _running=[])

    def require(self, needs: Collection[str]) -> dict[str, dict[str, float]]:
        """Return the resources of the workers that have all of *needs*, by address.

        Raises:
            ClusterError: no worker is left, has this program, or has them.
        """
        workers = self.workers
        if not workers:
            raise _deserted(self.name, "none is connected")
        same = _with(workers, [code_need()])
        if not same:
            raise _other_program(self.name)
        found = _with(same, needs)
        if not found:
            offered = sorted({one for worker in same.values() for one in worker} - {SLOT, MIB, code_need()})
            raise ClusterError(
                f"no machine of {self.name} can do this",
                because=f"it needs {', '.join(needs)}, and they offer {', '.join(offered)}",
                next_step="name a machine that has it, or do without --cluster",
            )
        return found


def _with(workers: dict[str, dict[str, float]], needs: Collection[str]) -> dict[str, dict[str, float]]:
    return {home: worker for home, worker in workers.items() if all(worker.get(one, 0) for one in needs)}


def _most_memory(workers: Mapping[str, Mapping[str, float]]) -> float:
    """Return the memory, in MiB, of the worker that has most of it."""
    return max(found.get(MIB, 0) for found in workers.values())


def _executing() -> Callable[..., list[tuple[str, str, float]]]:
    """Return a function for the scheduler, which need not have this program: pickled as a whole."""

    def look(dask_scheduler: Any) -> list[tuple[str, str, float]]:
        return [
            (str(worker.name), one.key, float(seconds))
            for worker in dask_scheduler.workers.values()
            for one, seconds in worker.executing.items()
        ]

    return look


def _without_scheduler(name: str) -> ClusterError:
    return ClusterError(
        f"the scheduler of {name} was lost",
        because="it ended, was restarted, or its network did",
        next_step="start it and its workers, and run again: what is finished is kept",
    )


def _other_program(name: str) -> ClusterError:
    return ClusterError(
        f"no machine of {name} can work for this program",
        because="sparkwright is another state on all of them",
        next_step="install the same commit there as here",
    )


def _deserted(name: str, because: str, next_step: str = "") -> ClusterError:
    return ClusterError(
        f"no machine of {name} is left",
        because=because,
        next_step=next_step or "check the machines, or do without --cluster; what is finished is kept",
    )


def task_order(tasks: Iterable[ClusterTask]) -> list[ClusterTask]:
    """Return *tasks*, the longest first."""
    return sorted(tasks, key=lambda one: (-one.expected.seconds, one.name))
