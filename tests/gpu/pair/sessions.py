"""Processes of engines, each in a session of its own: they end with the script that started them."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sparkwright.base.process.session import Running, start

PYTHON = sys.executable
TAIL = 6000  # characters of a log that are kept


@contextlib.contextmanager
def session(words: Sequence[str], log: Path, env: dict[str, str]) -> Iterator[Running]:
    """Start a process in a session of its own, with output in *log*; kill what is left of it at the end."""
    running = start(words, cwd=Path.cwd(), env=env, log=log)
    try:
        yield running
    finally:
        running.kill()


def run_engine(
    module: str, spec: dict[str, Any], log: Path, env: dict[str, str], seconds: float
) -> int | None:
    """Run ``python -m module`` by *spec*, a file beside its *log*; return its exit status.

    It is `None` where it was ended after *seconds*.
    """
    file, end = log.with_suffix(".json"), time.monotonic() + seconds
    file.write_text(json.dumps(spec), encoding="utf-8")
    with session([PYTHON, "-m", module, str(file)], log, env) as child:
        while (ended := child.poll()) is None and time.monotonic() < end:
            time.sleep(0.05)
    return None if ended is None else ended.status


def run_cell(
    module: str, spec: dict[str, Any], folder: Path, log: Path, env: dict[str, str], seconds: float
) -> dict[str, Any]:
    """Run an engine that writes what it saw into *folder*; return its record, with the log if it failed."""
    out, started = folder / "seen.json", time.monotonic()
    status = run_engine(module, spec | {"out": str(out)}, log, env, seconds)
    seen = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else None
    tail = "" if status == 0 else log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
    return {"status": status, "seen": seen, "seconds": round(time.monotonic() - started, 1), "tail": tail}
