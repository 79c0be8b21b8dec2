"""The stages of a start, as the server's log tells of them: each becomes a task with its progress.

The lines are upstream's, of vLLM 0.24 to 0.33 and its FlashInfer; beside each stands the file that writes it.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from types import TracebackType
from typing import Self

from sparkwright.base.events import Task, task
from sparkwright.engine.server.bootlog import plain

_BEGINS = {
    # v1/worker/gpu_model_runner.py, v1/worker/gpu/model_runner.py
    "set up the model": r"Starting to load model",
    # compilation/backends.py
    "compile the model": r"Dynamo bytecode transform time|Compiling a graph for",
    "tune FlashInfer's kernels": r"Autotuning process starts",  # flashinfer/autotuner.py
}
_ENDS = re.compile(
    # The same files; compilation/monitor.py; v1/worker/gpu_worker.py.
    r"Model loading took|torch\.compile (?:and initial profiling run )?took|Available KV cache memory"
    r"|Autotuning process ends|Graph capturing finished"
)
# tqdm's, of model_executor/model_loader/weight_utils.py and of the runners.
_BAR = re.compile(r"(Loading|Capturing)\b([^:]*):\s+\d+%.*?\|\s*(\d+)/(\d+) \[")
_LINE_ENDS = re.compile(r"[\r\n]")


class BootStages:
    """Reports the stage that a server's log has come to, as a task inside the block."""

    def __init__(self, log: Path, *, where: str = "") -> None:
        """Begin at the start of *log*; the names of stages begin with *where*."""
        self._log, self._where, self._at = log, where, 0
        self._open = contextlib.ExitStack()
        self._task: Task | None = None
        self._rest = ""

    def __enter__(self) -> Self:
        """Begin without a stage."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the stage, as it ends the block."""
        self._open.__exit__(kind, error, trace)

    def read(self) -> None:
        """Read what was added to the log."""
        added = b""
        with contextlib.suppress(FileNotFoundError), self._log.open("rb") as stream:
            stream.seek(self._at)
            added = stream.read()
        self._at += len(added)
        *lines, self._rest = _LINE_ENDS.split(self._rest + added.decode(errors="replace"))
        for line in map(plain, lines):
            if bar := _BAR.search(line):
                verb, what, done, total = bar.groups()
                name = "load the weights" if verb == "Loading" else f"capture{what}"
                self._stage(name, int(total), "shards" if verb == "Loading" else "graphs", int(done))
            elif _ENDS.search(line):
                self._end()
            else:
                for name, begins in _BEGINS.items():
                    if re.search(begins, line):
                        self._stage(name)

    def _stage(self, name: str, total: int | None = None, unit: str = "", done: int = 0) -> None:
        name, now = self._where + name, self._task
        if now is None or now.name != name or (total is not None and now.total != total):
            self._end()
            now = self._task = self._open.enter_context(task(name, total=total, unit=unit))
        if done > now.done:
            now.advance(done - now.done)

    def _end(self) -> None:
        self._open.close()
        self._task = None
