"""Workers on other machines, behind a scheduler of Dask: tasks go in, replies come out as they are ready.

For machines named by ssh, the scheduler runs in this process and listens on the loopback interface alone.
Each connection of ssh starts a worker and carries both directions; certificates are made for one build and
go through ssh, so that no other user of these machines can speak with either side.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from sparkwright.base.errors import ClusterError, ToolError
from sparkwright.base.events import emit, task, warn
from sparkwright.cluster.messages import TaskReply, WorkerUnfit
from sparkwright.cluster.serving import run_task
from sparkwright.cluster.starting import HELLO_S, start_worker
from sparkwright.cluster.worker import MIB, SLOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from sparkwright.cluster.address import ClusterAddress
    from sparkwright.cluster.messages import ClusterTask

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
    _unfit: set[str] = field(default_factory=set)
    _submitted: int = 0
    _homes: dict[str, list[str]] = field(default_factory=dict)
    _refused: Counter[str] = field(default_factory=Counter)
    _running: list[dict[str, Any]] = field(default_factory=list)
    _looked: float = 0.0

    @property
    def workers(self) -> dict[str, dict[str, float]]:
        """Return the resources of each worker that is connected and not unfit, by address."""
        info = self.client.scheduler_info(n_workers=-1)["workers"]
        return {home: worker["resources"] for home, worker in info.items() if home not in self._unfit}

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
        workers = self._require_workers()
        preferred = [home for home in workers if home not in avoid]
        largest = max(found.get(MIB, 0) for found in workers.values())
        self._submitted += 1
        future = self.client.submit(
            run_task,
            msgspec.json.encode(asked),
            key=f"{asked.name}-{self._submitted}",
            resources={SLOT: 1, MIB: min(asked.expected.mib, largest)},
            # One that connects later is found by the tasks that are submitted later.
            workers=(preferred or list(workers)) if self._unfit or avoid else None,
            allow_other_workers=not self._unfit and bool(preferred) and bool(avoid),
            priority=asked.expected.seconds,
            pure=False,
        )
        self._futures[future] = asked

    def replies(self) -> Iterator[tuple[ClusterTask, TaskReply] | None]:
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
                if (reply := self._reply(future, asked)) is not None:
                    yield asked, reply
            if ready:
                alone_since = None
                continue
            yield None
            time.sleep(_POLL_S)
            if self.workers:
                alone_since = None
                continue
            alone_since = alone_since or time.monotonic()
            if time.monotonic() - alone_since > self.patience_s:
                raise _deserted(self.name, f"all were lost, and none came back in {self.patience_s:g} s")

    def _reply(self, future: Any, asked: ClusterTask) -> TaskReply | None:
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
        reply: TaskReply | WorkerUnfit = msgspec.json.decode(future.result(), type=TaskReply | WorkerUnfit)
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

    def _require_workers(self) -> dict[str, dict[str, float]]:
        found = self.workers
        if not found:
            raise _deserted(self.name, "none is connected")
        return found


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


def _deserted(name: str, because: str, next_step: str = "") -> ClusterError:
    return ClusterError(
        f"no machine of {name} is left",
        because=because,
        next_step=next_step or "check the machines, or do without --cluster; what is finished is kept",
    )


@contextlib.contextmanager
def open_pool(
    address: ClusterAddress,
    folder: Path,
    *,
    store_url: str = "",
    patience_s: float = 60.0,
    silent_s: float = 60.0,
) -> Iterator[Pool]:
    """Yield the workers at *address*, started where they are named by ssh, and ended with the block.

    Args:
        address: the machines, or a scheduler.
        folder: for files of Dask's own scheduler.
        store_url: the store that machines share, for workers that are started; without credentials.
        patience_s: how long to wait for a worker when none is left.
        silent_s: how long a worker that is started may send no sign of life, at least 5, before its tasks
            go to others.

    Raises:
        ClusterError: no worker can be had.
        ToolError: the libraries are not installed.
    """
    dask, distributed = _require_library()
    with contextlib.ExitStack() as stack:
        if address.scheduler:
            client = stack.enter_context(_connected(distributed, address))
            with contextlib.suppress(TimeoutError):  # the first task says that there is none
                client.wait_for_workers(1, timeout=patience_s)
            yield Pool(address.name, client, patience_s)
            return
        limits = {"temporary-directory": str(folder), "distributed.scheduler.worker-ttl": f"{silent_s} s"}
        stack.enter_context(dask.config.set(limits))
        security = distributed.Security.temporary()
        cluster = stack.enter_context(
            distributed.LocalCluster(
                n_workers=0, host="127.0.0.1", protocol="tls://", security=security, silence_logs=50,
                # Its web server is started in any case: on no port of others, and for this machine alone.
                scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            )
        )  # fmt: skip
        client = stack.enter_context(distributed.Client(cluster, security=security))
        pool = Pool(address.name, client, patience_s)
        with task(f"start workers on {len(address.hosts)} machines"):
            refused = [
                why
                for host in address.hosts
                if (
                    why := start_worker(
                        stack,
                        host,
                        cluster.scheduler_address,
                        security,
                        store_url=store_url,
                        silent_s=silent_s,
                    )
                )
            ]
        for why in refused:
            warn(f"{why.what}: {why.because}; {why.next_step}")
        if len(refused) == len(address.hosts):
            raise refused[0]
        client.wait_for_workers(len(address.hosts) - len(refused), timeout=HELLO_S)
        yield pool


def _require_library() -> tuple[Any, Any]:
    try:
        import dask

        dask.config.set({"distributed.logging.distributed": "critical"})
        import distributed
    except ImportError as error:
        raise ToolError(
            "other machines cannot be used",
            because=f"the package {error.name} is not installed",
            next_step="pip install 'sparkwright[cluster]'",
        ) from error
    return dask, distributed


@contextlib.contextmanager
def _connected(distributed: Any, address: ClusterAddress) -> Iterator[Any]:
    try:
        client = distributed.Client(address.scheduler, timeout=15)
    except (OSError, TimeoutError, RuntimeError) as error:
        raise ClusterError(
            f"{address.name} cannot be reached",
            because=str(error) or type(error).__name__,
            next_step="start 'dask scheduler' there, or correct the address",
        ) from error
    with client:
        yield client


def task_order(tasks: Iterable[ClusterTask]) -> list[ClusterTask]:
    """Return *tasks*, the longest first."""
    return sorted(tasks, key=lambda one: (-one.expected.seconds, one.name))
