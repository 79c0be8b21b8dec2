"""A worker: the process on another machine that runs tasks for a command, until that ends.

`TaskRunner` runs tasks, each in a process of its own; `serve` runs those that a scheduler of Dask hands out.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.errors import SparkwrightError, StorageError, ToolError
from sparkwright.base.process import start
from sparkwright.distributed.inputs import share_file
from sparkwright.distributed.tasks import GB10, GPU, OUT, Done, Failed, Reply, Task, WorkerSettings, own_code
from sparkwright.store import Store
from sparkwright.store.owned import owned_folder, sweep_abandoned

SLOT, MIB = "SLOT", "MIB"
"""Dask's resources: a task, and a MiB of memory. What a machine has is a resource, too."""
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500 ms",
    "distributed.admin.system-monitor.interval": "5 s",
    "distributed.admin.system-monitor.disk": False,
    "distributed.admin.system-monitor.gil.enabled": False,
}
"""Dask's settings without what it records for its dashboard, 3 % of a core of every idle worker."""
# Errors of the machine on which they occur: another one may do better, and this one would not.
_OF_THE_MACHINE = frozenset(
    {"ClusterError", "EnvironmentSetupError", "FetchError", "NotInStoreError", "ToolError"}
)
_FOLDER = "sparkwright-worker-"
_GIVES_UP_S = 30
_ENDS_S = 3.0
_POLL_S = 0.02


@dataclass(frozen=True)
class TaskRunner:
    """Runs tasks on this machine.

    Attributes:
        store: the store here, whose remote tier is the one that machines share.
        program: the command that runs sparkwright.
        machine: name of this machine in results.
        environment: variables of tasks beside the process's own.
    """

    store: Store
    program: tuple[str, ...]
    machine: str
    environment: Mapping[str, str]

    def run(self, task: Task, stop: threading.Event | None = None) -> Reply:
        """Run *task*; a failure is a result, too.

        Raises:
            KeyboardInterrupt: *stop* was set meanwhile.
        """
        started = time.monotonic()
        try:
            with contextlib.ExitStack() as stack:
                if {GPU, GB10} & set(task.needs):
                    stack.enter_context(self.store.lock("card", "the card"))
                folder = stack.enter_context(self.store.scratch())
                if missing := self._lay_out(task, folder):
                    return missing
                if failed := self._call(task, folder, stop):
                    return failed
                out = folder / OUT
                paths = sorted(path for path in out.rglob("*") if path.is_file() and not path.is_symlink())
                files = tuple(
                    share_file(self.store, path, path.relative_to(out).as_posix()) for path in paths
                )
                value = json.loads((folder / "printed").read_bytes())
            return Done(task.name, self.machine, time.monotonic() - started, value, files)
        except OSError as error:
            failure: SparkwrightError = StorageError(
                f"{task.name} failed", because=str(error), next_step="free space there, and run again"
            )
        except SparkwrightError as error:
            failure = error
        return self._failed(task, type(failure).__name__, failure.what, failure.because, failure.next_step)

    def _lay_out(self, task: Task, folder: Path) -> Failed | None:
        """Write the files of *task* below *folder*; return the failure if the store lacks one."""
        (folder / OUT).mkdir()
        find = self.store.find_file
        for one in task.files:
            # `link` reads no bytes. A damaged file is dropped here, and the second look-up brings it again.
            if not (self.store.find_intact(one.sha256, size=one.size) or find(one.sha256, size=one.size)):
                return Failed(
                    task.name, self.machine, "machine", "ClusterError", f"{task.name} cannot be begun",
                    "its store has no access to the files of the task",
                    "give both machines one shared store: docs/many-machines.md",
                )  # fmt: skip
            self.store.link(one.sha256, folder / one.path)
        return None

    def _call(self, task: Task, folder: Path, stop: threading.Event | None) -> Failed | None:
        """Run the command line of *task* in *folder*; return its failure."""
        printed, log = folder / "printed", folder / "log"
        # The shell parts the document from what else the program says.
        words = ("/bin/sh", "-c", 'exec "$@" >"$0"', str(printed), *self.program, *task.words)
        environment = {**os.environ, **self.environment}
        environment.pop("SPARKWRIGHT_CLUSTER", None)
        running = start(words, cwd=folder, env=environment, log=log)
        try:
            while (ended := running.poll()) is None:
                if stop is not None and stop.is_set():
                    raise KeyboardInterrupt
                time.sleep(_POLL_S)
        finally:
            running.kill()
        try:
            value = json.loads(printed.read_bytes())
        except (OSError, ValueError):
            value = None
        error = value.get("error") if isinstance(value, dict) else None
        if isinstance(error, dict):
            parts = [str(error.get(name) or "") for name in ("kind", "what", "because", "next-step")]
            return self._failed(task, *parts)
        if value is not None:
            return None
        last = log.read_text(errors="replace").strip().rpartition("\n")[2]
        return Failed(
            task.name, self.machine, "", "ClusterError", f"{task.name} was not finished",
            f"its program ended with status {ended.status}: {last}",
        )  # fmt: skip

    def _failed(self, task: Task, kind: str, what: str, because: str, next_step: str) -> Failed:
        fault = "machine" if kind in _OF_THE_MACHINE else "task"
        return Failed(task.name, self.machine, fault, kind, what, because, next_step)


