"""Keep the log of a served engine, within a size, and evidence of its failures.

The evidence is beyond that of `engine.server.evidence`: stacks, processes, samples.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sparkwright.base.errors import SparkwrightError
from sparkwright.base.events import emit
from sparkwright.serve.watchdog import EngineSample

if TYPE_CHECKING:
    import psutil

MOST_BYTES = 64 << 20
KEPT = 4
_DUMP_S = 15.0
_MOST_DUMPED = 16
_COMPILERS = frozenset({"nvcc", "cicc", "ptxas", "fatbinary", "ninja", "cc1plus", "cudafe++", "nvlink"})


def _family(pids: Sequence[int]) -> Iterator[psutil.Process]:
    """Yield the processes *pids* and their descendants."""
    import psutil

    for pid in pids:
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(pid)
            yield from (root, *root.children(recursive=True))


def family(pids: Sequence[int]) -> list[dict[str, object]]:
    """Return the processes *pids* and their descendants: id, parent, name, state, CPU seconds and memory."""
    import psutil

    found: dict[int, dict[str, object]] = {}
    for process in _family(pids):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = {
                "pid": process.pid,
                "parent": process.ppid(),
                "name": process.name(),
                "state": process.status(),
                "threads": process.num_threads(),
                "cpu_s": round(times.user + times.system, 2),
                "rss_mib": process.memory_info().rss >> 20,
            }
    return list(found.values())


def compilers(pids: Sequence[int]) -> int:
    """Return the number of compilers that run below *pids*."""
    import psutil

    count = 0
    for process in _family(pids):
        with contextlib.suppress(psutil.Error):
            count += process.name() in _COMPILERS
    return count


def keep_incident(place: Path, pids: Sequence[int], samples: Iterable[EngineSample]) -> tuple[str, ...]:
    """Write the processes, their Python stacks and the last samples of an engine into the folder *place*.

    Stacks are those of py-spy, where it is installed and may look at the processes.

    Returns:
        The names of the files that were written.
    """
    processes = family(pids)
    written = {
        "processes.json": json.dumps(processes, indent=1) + "\n",
        "samples.jsonl": "".join(json.dumps(asdict(sample)) + "\n" for sample in samples),
    }
    if stacks := _stacks([int(str(one["pid"])) for one in processes][:_MOST_DUMPED]):
        written["stacks.txt"] = stacks
    for name, text in written.items():
        (place / name).write_text(text, encoding="utf-8", errors="replace")
    return tuple(written)


def _stacks(pids: Sequence[int]) -> str:
    from sparkwright.base.process import run

    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return ""
    found = []
    for pid in pids:
        # A stopped process cannot be paused once more: its memory is read as it is.
        with contextlib.suppress(SparkwrightError):
            done = run([program, "dump", "--nonblocking", "--pid", str(pid)], timeout=_DUMP_S, accept=(0, 1))
            if done.status == 0:
                found.append(done.text)
    return "\n\n".join(found) + "\n" if found else ""


def rotate(log: Path, *, most: int = MOST_BYTES, kept: int = KEPT) -> bool:
    """Copy *log* to ``LOG.1`` and empty it if it has grown beyond *most* bytes; return true if it had.

    Its writer goes on: it appends. What it writes between the copy and the cut is lost, at most some lines.
    """
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return False
    if size <= most:
        return False
    for number in range(kept - 1, 0, -1):
        older = _piece(log, number)
        if older.exists():
            older.replace(_piece(log, number + 1))
    shutil.copyfile(log, _piece(log, 1))
    os.truncate(log, 0)
    emit("serve.log-rotated", log=str(log), bytes=size)
    return True


def _piece(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")
