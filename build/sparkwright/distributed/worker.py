"""A worker: the process on another machine that runs tasks for a command, until its input ends.

`TaskRunner` runs tasks, each in a process of its own; `serve` runs those that it reads.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.errors import ConfigError, SparkwrightError, StorageError, ToolError
from sparkwright.base.process.session import start
from sparkwright.distributed.tasks import (
    GB10,
    GPU,
    OUT,
    Alive,
    Done,
    Failed,
    Offer,
    Reply,
    Task,
    WorkerMessage,
    WorkerSettings,
    own_code,
    share_file,
)
from sparkwright.store.paths import Store

ALIVE_S = 5.0
"""Both ends send a sign of life this often, at least."""
# Errors of the machine on which they occur: another one may do better, and this one would not.
_OF_THE_MACHINE = frozenset(
    {"ClusterError", "EnvironmentSetupError", "FetchError", "NotInStoreError", "ToolError"}
)
_GIVES_UP_S = 300.0  # without a sign of life; the command may take a large result meanwhile
_ENDS_S = 3.0
_POLL_S = 0.02


@dataclass(frozen=True)
class TaskRunner:
    """Runs tasks on this machine.

    Attributes:
        store: the store here, whose remote tier is the one that machines share.
        program: the command that runs sparkwright.
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
                    "give both machines one shared store: docs/store.md",
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
    runner: TaskRunner, settings: WorkerSettings, offer: Offer, lines: Iterable[bytes], output: BinaryIO
) -> None:
    """Run the tasks in *lines*, as many at a time as are offered; write replies to *output*.

    Whatever ends the reading stops the tasks.

    Raises:
        ToolError: the program that sent the settings is another one.
        ConfigError: a line is no task.
    """
    if settings.code != own_code():
        raise ToolError(
            "this machine cannot work for the one that started it",
            because="sparkwright is another state here",
            next_step="install the same commit on both",
        )
    stop, ended = threading.Event(), threading.Event()
    writing, heard = threading.Lock(), [time.monotonic()]

    def send(message: WorkerMessage) -> None:
        try:
            with writing:
                output.write(msgspec.json.encode(message) + b"\n")
                output.flush()
        except OSError:
            stop.set()

    def watch() -> None:
        while not stop.wait(ALIVE_S) and time.monotonic() - heard[0] < _GIVES_UP_S:
            send(Alive())
        stop.set()
        if not ended.wait(_ENDS_S):
            # A thread cannot be ended; the program that it runs ends with this process.
            os._exit(1)

    send(offer)
    threading.Thread(target=watch, daemon=True).start()
    try:
        with ThreadPoolExecutor(offer.slots) as pool:
            try:
                for line in lines:
                    heard[0] = time.monotonic()
                    if line.strip():
                        pool.submit(_answer, runner, decode_json(line, Task), stop, send)
            finally:
                stop.set()
    except msgspec.MsgspecError as error:
        raise ConfigError(
            "a task cannot be read", because=f"{error}", next_step="start this by --cluster, not by hand"
        ) from error
    finally:
        ended.set()


def _answer(
    runner: TaskRunner, task: Task, stop: threading.Event, send: Callable[[WorkerMessage], None]
) -> None:
    """Run *task* and send its reply, unless it was stopped."""
    try:
        send(runner.run(task, stop))
    except KeyboardInterrupt:
        return
    except Exception as error:  # noqa: BLE001 - an error that ends a thread is reported nowhere
        what = f"{task.name} was not finished"
        send(Failed(task.name, runner.machine, "", "ClusterError", what, repr(error)))
