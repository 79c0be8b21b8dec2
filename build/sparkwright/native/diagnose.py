"""The cause of a compiler's failure, read from its status and its log."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
        cause: kind of failure.
        detail: evidence for the cause, as a clause.
        lines: the first lines of its output that report an error.
    """

    cause: Cause
    detail: str
    lines: tuple[str, ...] = ()


def diagnose(status: int, log: Path, output: Path) -> Diagnosis | None:
    """Return the cause of a compiler's failure; `None` if it made its object.

    Args:
        status: its exit status; negative is the signal that ended it.
        log: its command, an empty line, and its output.
        output: the expected object.
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
