"""Run many probes at a time, in forks of processes that have imported torch already.

A night judges every carry on trees that differ in a handful of files, and most of what a run takes is the
import of packages that no tree changes. A `ProbePool` starts one process for each of Triton's two settings,
which imports them once, and forks it for each run. Runs wait for each other: no more than there are cores,
and no more than memory allows for.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Self, TypeVar

from sparkwright.base.process.session import ProcessLimits, Running, start, watch
from sparkwright.probe.environment import bytecode_folder
from sparkwright.store.paths import Store


def child_folder() -> Path:
    """Return the folder of what runs inside the child."""
    return Path(str(resources.files("sparkwright.probe").joinpath("child")))


def interpreter(store: Store, python: Path) -> list[str | Path]:
    """Return the command that starts *python* for probes, without a script."""
    return [python, "-I", "-X", f"pycache_prefix={bytecode_folder(store)}"]


def environment(scratch: Path) -> dict[str, str]:
    """Return the variables of a run: no GPU, no network hub, no user settings; caches go to *scratch*."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "LC_ALL": "C.UTF-8",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }


T = TypeVar("T")

_SERVER = "preloaded.py"
_SOCKET = "socket"
_TICK_S = 0.1
_PATIENCE_S = 120.0
_DYING_S = 5.0
_SAID = 1500
_SPARE = 0.8  # share of the free memory that runs may take up


def _free_mib() -> int:
    import psutil

    return int(psutil.virtual_memory().available * _SPARE) >> 20


@dataclass
class _Server:
    """A process that has imported the packages, and the folder with its socket."""

    running: Running
    folder: Path

    def ready(self, stop: threading.Event) -> bool:
        """Wait until it listens; false if it ended, or takes too long."""
        end = time.monotonic() + _PATIENCE_S
        while not (self.folder / _SOCKET).exists():
            if stop.is_set() or self.running.poll() is not None or time.monotonic() > end:
                return False
            time.sleep(_TICK_S)
        return True


@dataclass
class ProbePool:
    """Runs of probes, several at a time; see the module's text.

    Where its block ends, runs and servers are ended too.

    Attributes:
        most: most runs at a time; as many as there are cores by default.
        memory_mib: memory that the limits of all runs at a time may add up to; what is free by default.
        preload: whether to fork processes that have imported torch.
    """

    store: Store
    most: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    memory_mib: int = field(default_factory=_free_mib)
    preload: bool = True
    stop: threading.Event = field(default_factory=threading.Event)
    _servers: dict[tuple[Path, str], _Server] = field(default_factory=dict)
    _known: dict[str, Future[Any]] = field(default_factory=dict)
    _taken: list[int] = field(default_factory=list)
    _free: threading.Condition = field(default_factory=threading.Condition)
    _blocks: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Self:
        self._threads = self._blocks.enter_context(ThreadPoolExecutor(self.most))
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for server in self._servers.values():
            server.running.kill()
        self._blocks.close()

    def submit(self, key: str, memory_mib: int, call: Callable[[], T]) -> Future[T]:
        """Make *call* when cores and memory allow it; another one of that *key* gets the first's result.

        It takes *memory_mib* at most, and is made in a thread with this one's context.
        """
        if key not in self._known:
            context = copy_context()

            def in_turn() -> T:
                with self._slot(memory_mib):
                    return context.run(call)

            self._known[key] = self._threads.submit(in_turn)
        return self._known[key]

    @contextlib.contextmanager
    def _slot(self, memory_mib: int) -> Iterator[None]:
        with self._free:
            self._free.wait_for(lambda: not self._taken or sum(self._taken) + memory_mib <= self.memory_mib)
            self._taken.append(memory_mib)
        try:
            yield
        finally:
            with self._free:
                self._taken.remove(memory_mib)
                self._free.notify_all()

    def start_server(
        self,
        python: Path,
        kind: str,
        script: Path | None = None,
        arguments: Sequence[str | Path] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """Start the process that runs of a *kind* are forked from, unless it was started.

        It ends when the thread that calls this does.

        Args:
            python: the interpreter.
            kind: for probes the setting of Triton, and a name of its own for another *script*.
            script: what it runs; by default what imports the packages that probes import.
            arguments: what the script takes behind the folder of the socket; by default *kind*.
            prefix: start of the command, before the interpreter.
        """
        key = (python, kind)
        if not self.preload or key in self._servers:
            return
        folder = self._blocks.enter_context(self.store.scratch())
        words = [kind] if arguments is None else arguments
        command = [
            *prefix,
            *interpreter(self.store, python),
            script or child_folder() / _SERVER,
            folder,
            *words,
        ]
        running = start(command, cwd=folder, env=environment(folder), log=folder / "log")
        self._servers[key] = _Server(running, folder)

    def folder(self) -> Path:
        """Return an empty folder that is removed where the block ends."""
        return self._blocks.enter_context(self.store.scratch())

    def said(self, python: Path, kind: str) -> str:
        """Return the end of what the process for runs of that *kind* wrote."""
        server = self._servers.get((python, kind))
        log = None if server is None else server.folder / "log"
        return (
            ""
            if log is None or not log.is_file()
            else log.read_bytes()[-_SAID:].decode(errors="replace").strip()
        )

    def run(
        self,
        python: Path,
        kind: str,
        script: Path,
        arguments: Sequence[str | Path],
        *,
        limits: ProcessLimits,
        folder: Path,
        variables: Mapping[str, str],
        log: Path,
    ) -> bool:
        """Run *script* in a fork; false if there is no process to fork, and nothing was run.

        Raises:
            LimitsExceeded: it was killed; the message says which limit it passed.
        """
        server = self._servers.get((python, kind))
        if server is None or not server.ready(self.stop):
            return False
        asked = {
            "script": str(script),
            "arguments": [str(one) for one in arguments],
            "folder": str(folder),
            "environment": dict(variables),
            "log": str(log),
        }
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                _connect(connection, server.folder)
                connection.sendall(json.dumps(asked).encode() + b"\n")
                pid = int(connection.makefile("rb").readline())
            except (OSError, ValueError):
                return False  # it went away
            try:
                watch(pid, lambda seconds: _closed(connection, pid, seconds), limits, self.stop)
            finally:
                _kill(pid)
        return True


def _connect(connection: socket.socket, folder: Path) -> None:
    """Connect to the socket in *folder*, whose path may be longer than an address can be."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        connection.connect(f"/proc/self/fd/{handle}/{_SOCKET}")
    finally:
        os.close(handle)


def _closed(connection: socket.socket, pid: int, seconds: float) -> bool:
    """Wait *seconds* for the end of the process behind *connection*; what it left behind may hold that."""
    if select.select([connection], [], [], seconds)[0]:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def _kill(pid: int) -> None:
    """Kill the group that *pid* leads, and wait until that one is gone; its server clears it away."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
        end = time.monotonic() + _DYING_S
        while time.monotonic() < end:
            os.kill(pid, 0)
            time.sleep(_DYING_S / 500)
