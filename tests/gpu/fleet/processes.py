"""Start the process of a cell's engine: a new interpreter, or a fork of one that has imported vLLM already.

Importing vLLM takes longer than a tiny model takes to boot, so that a session of hundreds of engines is twice
as long without forks. A process that has initialised CUDA cannot be forked: `Forks` tries it first.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from pair.sessions import ended, stopped
from serve_pair import run_engine

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Forks", "Interpreters"]

# No model: some ask for the card's name while they are imported, which initialises CUDA.
PRELOADED = (
    "fleet.engine",
    "fleet.view",
    "vllm.entrypoints.llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.compilation.backends",
    "torch._inductor.compile_fx",
)


class Interpreters:
    """Start each engine in an interpreter of its own."""

    def run(self, spec: Path, log: Path, env: dict[str, str], seconds: float) -> int | None:
        """Serve by *spec*, with output in *log*; return the exit status, or None after that many seconds."""
        return run_engine("fleet.engine", spec, log, env, seconds)


class Forks:
    """Start each engine as a fork of one process that has imported vLLM.

    Args:
        env: variables of that process: those that libraries read while they are imported.
        device: ``cuda`` or ``cpu``.
        log: file for what the first fork says.

    Raises:
        RuntimeError: a fork cannot use the card.
    """

    def __init__(self, env: dict[str, str], device: str, log: Path) -> None:
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(list(PRELOADED))
        # Starting a process polls all others, which loses the status of one that is read at that moment.
        self._lock = threading.Lock()
        os.environ.update(env)
        if self._wait(self._start(_try, (device, str(log))), 180) != 0:  # and starts the server
            raise RuntimeError(f"a fork of a process that imported vLLM cannot use the card: see {log}")

    def _start(self, target: Any, parts: tuple[Any, ...]) -> Any:
        with self._lock:
            process = self._context.Process(target=target, args=parts)
            process.start()
            return process

    def _wait(self, process: Any, seconds: float) -> int | None:
        deadline = time.monotonic() + seconds
        status: int | None = None
        with ended(process.pid):
            while status is None and time.monotonic() < deadline and not stopped():
                time.sleep(0.1)
                with self._lock:
                    status = process.exitcode
        return status

    def run(self, spec: Path, log: Path, env: dict[str, str], seconds: float) -> int | None:
        """Serve by *spec*, with output in *log*; return the exit status, or None after that many seconds."""
        return self._wait(self._start(_serve, (str(spec), str(log), env)), seconds)


def _own_session(log: str) -> None:
    """Make this process lead a session, which ends with it, and write its output to *log*."""
    os.setsid()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def _try(device: str, log: str) -> None:
    """Exit with 0 if this fork can use the card."""
    _own_session(log)
    if device == "cuda":
        import torch

        torch.ones(1, device="cuda").item()


def _serve(spec: str, log: str, env: dict[str, str]) -> None:
    """Serve by the specification in the file *spec*."""
    _own_session(log)
    os.environ.clear()
    os.environ.update(env)
    from fleet.engine import main

    with open(spec, encoding="utf-8") as stream:  # noqa: PTH123 - a str, as processes get it
        main(json.load(stream))
    sys.exit(1)  # an engine that came to its end never returns