def serve(
    runner: TaskRunner,
    settings: WorkerSettings,
    *,
    slots: int,
    mib: int,
    offers: tuple[str, ...],
    told: BinaryIO,
) -> None:
    """Run what the scheduler of *settings* asks for, until *told* ends or the scheduler is gone.

    Args:
        runner: runs tasks.
        settings: addresses and certificates.
        slots: tasks that this machine runs at once.
        mib: memory in MiB that these may take together.
        offers: what tasks may need of it.
        told: input that ends with the command that sent the settings.

    Raises:
        ToolError: the program that sent the settings is another one.
    """
    if settings.code != own_code():
        raise ToolError(
            "this machine cannot work for the one that started it",
            because="sparkwright is another state here",
            next_step="install the same commit on both",
        )
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    temporary = Path(tempfile.gettempdir())
    sweep_abandoned(temporary, _FOLDER)  # a worker that was killed has left its own
    with owned_folder(temporary, _FOLDER) as folder:
        _here[:] = [runner]
        # A card serves one task at a time, all else as many as there are slots.
        resources = {SLOT: slots, MIB: mib, **{one: 1 if one in {GPU, GB10} else slots for one in offers}}
        asyncio.run(_serve(runner, settings, resources, folder, told))


async def _serve(
    runner: TaskRunner,
    settings: WorkerSettings,
    resources: Mapping[str, int],
    folder: Path,
    told: BinaryIO,
) -> None:
    distributed: Any = importlib.import_module("distributed")
    importlib.import_module("dask").config.set(QUIET)
    worker = distributed.Worker(
        settings.scheduler,
        name=f"{runner.machine} {os.getpid()}",
        nthreads=resources[SLOT],
        resources=dict(resources),
        host=settings.listen,
        contact_address=settings.contact,
        security=distributed.Security(
            tls_ca_file=settings.ca,
            tls_worker_cert=settings.cert,
            tls_worker_key=settings.key,
            require_encryption=True,
        ),
        dashboard=False,
        dashboard_address="127.0.0.1:0",
        memory_limit=0,
        death_timeout=_GIVES_UP_S,
        local_directory=str(folder / "dask"),
    )
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    # From the start: the scheduler may be gone before it is reached.
    threading.Thread(target=_until_end, args=(told, loop, ended, folder), daemon=True).start()
    async with worker:
        finished = asyncio.ensure_future(worker.finished())
        await asyncio.wait({finished, asyncio.ensure_future(ended.wait())}, return_when="FIRST_COMPLETED")


def _until_end(told: BinaryIO, loop: asyncio.AbstractEventLoop, ended: asyncio.Event, folder: Path) -> None:
    """Wait for the end of *told*, and end this process then, a task that runs with it."""
    while told.read(1 << 10):
        pass
    with contextlib.suppress(RuntimeError):  # the loop has ended already
        loop.call_soon_threadsafe(ended.set)
    time.sleep(_ENDS_S)
    # A thread cannot be ended; the program that it runs ends with this process.
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


_here: list[TaskRunner] = []


def run_task(data: bytes) -> bytes:
    """Run a `Task` in JSON, and return the `Reply` in JSON. Dask runs this function on a worker."""
    return msgspec.json.encode(_here[0].run(decode_json(data, Task)))
