"""A worker: the process on another machine that runs tasks for a command, until that ends."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import platform
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkwright import __version__
from sparkwright.base.machine import look
from sparkwright.cluster.capabilities import look_for_capabilities, resources_of
from sparkwright.cluster.kinds import KINDS
from sparkwright.cluster.messages import WorkerHello, own_code
from sparkwright.cluster.serving import Serving, serve_with
from sparkwright.native.schedule import default_reserve_mib
from sparkwright.store.owned import owned_folder, sweep_abandoned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import BinaryIO

    from sparkwright.cluster.kinds import TaskKind
    from sparkwright.cluster.messages import WorkerSettings
    from sparkwright.upstream import Access

SLOT, MIB = "SLOT", "MIB"
"""Dask's resources: a task, and a MiB of memory. Capabilities of the machine are resources, too."""
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500 ms",
    "distributed.admin.system-monitor.interval": "5 s",
    "distributed.admin.system-monitor.disk": False,
    "distributed.admin.system-monitor.gil.enabled": False,
}
"""Dask's settings without what it records for its dashboard, 3 % of a core of every idle worker."""
_FOLDER = "sparkwright-worker-"
_GIVES_UP_S = 30
_ENDS_S = 3.0


def describe(jobs: int | None = None, name: str = "", cuda: Path | None = None) -> WorkerHello:
    """Return what this machine offers: a task a core, or *jobs*, the free memory, and its capabilities."""
    now = look()
    return WorkerHello(
        code=own_code(),
        version=__version__,
        machine=name or platform.node(),
        slots=jobs or now.cores,
        mib=max(1, now.available_mib - default_reserve_mib(now)),
        offers=look_for_capabilities(cuda),
    )


def serve(
    access: Access,
    settings: WorkerSettings,
    hello: WorkerHello,
    *,
    told: BinaryIO | None,
    say: Callable[[WorkerHello], None],
    cuda: Path | None = None,
    kinds: Mapping[str, Callable[[], TaskKind]] = KINDS,
) -> None:
    """Run what the scheduler of *settings* asks for, until *told* ends or the scheduler is gone.

    Args:
        access: this machine's store and network settings.
        settings: addresses and certificates.
        hello: what this machine offers.
        told: input that ends with the build; by default the worker ends with the scheduler alone.
        say: called once the worker is registered.
        cuda: an installed CUDA toolkit, for builds that take one.
        kinds: the kinds of tasks that are run.
    """
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    temporary = Path(tempfile.gettempdir())
    sweep_abandoned(temporary, _FOLDER)  # a worker that was killed has left its own
    with (
        owned_folder(temporary, _FOLDER) as folder,
        contextlib.closing(Serving(access, folder, cuda, hello.machine, kinds)) as serving,
    ):
        serve_with(serving)
        asyncio.run(_serve(settings, hello, folder, told, say))


async def _serve(
    settings: WorkerSettings,
    hello: WorkerHello,
    folder: Path,
    told: BinaryIO | None,
    say: Callable[[WorkerHello], None],
) -> None:
    distributed: Any = importlib.import_module("distributed")
    importlib.import_module("dask").config.set(QUIET)
    security = (
        distributed.Security(
            tls_ca_file=settings.ca,
            tls_worker_cert=settings.cert,
            tls_worker_key=settings.key,
            require_encryption=True,
        )
        if settings.ca
        else None
    )
    worker = distributed.Worker(
        settings.scheduler,
        name=f"{hello.machine} {os.getpid()}",
        nthreads=hello.slots,
        resources={SLOT: hello.slots, MIB: hello.mib, **resources_of(hello.offers, hello.slots)},
        host=settings.listen or None,
        contact_address=settings.contact or None,
        security=security,
        dashboard=False,
        dashboard_address="127.0.0.1:0",
        memory_limit=0,
        death_timeout=_GIVES_UP_S,
        local_directory=str(folder / "dask"),
    )
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    if told is not None:  # from the start: the scheduler may be gone before it is reached
        threading.Thread(target=_until_end, args=(told, loop, ended, folder), daemon=True).start()
    async with worker:
        say(hello)
        finished = asyncio.ensure_future(worker.finished())
        await asyncio.wait({finished, asyncio.ensure_future(ended.wait())}, return_when="FIRST_COMPLETED")


def _until_end(told: BinaryIO, loop: asyncio.AbstractEventLoop, ended: asyncio.Event, folder: Path) -> None:
    """Wait for the end of *told*, and end this process then, a task that runs with it."""
    while told.read(1 << 10):
        pass
    with contextlib.suppress(RuntimeError):  # the loop has ended already
        loop.call_soon_threadsafe(ended.set)
    time.sleep(_ENDS_S)
    # A thread that compiles cannot be ended, and its compiler ends with the process.
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
