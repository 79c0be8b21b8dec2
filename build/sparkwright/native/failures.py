"""The causes of failed compilers, by their status and log, and one error for all failed units of a build."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparkwright.base.errors import (
    CompileError,
    NotEnoughMemoryError,
    SparkwrightError,
    StorageError,
    ToolError,
)
from sparkwright.native.schedule import gib

Cause = Literal["refused", "no-output", "memory", "disk"]

_MOST_LINES = 15
_TAIL_BYTES = 1 << 20
_FULL_BYTES = 1 << 20
"""With less free space than this, a full disk is taken for the cause of a failure without a message."""

_SHELL_KILLED = 128 + signal.SIGKILL

# g++, then nvcc ("'cicc' died due to signal 9 (Kill signal)"), then a shell's or make's own line.
_KILLED = re.compile(
    r"Killed signal terminated program|died due to signal 9\b|^(?:.*: )?(?:line \d+: +\d+ )?Killed\b",
    re.MULTILINE,
)
_NO_MEMORY = re.compile(
    r"virtual memory exhausted|out of memory allocating|\bstd::bad_alloc\b|Cannot allocate memory"
    r"|Memory allocation failure|LLVM ERROR: out of memory",
    re.IGNORECASE,
)
_DISK = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)
_ERROR = re.compile(r"\berror\b|\bfatal\b|undefined reference", re.IGNORECASE)
_NO_ERROR = re.compile(r"^\s*\d+ errors? detected|-W\w*error|\b0 errors?\b", re.IGNORECASE)


@dataclass(frozen=True)
class Diagnosis:
    """The cause of a unit's failure.

    Attributes:
        detail: evidence for the cause, as a clause.
        lines: the first lines of its output that report an error.
    """

    cause: Cause
    detail: str
    lines: tuple[str, ...] = ()


def diagnose(status: int, log: Path, output: Path) -> Diagnosis | None:
    """Return the cause of a compiler's failure; `None` if it made its object.

    *log* holds its command, an empty line, and its output; a negative *status* is the signal that ended it.
    """
    if status == 0 and output.is_file() and output.stat().st_size > 0:
        return None
    text = _output_of(log)
    lines = error_lines(text)
    if detail := _quote(_DISK, text) or _full_disk(output.parent, log.parent):
        return Diagnosis("disk", detail, lines)
    if detail := _quote(_KILLED, text) or _quote(_NO_MEMORY, text) or _killed(status):
        return Diagnosis("memory", detail, lines)
    if status == 0:
        return Diagnosis("no-output", "it succeeded and made no object", lines)
    return Diagnosis("refused", _ended(status), lines)


def error_lines(text: str) -> tuple[str, ...]:
    """Return the first lines of *text* that report an error; its last lines if none does."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line) and not _NO_ERROR.search(line)]
    return tuple(errors[:_MOST_LINES] or lines[-_MOST_LINES:])


def _quote(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return f"its log has '{found.group().strip()}'" if found else ""


def _killed(status: int) -> str:
    return "it was killed (SIGKILL)" if status in {-signal.SIGKILL, _SHELL_KILLED} else ""


def _ended(status: int) -> str:
    if status < 0:
        return f"it was ended by {signal.Signals(-status).name}"
    return f"it ended with status {status}"


def _output_of(log: Path) -> str:
    """Return the program's output, below its command; both ends of it if that is very long."""
    data = log.read_bytes().partition(b"\n\n")[2]
    if len(data) > 2 * _TAIL_BYTES:
        data = data[:_TAIL_BYTES] + b"\n" + data[-_TAIL_BYTES:]
    return data.decode(errors="replace")


def _full_disk(*folders: Path) -> str:
    for folder in folders:
        found = os.statvfs(folder)
        if found.f_bavail * found.f_frsize < _FULL_BYTES:
            return f"no space is left on the disk of {folder}"
    return ""


# One error for all --------------------------------------------------------------------------------

_KEPT = "compiled units are kept, and the next run continues from there"


@dataclass(frozen=True)
class CompileFailure:
    """A unit that has no object.

    Attributes:
        diagnosis: the cause; `None` if its compiler could not be started.
    """

    unit: str
    log: Path
    diagnosis: Diagnosis | None = None
    peak_mib: int = 0
    error: ToolError | None = None

    @property
    def detail(self) -> str:
        """The reason, as a clause."""
        return self.diagnosis.detail if self.diagnosis else str(self.error)


def error_of(failures: Sequence[CompileFailure]) -> SparkwrightError:
    """Return one error for one or more *failures*: the first in full, the others by name."""
    first = failures[0]
    if first.diagnosis is None:
        return first.error or CompileError(f"{first.unit} was not compiled")
    others = [failure.unit for failure in failures[1:]]
    lines = [first.diagnosis.detail, *first.diagnosis.lines, f"log: {first.log}"]
    if others:
        lines.append(f"also failed: {', '.join(others)}")
    match first.diagnosis.cause:
        case "disk":
            return StorageError(
                f"{first.unit} was not compiled",
                because="\n".join(lines),
                next_step=f"free some space on the disks of the build and of the temporary folder; {_KEPT}",
            )
        case "memory":
            lines[0] = f"{first.diagnosis.detail}; it used up to {gib(first.peak_mib)} GiB"
            return NotEnoughMemoryError(
                f"{first.unit} was not compiled: memory ran out, even with nothing else running",
                because="\n".join(lines),
                next_step="stop processes that hold memory, such as a server with a model, or add swap, "
                f"then run again with fewer jobs; {_KEPT}",
            )
        case "refused" | "no-output":
            return CompileError(
                f"{first.unit} was not compiled", because="\n".join(lines), next_step=f"read its log; {_KEPT}"
            )
