"""Run tasks on a cluster: start its workers, send tasks, take results, and send those again that are refused.

The scheduler of Dask runs in this process and listens on the loopback interface alone. Each connection of ssh
starts a worker and carries both directions; certificates are made for one command and go through ssh, so that
no other user of these machines can speak with either side. The machines themselves can: a worker that was
tampered with can run any program here, as the user who named its machine.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.errors import ClusterError, SparkwrightError, ToolError, error_class
from sparkwright.base.events import emit, task, warn
from sparkwright.distributed.address import ClusterAddress
from sparkwright.distributed.ssh import start_workers
from sparkwright.distributed.tasks import Done, Failed, Reply, Task, TaskLostError
from sparkwright.distributed.worker import MIB, QUIET, SLOT, TaskRunner, run_task
from sparkwright.store import Store

_POLL_S = 0.1
_LOOK_S = 1.0
_ATTEMPTS = 3
_ENDS_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Other machines, and the store that is shared with them.

    Attributes:
        patience_s: how long to wait for a machine when none is left.
        silent_s: how long a machine may send no sign of life, at least 5, before its tasks go to others.
    """

    address: ClusterAddress
    store: Store
    patience_s: float = 60.0
    silent_s: float = 60.0

    @contextlib.contextmanager
    def open(self) -> Iterator[Workers]:
        """Yield workers on the machines, which end with the block.

        Raises:
            ClusterError: no worker can be had.
            ToolError: the libraries are not installed, or no machine has this program.
        """
        with self.store.scratch() as folder, contextlib.ExitStack() as stack:
            yield self._started(stack, folder)

    def _started(self, stack: contextlib.ExitStack, folder: Path) -> Workers:
        dask, distributed = _require_library()
        limits = {
            "temporary-directory": str(folder),
            "distributed.scheduler.worker-ttl": f"{self.silent_s} s",
        }
        stack.enter_context(dask.config.set(limits | QUIET))
        security = distributed.Security.temporary()
        scheduler = stack.enter_context(
            distributed.LocalCluster(
                n_workers=0, host="127.0.0.1", protocol="tls://", security=security, silence_logs=50,
                # Its web server is started in any case: on no port of others, and for this machine alone.
                scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            )
        )  # fmt: skip
        client = stack.enter_context(distributed.Client(scheduler, security=security))
        workers = Workers(self.address.name, client, self.patience_s)
        with task(f"start workers on {len(self.address.hosts)} machines"):
            refused = start_workers(
                stack,
                self.address.hosts,
                scheduler.scheduler_address,
                security,
                workers.machines,
                store_url="" if self.store.remote is None else self.store.remote.settings.url,
                patience_s=min(_ENDS_S, self.silent_s),
            )
        for why in refused:
            warn(f"{why.what}: {why.because}; {why.next_step}")
        if len(refused) == len(self.address.hosts):
            raise refused[0]
        emit("cluster.opened", name=workers.name, slots=workers.slots, machines=len(workers.connected()))
        return workers

    def run(
        self,
        tasks: Sequence[Task],
        take: Callable[[Done], bool],
        *,
        title: str = "",
        unit: str = "tasks",
    ) -> None:
        """Run *tasks*, at least one, on workers that are started for them.

        Args:
            tasks: the tasks.
            take: takes a result, which may be anything; false if it is not what was asked for, and has to be
                made again.
            title: name of the work in progress; empty to show none.
            unit: name of its parts.

        Raises:
            SparkwrightError: the error of the first task that failed, or what *take* raises.
            ClusterError: no machine can be had, none has what a task needs, or a result did not arrive.
            TaskLostError: a task was lost several times.
        """
        with contextlib.ExitStack() as stack:
            own = stack.enter_context(self.open())
            stack.callback(own.cancel)
            shown = stack.enter_context(task(title, total=len(tasks), unit=unit)) if title else None
            left = {one.name: one for one in tasks}
            for needs in {one.needs for one in tasks}:
                own.require(needs)  # before anything starts
            for one in sorted(tasks, key=lambda one: (-one.seconds, one.name)):
                own.submit(one)
            for done in own.results():
                if done is not None:
                    if not _taken(take, done):
                        own.refuse(left[done.name], done.machine)
                        continue
                    del left[done.name]
                    if shown is not None:
                        shown.advance(1)
                if shown is not None:
                    seconds = [one.seconds for one in left.values()]
                    expected = max([*seconds, sum(seconds) / max(1, own.slots)]) if seconds else 0.0
                    shown.advance(0, left=expected, running=own.running())


@dataclass(frozen=True, kw_only=True)
class ThisMachine:
    """This machine, in the place of a cluster: it runs one task after the other."""

    store: Store

    def run(self, tasks: Sequence[Task], take: Callable[[Done], bool]) -> None:
        """Run *tasks*; see `Cluster.run`."""
        runner = TaskRunner(self.store, (sys.executable, "-m", "sparkwright"), "this machine", {})
        for one in tasks:
            reply = runner.run(one)
            if isinstance(reply, Failed) and not reply.fault:
                raise TaskLostError(reply.what, because=reply.because)
            if isinstance(reply, Failed):
                raise _error(reply)
            if not _taken(take, reply):
                raise TaskLostError(f"the result of {one.name} is not what was asked for")


