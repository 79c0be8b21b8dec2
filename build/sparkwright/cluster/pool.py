"""Workers on other machines, behind a scheduler of Dask: tasks go in, replies come out as they are ready.

For machines named by ssh, the scheduler runs in this process and listens on the loopback interface alone.
Each connection of ssh starts a worker and carries both directions; certificates are made for one build and
go through ssh, so that no other user of these machines can speak with either side.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from sparkwright import __version__
from sparkwright.base.errors import ClusterError, ToolError
from sparkwright.base.events import emit, task, warn
from sparkwright.base.process import Dialogue
from sparkwright.cluster.messages import (
    TaskDone,
    TaskFailed,
    TaskReply,
    WorkerHello,
    WorkerSettings,
    WorkerUnfit,
    own_code,
)
from sparkwright.cluster.serving import run_task
from sparkwright.cluster.worker import MIB, SLOT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

    from sparkwright.base.ssh import SshHost
    from sparkwright.cluster.address import ClusterAddress
    from sparkwright.cluster.messages import ClusterTask

    Reply = TaskDone | TaskFailed

_START = (
    'PATH="$PATH:$HOME/.local/bin"; command -v sparkwright >/dev/null || exit 127; '
    "exec sparkwright worker --settings"
)
_NOT_FOUND, _OF_SSH = 127, 255
_HELLO_S = 90.0
_ENDS_S = 15.0
_POLL_S = 0.1
_LOOK_S = 1.0
_PORTS = (20_000, 32_000)


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
    _submitted: Iterator[int] = field(default_factory=itertools.count)
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

    def submit(self, asked: ClusterTask) -> None:
        """Have a task run; the longest ones are started first.

        Raises:
            ClusterError: no worker is left.
        """
        workers = self.require(asked.needs)
        largest = max(found.get(MIB, 0) for found in workers.values())
        future = self.client.submit(
            run_task,
            msgspec.json.encode(asked),
            key=f"{asked.name}-{next(self._submitted)}",
            resources={SLOT: 1, MIB: min(asked.expected.mib, largest), **dict.fromkeys(asked.needs, 1)},
            # One that connects later is found by the tasks that are submitted later.
            workers=list(workers) if self._unfit else None,
            priority=asked.expected.seconds,
            pure=False,
        )
        self._futures[future] = asked

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
                if (reply := self._reply(future, asked)) is not None:
                    yield asked, reply
            if ready:
                alone_since = None
                continue
            yield None
            time.sleep(_POLL_S)
            wanted = {asked.needs for asked in self._futures.values()}
            if all(_with(self.workers, needs) for needs in wanted):
                alone_since = None
                continue
            alone_since = alone_since or time.monotonic()
            if time.monotonic() - alone_since > self.patience_s:
                raise _deserted(self.name, f"all were lost, and none came back in {self.patience_s:g} s")

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
        reply: TaskReply = msgspec.json.decode(future.result(), type=TaskReply)
        if not isinstance(reply, WorkerUnfit):
            return reply
        if not self._unfit.issuperset(homes):
            warn(f"{reply.machine} is left out: {reply.because}; {reply.next_step}")
            self._unfit.update(homes)
        if not self.workers:
            raise _deserted(self.name, f"{reply.machine}: {reply.because}", reply.next_step)
        self.submit(asked)
        return None

    def alone(self) -> Pool:
        """Return a pool of the same workers for the tasks of one thread."""
        return replace(self, _futures={}, _running=[])

    def require(self, needs: Collection[str]) -> dict[str, dict[str, float]]:
        """Return the resources of the workers that have all of *needs*, by address.

        Raises:
            ClusterError: no worker is left, or none has them.
        """
        workers = self.workers
        if not workers:
            raise _deserted(self.name, "none is connected")
        found = _with(workers, needs)
        if not found:
            offered = sorted({one for worker in workers.values() for one in worker} - {SLOT, MIB})
            raise ClusterError(
                f"no machine of {self.name} can do this",
                because=f"it needs {', '.join(needs)}, and they offer {', '.join(offered)}",
                next_step="name a machine that has it, or do without --cluster",
            )
        return found


def _with(workers: dict[str, dict[str, float]], needs: Collection[str]) -> dict[str, dict[str, float]]:
    return {home: worker for home, worker in workers.items() if all(worker.get(one, 0) for one in needs)}


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
                    why := _start(
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
        client.wait_for_workers(len(address.hosts) - len(refused), timeout=_HELLO_S)
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


def _start(
    stack: contextlib.ExitStack,
    host: SshHost,
    scheduler: str,
    security: Any,
    *,
    store_url: str,
    silent_s: float,
) -> ClusterError | ToolError | None:
    """Start a worker on *host* for the length of *stack*; return the error of one that cannot be used."""
    there, listen, contact = random.sample(range(*_PORTS), 3)
    port = scheduler.rpartition(":")[2]
    forwards = (
        "-oExitOnForwardFailure=yes",
        "-R", f"127.0.0.1:{there}:127.0.0.1:{port}",
        "-L", f"127.0.0.1:{contact}:127.0.0.1:{listen}",
    )  # fmt: skip
    tls = security.get_tls_config_for_role("worker")
    settings = WorkerSettings(
        scheduler=f"tls://127.0.0.1:{there}",
        listen=f"tls://127.0.0.1:{listen}",
        contact=f"tls://127.0.0.1:{contact}",
        ca=tls["ca_file"],
        cert=tls["cert"],
        key=tls["key"],
        store_url=store_url,
        name=host.shown,
    )
    dialogue = stack.enter_context(
        Dialogue(host.argv(_START, forwards=forwards), patience_s=min(_ENDS_S, silent_s))
    )
    dialogue.send(msgspec.json.encode(settings) + b"\n")
    end = time.monotonic() + _HELLO_S
    while (left := end - time.monotonic()) > 0:
        try:
            line = dialogue.line(left)
        except EOFError:
            return _of_ssh(host, dialogue)
        with contextlib.suppress(msgspec.MsgspecError):
            hello = msgspec.json.decode(line or b"", type=WorkerHello)
            if hello.code != own_code():
                dialogue.end()
                return _other_version(host, hello)
            emit("cluster.worker", machine=hello.machine, slots=hello.slots, mib=hello.mib)
            return None
    dialogue.end()
    return ClusterError(
        f"{host.host} does not answer",
        because=f"its worker was not ready within {_HELLO_S:g} s",
        next_step="check the machine, and what its shell does at a login",
    )


def _other_version(host: SshHost, hello: WorkerHello) -> ToolError:
    different = hello.version if hello.version != __version__ else "another state of the same version"
    return ToolError(
        f"{host.host} cannot work for this program",
        because=f"sparkwright is {different} there, and {__version__} here",
        next_step="install the same commit there",
    )


def _of_ssh(host: SshHost, dialogue: Dialogue) -> ClusterError | ToolError:
    done = dialogue.end()
    last = done.stderr.strip().rpartition("\n")[2] or f"it ended with status {done.status}"
    if done.status == _NOT_FOUND:
        return ToolError(
            f"{host.host} has no sparkwright",
            because="it is neither on PATH there nor in ~/.local/bin",
            next_step="install the same commit there, with the extra [cluster]",
        )
    if done.status == _OF_SSH:
        return ClusterError(
            f"{host.host} cannot be reached", because=last, next_step=f"try it by hand: ssh {host.host} true"
        )
    return ClusterError(
        f"the worker of {host.host} did not start", because=last, next_step="install the same commit there"
    )


def task_order(tasks: Iterable[ClusterTask]) -> list[ClusterTask]:
    """Return *tasks*, the longest first."""
    return sorted(tasks, key=lambda one: (-one.expected.seconds, one.name))