def _taken(take: Callable[[Done], bool], done: Done) -> bool:
    try:
        return take(done)
    except (ValueError, LookupError, TypeError, AttributeError):
        return False


@dataclass
class Workers:
    """Connected workers, and the tasks of one run on them.

    Attributes:
        patience_s: how long to wait for a worker when none is left.
    """

    name: str
    client: Any
    patience_s: float
    _unfit: set[str] = field(default_factory=set)
    _numbers: Counter[str] = field(default_factory=Counter)
    _futures: dict[Any, tuple[Task, float, list[str]]] = field(default_factory=dict)
    _attempts: Counter[str] = field(default_factory=Counter)
    _refused: Counter[str] = field(default_factory=Counter)
    _running: list[dict[str, Any]] = field(default_factory=list)
    _looked: float = 0.0
    _connected: dict[str, tuple[str, dict[str, float]]] = field(default_factory=dict)
    _asked: float = 0.0

    def connected(self) -> dict[str, tuple[str, dict[str, float]]]:
        """Return machine and resources of each worker, by address, as of 0.1 s ago: a reading takes 3 ms.

        Raises:
            ClusterError: the scheduler is gone.
        """
        now = time.monotonic()
        if now - self._asked < _POLL_S:
            return self._connected
        # Not `Client.scheduler_info`: it returns what a timer of the client may have replaced meanwhile, by a
        # summary without workers.
        try:
            found = self.client.sync(self.client.scheduler.identity, n_workers=-1)
        except OSError as error:
            raise _deserted(self.name, "the scheduler was lost") from error
        self._asked = now
        self._connected = {
            home: (str(worker["name"]).rpartition(" ")[0], worker["resources"])
            for home, worker in found["workers"].items()
        }
        return self._connected

    def machines(self) -> frozenset[str]:
        """Return the names of the machines whose workers are connected."""
        return frozenset(machine for machine, _ in self.connected().values())

    def _able(self, needs: Collection[str] = ()) -> dict[str, dict[str, float]]:
        """Return the resources of the workers that have all of *needs* and are not left out, by address."""
        return {
            home: resources
            for home, (machine, resources) in self.connected().items()
            if machine not in self._unfit and all(resources.get(one, 0) for one in needs)
        }

    @property
    def slots(self) -> int:
        """Return the number of tasks that all workers together run at once."""
        return int(sum(resources.get(SLOT, 0) for resources in self._able().values()))

    def require(self, needs: Collection[str]) -> dict[str, dict[str, float]]:
        """Return the resources of the workers that have all of *needs*, by address.

        Raises:
            ClusterError: no worker is left, or has them.
        """
        if found := self._able(needs):
            return found
        workers = self._able()
        if not workers:
            raise _deserted(self.name, "none is connected")
        offered = sorted({one for resources in workers.values() for one in resources} - {SLOT, MIB})
        raise ClusterError(
            f"no machine of {self.name} can do this",
            because=f"it needs {', '.join(needs)}, and they offer {', '.join(offered)}",
            next_step="name a machine that has it, or do without --cluster",
        )

    def submit(self, asked: Task, *, avoid: str = "") -> None:
        """Have a task run, not by the machine *avoid* if there are others; the longest are started first."""
        able = self.require(asked.needs)
        machines = {home: machine for home, (machine, _) in self.connected().items()}
        preferred = [home for home in able if machines.get(home) != avoid] or list(able)
        demanded = min(asked.mib, max(able[home].get(MIB, 0) for home in preferred))
        self._numbers[asked.name] += 1
        future = self.client.submit(
            run_task,
            msgspec.json.encode(asked),
            key=f"{asked.name}-{self._numbers[asked.name]}",
            resources={SLOT: 1, MIB: demanded, **dict.fromkeys(asked.needs, 1)},
            workers=preferred if self._unfit or avoid else None,
            priority=asked.seconds,
            pure=False,
        )
        self._futures[future] = asked, demanded, preferred

    def refuse(self, asked: Task, machine: str, because: str = "it was not what was asked for") -> None:
        """Have a task run again of which *machine* gave no good result: elsewhere, if there are others.

        A machine that did so several times is left out, if others have delivered all of theirs.

        Raises:
            TaskLostError: it was the last try.
            ClusterError: no worker is left.
        """
        self._attempts[asked.name] += 1
        if self._attempts[asked.name] >= _ATTEMPTS:
            raise TaskLostError(
                f"the result of {asked.name} did not arrive",
                because=f"on {machine}, as before on others, {because}",
                next_step="check the machines, and the store that they share: sparkwright store status",
            )
        emit("cluster.result-refused", task=asked.name, machine=machine)
        if not self._refused[machine]:
            warn(
                f"a result of {machine} did not arrive, and is made again; after {_ATTEMPTS} the machine "
                "is left out: check there that it reaches the store (sparkwright store status)"
            )
        self._refused[machine] += 1
        if self._refused[machine] >= _ATTEMPTS and any(not self._refused[one] for one in self.machines()):
            emit("cluster.left-out", machine=machine, refused=self._refused[machine])
            self._unfit.add(machine)
        self.submit(asked, avoid=machine)

    def cancel(self) -> None:
        """Give up the tasks that have no result; one that runs goes on, and its result is not waited for."""
        with contextlib.suppress(Exception):  # the scheduler may be gone
            self.client.cancel(list(self._futures))
        self._futures.clear()

    def results(self) -> Iterator[Done | None]:
        """Yield each result as it comes, and `None` now and then while none does, until all are there.

        A task whose worker is lost is run by another one. A machine that is unfit gets no further task.

        Raises:
            SparkwrightError: the error of a task that failed.
            ClusterError: no worker is left, or a task lost several.
        """
        alone_since: float | None = None
        while self._futures:
            if self.client.status != "running":
                raise _deserted(self.name, "the scheduler was lost")
            ready = [future for future in self._futures if future.done()]
            for future in ready:
                asked, *_ = self._futures.pop(future)
                if (done := self._result(future, asked)) is not None:
                    yield done
            if ready:
                alone_since = None
                continue
            yield None
            time.sleep(_POLL_S)
            wanted = {asked.needs for asked, *_ in self._futures.values()}
            if all(self._able(needs) for needs in wanted):
                alone_since = None
                self._move_stranded()
                continue
            alone_since = alone_since or time.monotonic()
            if time.monotonic() - alone_since > self.patience_s:
                raise _deserted(self.name, f"all were lost, and none came back in {self.patience_s:g} s")

    def _result(self, future: Any, asked: Task) -> Done | None:
        """Return the result of a finished task, or `None` if it was given to another worker."""
        if future.status in {"cancelled", "lost"}:
            raise _deserted(self.name, "the scheduler was lost")
        if future.status != "finished":
            error = future.exception()
            lost = type(error).__name__ == "KilledWorker"
            raise TaskLostError(
                f"{asked.name} was not finished",
                because="every machine that tried it was lost" if lost else f"a worker failed: {error!r}",
                next_step="check the machines and their memory, or do without them; what is finished stays",
            )
        reply: Done | Failed = decode_json(future.result(), Reply)
        if isinstance(reply, Done):
            return reply
        emit("cluster.task-failed", task=reply.name, machine=reply.machine, because=reply.because)
        if reply.fault == "task":
            raise _error(reply)
        if reply.fault == "machine":
            if reply.machine not in self._unfit:
                warn(f"{reply.machine} is left out: {reply.what}: {reply.because}; {reply.next_step}")
                self._unfit.add(reply.machine)
            if not self._able():
                raise _error(reply)
            self.submit(asked)
        else:
            self.refuse(asked, reply.machine, reply.because)
        return None

    def _move_stranded(self) -> None:
        """Submit those tasks again that wait for lost workers: for their own ones, or for larger ones."""
        for future, (asked, demanded, homes) in list(self._futures.items()):
            able = self._able(asked.needs)
            largest = max((one.get(MIB, 0) for one in able.values()), default=demanded)
            if able and (demanded > largest or not able.keys() & set(homes)):
                self._futures.pop(future)
                self.client.cancel([future])
                self.submit(asked)

    def running(self) -> list[dict[str, Any]]:
        """Return the tasks that run, as `Task.advance` takes them; the scheduler is read once a second."""
        now = time.monotonic()
        if now - self._looked > _LOOK_S:
            self._looked = now
            with contextlib.suppress(Exception):  # progress is no reason to end a build
                known = {future.key: asked for future, (asked, *_) in self._futures.items()}
                self._running = [
                    {
                        "name": known[key].name,
                        "machine": name.rpartition(" ")[0],
                        "elapsed": elapsed,
                        "expected": known[key].seconds,
                        "mib": known[key].mib,
                    }
                    for name, key, elapsed in self.client.run_on_scheduler(_executing)
                    if key in known
                ]
        return self._running


def _executing(dask_scheduler: Any) -> list[tuple[str, str, float]]:
    """Return worker, key and seconds of each task that runs; called by the scheduler, in this process."""
    return [
        (str(worker.name), one.key, float(seconds))
        for worker in dask_scheduler.workers.values()
        for one, seconds in worker.executing.items()
    ]


def _error(failed: Failed) -> SparkwrightError:
    """Return the error of a task, with the machine's name."""
    kind = error_class(failed.kind, ClusterError)
    return kind(failed.what, because=f"on {failed.machine}: {failed.because}", next_step=failed.next_step)


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


def _deserted(name: str, because: str) -> ClusterError:
    return ClusterError(
        f"no machine of {name} is left",
        because=because,
        next_step="check the machines, or do without --cluster; what is finished is kept",
    )
